#include "base/limits.h"
#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

/// Sites of one to four ranks, in a row and mixed, and two to five of them.
const std::vector<Sites> kSites{
    {0, 0, 1, 1},          {0, 1, 1},          {0, 0, 1},
    {0, 1, 0, 1},          {0, 0, 0, 1, 1},    {0, 1, 1, 1, 1},
    {0, 0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 1, 2, 2, 2},
    {0, 0, 1, 2, 1, 0},    {0, 0, 1, 2, 3, 4}, {0, 0, 0, 1, 1, 2, 3, 3}};

Case of(const Sites& sites, std::uint64_t count, ReduceOp reduce = ReduceOp::sum) {
  return {.kind = OpKind::all_reduce,
          .reduce = reduce,
          .size = static_cast<std::uint32_t>(sites.size()),
          .counts = {count},
          .lines = {80'000, 20'000, 0, sites}};
}

/// So many elements that there are several chunks, of which some wait for others.
std::uint64_t many(const Sites& sites) { return sites.size() * (200U << 10) / 8 * 3 + 5; }

TEST(TwoLevels, GiveTheSumAtEveryRankInEveryInterleaving) {
  for (const Sites& sites : kSites) {
    for (const std::uint64_t count : {0, 1, 2, 3, 7, 24, 101}) {
      for (const ReduceOp reduce : {ReduceOp::sum, ReduceOp::avg}) {
        Case c = of(sites, count, reduce);
        for (c.seed = 1; c.seed <= 6; ++c.seed) {
          c.in_place = c.seed % 2 == 0;
          run_and_check(c, two_level_all_reduce);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(TwoLevels, GiveItInSeveralChunks) {
  for (const Sites& sites : kSites) {
    for (const bool in_place : {false, true}) {
      Case c = of(sites, many(sites));
      c.in_place = in_place;
      c.segment_bytes = 64U << 10;
      run_and_check(c, two_level_all_reduce);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TwoLevels, EvaluateTheSameExpressionAtAllRanks) {
  for (const Sites& sites : kSites) {
    for (const bool in_place : {false, true}) {
      Case c = of(sites, 43);
      c.in_place = in_place;
      expect_one_expression_of(c, two_level_all_reduce);
      if (HasFatalFailure()) return;
    }
  }
}

/// Bytes that ranks of site 0 send to other sites.
std::uint64_t far_bytes(const Sites& sites, std::uint64_t count) {
  std::uint64_t bytes = 0;
  for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
    if (sites[rank] != 0) continue;
    for (const Step& step : two_level_all_reduce(args_of(of(sites, count), rank)).steps) {
      if (step.kind == StepKind::send && sites[step.peer] != 0) bytes += step.from.bytes;
    }
  }
  return bytes;
}

TEST(TwoLevels, SendATensorOnceBetweenTwoSites) {
  for (const Sites& sites : {kSites[0], kSites[1], kSites[4], kSites[6]}) {
    EXPECT_EQ(far_bytes(sites, 96'000), 8U * 96'000);
  }
  EXPECT_EQ(far_bytes(kSites[7], 96'000), 8U * 96'000 * 4 / 3);  // three: 2 (k - 1) / k
}

TEST(TwoLevels, ARankIsNeverFurtherAheadThanIsKept) {
  constexpr std::uint64_t kBytes = 1U << 30;
  const Sites sites{0, 0, 1, 1};
  const Schedule schedule = two_level_all_reduce(args_of(of(sites, kBytes / 8), 0));
  // What has been sent to the other site when a send waits for nothing that comes from there.
  std::vector<std::size_t> came;
  std::uint64_t free_bytes = 0;
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const bool far = step.kind != StepKind::copy && sites[step.peer] != 0;
    if (far && receives(step.kind)) came.push_back(i);
    if (!far || step.kind != StepKind::send) continue;
    const bool waits = std::any_of(step.after.begin(), step.after.end(), [&](std::uint32_t s) {
      return std::find(came.begin(), came.end(), s) != came.end();
    });
    if (!waits) free_bytes += step.from.bytes;
  }
  EXPECT_EQ(free_bytes, 64U << 20);
  EXPECT_LE(schedule.steps.size(), 64U * 6);
}

TEST(Sites, AreNumberedAsTheyComeAndLeftOutWhereTheyAreOfNoUse) {
  EXPECT_EQ(numbered_sites({7, 7, 3, 7}), (Sites{0, 0, 1, 0}));
  EXPECT_EQ(numbered_sites({}), Sites{});
  EXPECT_EQ(numbered_sites({4}), Sites{});
  EXPECT_EQ(numbered_sites({4, 4, 4}), Sites{});
  EXPECT_EQ(numbered_sites({4, 5, 6}), Sites{});
  std::vector<std::uint32_t> many(kSitesMax + 1);
  for (std::uint32_t i = 0; i < many.size(); ++i) many[i] = i;
  many.push_back(0);
  EXPECT_EQ(numbered_sites(many), Sites{});
  many.erase(many.begin());
  EXPECT_EQ(numbered_sites(many).size(), 0U);  // nobody is beside another one
  many.push_back(many.back());
  EXPECT_EQ(numbered_sites({1, 1}), Sites{});
}

}  // namespace
}  // namespace pccl::test
