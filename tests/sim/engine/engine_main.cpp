// pccl_sim_engine: walks whole engines and masters from seeds.
//   pccl_sim_engine [--jobs N] [--keep-going] SEED COUNT   the first violation ends it, by its seed
//   pccl_sim_engine --trace SEED                           one walk, as a story
//   with --again: each twice, the second time in another heap, and both must be the same walk;
//   --again --trace SEED shows that one
//   with --liars: one member of each walk lies
//   with --fixed: of fixed groups, without a run; --fixed --liars: one rank lies
//   pccl_sim_engine --seeds FILE                           the seeds of a file
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "base/log.h"
#include "memory.h"
#include "walk.h"

namespace {

using pccl::sim::Walked;
using pccl::sim::Wishes;

Wishes wishes;
bool again = false;

Walked walk_one(std::uint64_t seed) {
  return wishes.fixed ? pccl::sim::walk_fixed(seed, wishes) : pccl::sim::walk_engines(seed, wishes);
}

Walked walk_in_other_heap(std::uint64_t seed) {
  const pccl::sim::OtherHeap heap(seed);
  return walk_one(seed);
}

/// One of the processes has found a violation, and that is enough. They share this memory.
std::atomic<bool>* enough = nullptr;

int walk_some(std::uint64_t first, std::uint64_t count, std::uint64_t jobs, std::uint64_t job,
              bool keeps_going) {
  const auto begin = std::chrono::steady_clock::now();
  Walked sum;
  int violations = 0;
  std::uint64_t walked = 0;
  for (std::uint64_t seed = first + job; seed < first + count && !*enough; seed += jobs) {
    Walked one = walk_one(seed);
    ++walked;
    if (again && one.hash != walk_in_other_heap(seed).hash && one.violation.empty()) {
      one.violation = "another walk in another heap";
    }
    sum.calls += one.calls;
    sum.messages += one.messages;
    sum.bits += one.bits;
    if (one.violation.empty()) continue;
    ++violations;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), one.violation.c_str());
    std::fflush(stdout);
    if (!keeps_going) *enough = true;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf(
      "%llu walks, %d violations; %llu operations, %llu messages, %llu bits checked; "
      "%.0f seeds a second\n",
      static_cast<unsigned long long>(walked), violations,
      static_cast<unsigned long long>(sum.calls), static_cast<unsigned long long>(sum.messages),
      static_cast<unsigned long long>(sum.bits), static_cast<double>(walked) / seconds);
  return violations == 0 ? 0 : 1;
}

int walk_all(std::uint64_t first, std::uint64_t count, std::uint64_t jobs, bool keeps_going) {
  void* const shared =
      mmap(nullptr, sizeof(*enough), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::perror("mmap");
    return 2;
  }
  enough = new (shared) std::atomic<bool>(false);
  std::vector<pid_t> children;
  for (std::uint64_t job = 1; job < jobs; ++job) {
    const pid_t child = fork();
    if (child == 0) {
      const int status = walk_some(first, count, jobs, job, keeps_going);
      std::fflush(stdout);
      _exit(status);
    }
    children.push_back(child);
  }
  int worst = walk_some(first, count, jobs, 0, keeps_going);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) worst = 1;
  }
  return worst;
}

/// Those of a file, a line each: `SEED`, `fixed SEED`, `liars SEED` or `fixed liars SEED`; # begins
/// a comment.
int walk_seeds(const std::string& path) {
  std::ifstream file(path);
  int walks = 0;
  int violations = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    wishes.fixed = line.starts_with("fixed ");
    wishes.liars = line.find("liars ") != std::string::npos;
    const std::size_t digits = line.find_last_of(' ') + 1;  // 0 where there is no space
    const std::uint64_t seed = std::strtoull(line.c_str() + digits, nullptr, 10);
    const Walked walked = walk_one(seed);
    ++walks;
    if (walked.violation.empty()) continue;
    ++violations;
    std::printf("%s: %s\n", line.c_str(), walked.violation.c_str());
  }
  std::printf("%d walks, %d violations\n", walks, violations);
  return walks > 0 && violations == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t jobs = 1;
  bool keeps_going = false;
  std::string seeds;
  std::vector<std::uint64_t> numbers;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--trace") {
      wishes.trace = true;
    } else if (word == "--fixed") {
      wishes.fixed = true;
    } else if (word == "--liars") {
      wishes.liars = true;
    } else if (word == "--again") {
      again = true;
    } else if (word == "--seeds" && i + 1 < argc) {
      seeds = argv[++i];
    } else if (word == "--keep-going") {
      keeps_going = true;
    } else if (word == "--jobs" && i + 1 < argc) {
      jobs = std::strtoull(argv[++i], nullptr, 10);
    } else {
      numbers.push_back(std::strtoull(word.c_str(), nullptr, 10));
    }
  }
  pccl::set_log_level(pccl::LogLevel::off);
  if (!seeds.empty()) return walk_seeds(seeds);
  if (wishes.trace && numbers.size() == 1) {
    const Walked walked = again ? walk_in_other_heap(numbers[0]) : walk_one(numbers[0]);
    std::printf("%s\n", walked.violation.empty() ? "no violation" : walked.violation.c_str());
    return walked.violation.empty() ? 0 : 1;
  }
  if (numbers.size() != 2 || jobs == 0) {
    std::fprintf(stderr,
                 "usage: pccl_sim_engine [--fixed] [--liars] [--again]\n"
                 "       ([--jobs N] [--keep-going] SEED COUNT | --trace SEED) | --seeds FILE\n");
    return 2;
  }
  return walk_all(numbers[0], numbers[1], jobs, keeps_going);
}
