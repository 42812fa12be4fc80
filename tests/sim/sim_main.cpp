// pccl_sim SEED COUNT: walks with the seeds SEED, SEED + 1, ...; the first violation ends it with
// status 1 and its seed. pccl_sim --trace SEED prints a walk. --seeds FILE walks the seeds of a
// file. pccl_sim_planted takes --planted NAME SEED COUNT besides, and --all-planted SEED COUNT.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "walk.h"

namespace {

using pccl::PlantedBugs;
using pccl::sim::walk;
using pccl::sim::WalkResult;

struct Span {
  std::uint64_t walks = 0;
  std::uint64_t steps = 0;
  std::string violation;
  std::uint64_t seed = 0;
};

Span run(std::uint64_t seed, std::uint64_t count, const PlantedBugs& planted) {
  Span span;
  for (; span.walks < count; ++span.walks) {
    span.seed = seed + span.walks;
    const WalkResult result = walk(span.seed, planted, false);
    span.steps += result.steps;
    if (result.violation.empty()) continue;
    span.violation = result.violation;
    ++span.walks;
    break;
  }
  return span;
}

int clean(std::uint64_t seed, std::uint64_t count) {
  const Span span = run(seed, count, {});
  if (!span.violation.empty()) {
    std::printf("VIOLATION at seed %llu: %s\n  see it: pccl_sim --trace %llu\n",
                static_cast<unsigned long long>(span.seed), span.violation.c_str(),
                static_cast<unsigned long long>(span.seed));
    return 1;
  }
  std::printf("%llu walks, %llu steps, no violation\n", static_cast<unsigned long long>(span.walks),
              static_cast<unsigned long long>(span.steps));
  return 0;
}

int trace(std::uint64_t seed, const PlantedBugs& planted) {
  const WalkResult result = walk(seed, planted, true);
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
    const std::uint64_t seed = std::strtoull(line.c_str(), nullptr, 10);
    const WalkResult result = walk(seed, {}, false);
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

/// Each must be found within COUNT walks, and the cores as they are must pass the same walks.
constexpr const char* kMustBeFound[] = {"commit_early",   "reuse_epoch",       "forget_restore",
                                        "join_mid_step",  "drop_abort",        "start_early",
                                        "commit_alone",   "any_survivor",      "old_vote",
                                        "forget_commits", "pin_follows_epoch", "flag_per_message"};

int planted(const char* name, std::uint64_t seed, std::uint64_t count) {
  const Span span = run(seed, count, PlantedBugs{name});
  std::printf("%-20s %s after %llu walks%s%s\n", name, span.violation.empty() ? "MISSED" : "found",
              static_cast<unsigned long long>(span.walks), span.violation.empty() ? "" : ": ",
              span.violation.c_str());
  return span.violation.empty() ? 1 : 0;
}

int all_planted(std::uint64_t seed, std::uint64_t count) {
  int missed = 0;
  for (const char* name : kMustBeFound) missed += planted(name, seed, count);
  return missed + clean(seed, count) > 0 ? 1 : 0;
}

#endif

std::uint64_t number(const char* text) { return std::strtoull(text, nullptr, 10); }

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 2 && args[0] == "--trace") return trace(number(argv[2]), {});
  if (args.size() == 2 && args[0] == "--seeds") return from_file(argv[2]);
  if (args.size() == 2 && args[0][0] != '-') return clean(number(argv[1]), number(argv[2]));
#ifdef PCCL_PLANTED_BUGS
  if (args.size() == 4 && args[0] == "--planted") {
    return planted(argv[2], number(argv[3]), number(argv[4]));
  }
  if (args.size() == 3 && args[0] == "--trace") {
    return trace(number(argv[3]), PlantedBugs{argv[2]});
  }
  if (args.size() == 3 && args[0] == "--all-planted") {
    return all_planted(number(argv[2]), number(argv[3]));
  }
#endif
  std::fprintf(stderr, "usage: pccl_sim SEED COUNT | --trace SEED | --seeds FILE\n");
  return 2;
}
