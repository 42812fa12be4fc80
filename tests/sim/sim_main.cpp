// pccl_sim [--jobs N] SEED COUNT: walks with the seeds SEED, SEED + 1, ... on N threads; the first
// violation ends it with status 1 and its seed. --keep-going prints all of them. --liars: in each
// walk one peer lies. --trace SEED
// prints a walk, --seeds FILE walks the seeds of a file. pccl_sim_planted, built with bugs planted
// into a copy of the cores, takes --planted NAME besides, --trace NAME SEED, and --all-planted or
// --rare-planted.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "walk.h"

namespace {

using pccl::PlantedBugs;
using pccl::sim::walk;
using pccl::sim::WalkResult;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kChunk = 50;     // walks that a thread takes at once
constexpr std::uint64_t kQuiet = 50000;  // walks without a word on how far they are
constexpr auto kSayEvery = std::chrono::seconds(10);

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t count = 0;
  unsigned jobs = 1;
  bool keep_going = false;
  bool liars = false;
  PlantedBugs planted;
};

struct Span {
  std::uint64_t walks = 0;
  std::uint64_t steps = 0;
  std::map<std::uint64_t, std::string> violations;  // by seed
  double seconds = 0;
};

/// The walks of a span on several threads. Without `keep_going` it ends with the lowest seed of a
/// violation, whatever the number of threads.
class Walker {
 public:
  explicit Walker(const Options& options) : options_(options) {}

  Span run() {
    const auto begin = Clock::now();
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < options_.jobs; ++i) threads.emplace_back([this] { work(); });
    work();
    for (std::thread& thread : threads) thread.join();
    span_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!span_.violations.empty() && !options_.keep_going) {
      span_.violations.erase(std::next(span_.violations.begin()), span_.violations.end());
    }
    return span_;
  }

 private:
  void work() {
    while (true) {
      const std::uint64_t first = next_.fetch_add(kChunk);
      const std::uint64_t last = std::min(first + kChunk, options_.count);
      if (first >= last || first >= end_) return;
      Span chunk;
      for (std::uint64_t i = first; i < last && i < end_; ++i) {
        const WalkResult result = walk(options_.seed + i, options_.planted, false, options_.liars);
        ++chunk.walks;
        chunk.steps += result.steps;
        if (result.violation.empty()) continue;
        chunk.violations[options_.seed + i] = result.violation;
        if (!options_.keep_going) break;
      }
      add(chunk);
    }
  }

  void add(const Span& chunk) {
    const std::lock_guard lock(mutex_);
    span_.walks += chunk.walks;
    span_.steps += chunk.steps;
    for (const auto& [seed, text] : chunk.violations) {
      span_.violations[seed] = text;
      if (options_.keep_going) {
        std::fprintf(stderr, "VIOLATION at seed %llu: %s\n", static_cast<unsigned long long>(seed),
                     text.c_str());
      }
      if (!options_.keep_going) end_ = std::min(end_.load(), seed - options_.seed);
    }
    if (options_.count < kQuiet || Clock::now() - said_ < kSayEvery) return;
    said_ = Clock::now();
    const double seconds = std::chrono::duration<double>(said_ - begin_).count();
    std::fprintf(stderr, "%8.0f s: %llu of %llu walks, %zu violations\n", seconds,
                 static_cast<unsigned long long>(span_.walks),
                 static_cast<unsigned long long>(options_.count), span_.violations.size());
  }

  const Options options_;
  std::atomic<std::uint64_t> next_ = 0;
  std::atomic<std::uint64_t> end_ = ~std::uint64_t{0};  // nothing from here on is of interest
  std::mutex mutex_;
  Span span_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point said_ = begin_;
};

int clean(const Options& options) {
  const Span span = Walker(options).run();
  for (const auto& [seed, text] : span.violations) {
    std::printf("VIOLATION at seed %llu: %s\n  see it: pccl_sim%s --trace %llu\n",
                static_cast<unsigned long long>(seed), text.c_str(),
                options.liars ? " --liars" : "", static_cast<unsigned long long>(seed));
  }
  if (!span.violations.empty() && !options.keep_going) return 1;
  const std::string found = span.violations.empty()
                                ? "no violation"
                                : std::to_string(span.violations.size()) + " violations";
  std::printf("%llu walks, %llu steps, %.0f s: %s\n", static_cast<unsigned long long>(span.walks),
              static_cast<unsigned long long>(span.steps), span.seconds, found.c_str());
  return span.violations.empty() ? 0 : 1;
}

int trace(std::uint64_t seed, const PlantedBugs& planted, bool liars = false) {
  const WalkResult result = walk(seed, planted, true, liars);
  std::printf("%s\n", result.violation.empty() ? "no violation" : result.violation.c_str());
  return result.violation.empty() ? 0 : 1;
}

