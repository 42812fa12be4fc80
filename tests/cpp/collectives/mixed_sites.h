// Sites, and what is the same for each collective, for tests of what goes in two levels.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/sites.h"
#include "runner.h"

namespace pccl::test {

/// Of one to five ranks, in a row and mixed, and two to five of them.
inline const std::vector<Sites> kMixedSites{{0, 0, 1},
                                            {0, 1, 1},
                                            {0, 0, 1, 1},
                                            {0, 1, 0, 1},
                                            {0, 0, 0, 1, 1},
                                            {0, 1, 1, 1, 1},
                                            {0, 0, 0, 0, 0, 1},
                                            {0, 0, 0, 0, 1, 1, 1},
                                            {0, 0, 1, 1, 2, 2},
                                            {0, 1, 1, 2, 2, 2},
                                            {0, 0, 1, 2, 1, 0},
                                            {0, 0, 1, 2, 3, 4},
                                            {0, 0, 0, 1, 1, 2, 3, 3}};

/// Over long lines.
inline Case at_sites(OpKind kind, const Sites& sites, std::vector<std::uint64_t> counts) {
  return {.kind = kind,
          .size = static_cast<std::uint32_t>(sites.size()),
          .counts = std::move(counts),
          .lines = {80'000, 20'000, 0, sites}};
}

/// `kind` has parts that may differ in size by rank.
inline void run_at_all_sites(OpKind kind, const Algorithm& algorithm) {
  for (const Sites& sites : kMixedSites) {
    std::vector<std::uint64_t> odd;
    for (std::uint64_t i = 0; i < sites.size(); ++i) odd.push_back(i * i % 7);
    for (const auto& counts : {std::vector<std::uint64_t>{0}, {1}, {3}, {13}, odd}) {
      for (const ReduceOp reduce : {ReduceOp::sum, ReduceOp::avg}) {
        if (kind == OpKind::all_gather && reduce == ReduceOp::avg) continue;
        Case c = at_sites(kind, sites, counts);
        c.reduce = reduce;
        for (c.seed = 1; c.seed <= 6; ++c.seed) {
          c.in_place = c.seed % 2 == 0;
          run_and_check(c, algorithm);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Elements that ranks of site 0 send to other sites.
inline std::uint64_t far_elements(const Case& c, const Algorithm& algorithm) {
  const Sites& sites = c.lines.sites;
  std::uint64_t bytes = 0;
  for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
    if (sites[rank] != 0) continue;
    for (const Step& step : algorithm(args_of(c, rank)).steps) {
      if (step.kind == StepKind::send && sites[step.peer] != 0) bytes += step.from.bytes;
    }
  }
  return bytes / 8;
}

/// Is that the algorithm that is taken, by its steps and memory at one rank?
inline bool is_taken(const Case& c, const Algorithm& algorithm) {
  const CollectiveArgs args = args_of(c, c.size - 1);
  const Schedule built = build_schedule(args);
  const Schedule named = algorithm(args);
  return built.scratch_bytes == named.scratch_bytes && built.steps.size() == named.steps.size();
}

/// Of two sites of four ranks. `kind` has parts that may differ in size by rank.
inline void expect_taken_for_much(OpKind kind, const Algorithm& two_levels, const Algorithm& direct,
                                  const Algorithm& ring) {
  const Sites sites{0, 0, 0, 0, 1, 1, 1, 1};
  const std::uint64_t mib = (1U << 20) / 8 / sites.size();  // elements of a part
  const auto takes = [&](const std::vector<std::uint64_t>& counts, const Algorithm& algorithm) {
    return is_taken(at_sites(kind, sites, counts), algorithm);
  };
  for (const std::uint64_t many : {4, 64, 256}) {
    EXPECT_TRUE(takes({many * mib}, two_levels)) << many;
  }
  EXPECT_TRUE(takes({mib / 4}, direct));
  // A part of one rank alone crosses once by a ring, too.
  EXPECT_TRUE(takes({512 * mib, 0, 0, 0, 0, 0, 0, 0}, ring));
}

}  // namespace pccl::test
