#include "base/limits.h"
#include "collectives/algorithms.h"
#include "mixed_sites.h"
#include "runner.h"

namespace pccl::test {
namespace {

Case of(const Sites& sites, std::uint64_t count) {
  return at_sites(OpKind::all_reduce, sites, {count});
}

/// So many elements that there are several chunks, of which some wait for others.
std::uint64_t many(const Sites& sites) { return sites.size() * (200U << 10) / 8 * 3 + 5; }

TEST(TwoLevelAllReduce, GivesTheSumAtEveryRankInEveryInterleaving) {
  for (const Sites& sites : kMixedSites) {
    for (const std::uint64_t count : {0, 1, 2, 3, 7, 24, 101}) {
      for (const ReduceOp reduce : {ReduceOp::sum, ReduceOp::avg}) {
        Case c = of(sites, count);
        c.reduce = reduce;
        for (c.seed = 1; c.seed <= 6; ++c.seed) {
          c.in_place = c.seed % 2 == 0;
          run_and_check(c, two_level_all_reduce);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(TwoLevelAllReduce, GivesItInSeveralChunks) {
  for (const Sites& sites : kMixedSites) {
    for (const bool in_place : {false, true}) {
      Case c = of(sites, many(sites));
      c.in_place = in_place;
      c.segment_bytes = 64U << 10;
      run_and_check(c, two_level_all_reduce);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TwoLevelAllReduce, EvaluatesTheSameExpressionAtAllRanks) {
  for (const Sites& sites : kMixedSites) {
    for (const bool in_place : {false, true}) {
      Case c = of(sites, 43);
      c.in_place = in_place;
      expect_one_expression_of(c, two_level_all_reduce);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TwoLevelAllReduce, SendsATensorOnceBetweenTwoSites) {
  for (const Sites& sites :
       {Sites{0, 0, 1, 1}, Sites{0, 1, 1}, Sites{0, 0, 0, 1, 1}, Sites{0, 0, 0, 0, 1, 1, 1}}) {
    EXPECT_EQ(far_elements(of(sites, 96'000), two_level_all_reduce), 96'000U);
  }
  // Of three: 2 (k - 1) / k.
  EXPECT_EQ(far_elements(of({0, 0, 1, 1, 2, 2}, 96'000), two_level_all_reduce), 96'000U * 4 / 3);
}

/// Bytes that one rank may be sent from other sites before it has sent anything there itself, at
/// each site's first rank; the most of them.
std::uint64_t free_bytes(const Sites& sites, std::uint64_t count) {
  std::vector<std::uint64_t> free(sites.size(), 0);
  for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
    const Schedule schedule = two_level_all_reduce(args_of(of(sites, count), rank));
    std::vector<bool> came(schedule.steps.size(), false);
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      const bool far = sites[step.peer] != sites[rank];
      came[i] = far && receives(step.kind);
      const auto came_before = [&](std::uint32_t s) { return came[s]; };
      const bool waits = std::any_of(step.after.begin(), step.after.end(), came_before) ||
                         (step.follows >= 0 && came[static_cast<std::size_t>(step.follows)]);
      if (far && step.kind == StepKind::send && !waits) free[step.peer] += step.from.bytes;
    }
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(TwoLevelAllReduce, ARankIsNeverFurtherAheadThanIsKept) {
  constexpr std::uint64_t kKept = 64U << 20;
  Sites lonely(32, 1);
  lonely[0] = 0;
  for (const Sites& sites : {Sites{0, 0, 1, 1}, Sites{0, 1, 1}, lonely, Sites{0, 0, 1, 1, 2, 2},
                             Sites{0, 0, 0, 1, 1, 2, 3, 3}}) {
    for (const std::uint64_t gib : {1, 5, 32}) {
      EXPECT_LE(free_bytes(sites, gib << 27), kKept + (1U << 10)) << sites.size() << ", " << gib;
    }
  }
}

TEST(TwoLevelAllReduce, WhatCrossesIsLargeEnoughForBulkLanesAndFewSteps) {
  const Sites fours{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  const Sites mixed{0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3};
  for (const Sites& sites :
       {Sites{0, 0, 1, 1}, Sites{0, 0, 0, 1, 1}, Sites{0, 0, 0, 0, 1, 1, 1}, fours, mixed}) {
    for (const std::uint64_t mib : {25, 64, 256}) {
      std::uint64_t bytes = 0;
      std::uint64_t small_bytes = 0;
      for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
        const Schedule made = two_level_all_reduce(args_of(of(sites, mib << 17), rank));
        EXPECT_LE(made.steps.size(), 64U * 8 * sites.size());
        for (const Step& step : made.steps) {
          if (step.kind != StepKind::send || sites[step.peer] == sites[rank]) continue;
          bytes += step.from.bytes;
          if (step.from.bytes <= kSmallSegmentBytesMax) small_bytes += step.from.bytes;
        }
      }
      EXPECT_LE(small_bytes * 10, bytes) << sites.size() << " ranks, " << mib << " MiB";
    }
  }
}

}  // namespace
}  // namespace pccl::test