int from_file(const char* path) {
  std::ifstream file(path);
  std::string line;
  int failed = 0;
  int number = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    const bool liar = line.starts_with("liars ");
    const std::uint64_t seed = std::strtoull(line.c_str() + (liar ? 6 : 0), nullptr, 10);
    const WalkResult result = walk(seed, {}, false, liar);
    ++number;
    if (result.violation.empty()) continue;
    std::printf("VIOLATION at seed %s: %s\n", line.c_str(), result.violation.c_str());
    failed = 1;
  }
  if (number == 0) {
    std::printf("no seeds in %s\n", path);
    return 1;
  }
  return failed;
}

#ifdef PCCL_PLANTED_BUGS

struct Bug {
  const char* name;
  std::uint64_t seed = 0;  // of a walk that shows it, where there is less than one in 100,000
};

/// Each must be found within COUNT walks (4,000 in ctest), and the cores as they are must pass the
/// same walks.
const std::vector<Bug> kPlanted = {
    {"start_unasked"},     {"commit_early"},      {"forget_restore"},   {"join_mid_step"},
    {"flag_per_group"},    {"reuse_epoch"},       {"drop_abort"},       {"start_early"},
    {"own_trips"},         {"commit_alone"},      {"any_survivor"},     {"old_vote"},
    {"forget_commits"},    {"pin_follows_epoch"}, {"flag_per_message"}, {"keep_when_deposed"},
    {"blind_write"},       {"read_back"},         {"stale_ready"},      {"assume_written"},
    {"half_replica"},      {"impatient"},         {"leave_mid_step"},   {"trust_register"},
    {"one_finishes"},      {"lost_is_dead"},      {"one_death"},        {"first_goes_on"},
    {"founders_forgotten"}};
/// One walk in thousands: give them a hundred thousand.
const std::vector<Bug> kRare = {
    {"begin_anew"},
    {"two_answers"},
    {"flag_not_in_verdict"},
    {"any_failure_votes"},
    {"old_failure"},
    {"forget_survivor"},
    {"keep_relay"},
    {"old_incarnation"},
    {"refound_near"},
    {"adopt_late"},
    {"mix_epochs"},
    {"late_or_waiting", 1004249},
    {"forget_failure", 1820087},
};

int planted(Options options, const char* name) {
  options.planted = PlantedBugs{name};
  options.keep_going = false;
  const Span span = Walker(options).run();
  const bool found = !span.violations.empty();
  const std::uint64_t walks =
      found ? span.violations.begin()->first - options.seed + 1 : span.walks;
  std::printf("%-20s %s after %llu walks%s%s\n", name, found ? "found" : "MISSED",
              static_cast<unsigned long long>(walks), found ? ": " : "",
              found ? span.violations.begin()->second.c_str() : "");
  std::fflush(stdout);
  return found ? 0 : 1;
}

/// A seed shows the same walk as long as the shape of worlds stays; after that look for another one
/// (--planted NAME SEED COUNT).
int all(const Options& options, const std::vector<Bug>& bugs) {
  int missed = 0;
  for (const Bug& bug : bugs) {
    Options own = options;
    if (bug.seed > 0) {
      own.seed = bug.seed;
      own.count = 1;
    }
    missed += planted(own, bug.name);
  }
  return missed + clean(options) > 0 ? 1 : 0;
}

#endif

std::uint64_t number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

int usage() {
  std::fprintf(
      stderr,
      "usage: pccl_sim [--jobs N] [--keep-going] [--liars] SEED COUNT | [--liars] --trace SEED | "
      "--seeds FILE\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  Options options;
  const auto begins = [&](const char* word) { return !args.empty() && args[0] == word; };
  while (begins("--jobs") || begins("--keep-going") || begins("--liars")) {
    const bool jobs = args[0] == "--jobs";
    if (jobs && args.size() < 2) return usage();
    if (jobs) options.jobs = static_cast<unsigned>(std::max<std::uint64_t>(1, number(args[1])));
    options.keep_going = options.keep_going || begins("--keep-going");
    options.liars = options.liars || begins("--liars");
    args.erase(args.begin(), args.begin() + (jobs ? 2 : 1));
  }
  if (args.size() == 2 && args[0] == "--trace") {
    return trace(number(args[1]), {}, options.liars);
  }
  if (args.size() == 2 && args[0] == "--seeds") return from_file(args[1].c_str());
#ifdef PCCL_PLANTED_BUGS
  if (args.size() == 3 && args[0] == "--trace") {
    return trace(number(args[2]), PlantedBugs{args[1]});
  }
#endif
  if (args.size() < 2) return usage();
  options.seed = number(args[args.size() - 2]);
  options.count = number(args.back());
  if (args.size() == 2 && args[0][0] != '-') return clean(options);
#ifdef PCCL_PLANTED_BUGS
  if (args.size() == 4 && args[0] == "--planted") return planted(options, args[1].c_str());
  if (args.size() == 3 && args[0] == "--all-planted") return all(options, kPlanted);
  if (args.size() == 3 && args[0] == "--rare-planted") return all(options, kRare);
#endif
  return usage();
}
