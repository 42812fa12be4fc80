#include "collectives/algorithms.h"
#include "mixed_sites.h"
#include "runner.h"

namespace pccl::test {
namespace {

Schedule reduce_scatter(const CollectiveArgs& args) {
  return two_level_reduce_scatter(args).value();
}

TEST(TwoLevelReduceScatter, GivesEachRankItsSumInEveryInterleaving) {
  run_at_all_sites(OpKind::reduce_scatter, reduce_scatter);
}

TEST(TwoLevelReduceScatter, ASumCrossesOnceToItsRank) {
  for (const Sites& sites : kMixedSites) {
    const auto ranks = ranks_by_site(sites);
    EXPECT_EQ(far_elements(at_sites(OpKind::reduce_scatter, sites, {10}), reduce_scatter),
              10 * (sites.size() - ranks[0].size()));
  }
}

/// Little for each rank but the last one, whose part makes five chunks: the fifth one takes slots
/// that the first one has used.
Case in_chunks(const Sites& sites) {
  std::vector<std::uint64_t> counts;
  for (std::uint64_t i = 0; i + 1 < sites.size(); ++i) counts.push_back(i * i % 7 * 3);
  counts.push_back(5 * (2U << 20) / 8 - 3);
  Case c = at_sites(OpKind::reduce_scatter, sites, counts);
  c.segment_bytes = 256U << 10;
  return c;
}

TEST(TwoLevelReduceScatter, SumsInChunks) {
  run_and_check(in_chunks({0, 0, 0, 1, 1}), reduce_scatter);
  run_and_check(in_chunks({0, 0, 1, 1, 2, 2}), reduce_scatter);
}

TEST(TwoLevelReduceScatter, AChunkTakesNoSlotThatIsInUse) {
  for (const Sites& sites : kMixedSites) {
    const Case c = in_chunks(sites);
    std::vector<CollectiveArgs> args;
    std::vector<Schedule> schedules;
    for (std::uint32_t rank = 0; rank < c.size; ++rank) {
      args.push_back(args_of(c, rank));
      schedules.push_back(reduce_scatter(args.back()));
    }
    for (const bool in_place : {false, true}) {
      EXPECT_EQ(check_schedules(schedules, args, in_place).text, "") << c.text();
    }
  }
}

TEST(TwoLevelReduceScatter, TakesLittleScratchMemory) {
  Sites many(992);
  for (std::uint32_t i = 0; i < many.size(); ++i) many[i] = i % 16;
  std::vector<Sites> all = kMixedSites;
  all.push_back(many);
  for (const Sites& sites : all) {
    for (const std::uint64_t elements : {1U << 10, 1U << 21}) {
      const CollectiveArgs args = args_of(at_sites(OpKind::reduce_scatter, sites, {elements}), 1);
      EXPECT_LE(reduce_scatter(args).scratch_bytes, 65U << 20) << sites.size();
    }
  }
}

TEST(TwoLevelReduceScatter, IsNotTakenWhereSumsWouldTakeMuchMemory) {
  // Each of three ranks would sum for 332 others.
  Sites three(1000, 1);
  three[0] = three[1] = three[2] = 0;
  const CollectiveArgs args = args_of(at_sites(OpKind::reduce_scatter, three, {1024}), 1);
  EXPECT_FALSE(two_level_reduce_scatter(args).has_value());
  EXPECT_EQ(build_schedule(args).steps.size(), direct_reduce_scatter(args).steps.size());
}

TEST(TwoLevelReduceScatter, IsTakenForMuchOfRanksAtSites) {
  expect_taken_for_much(OpKind::reduce_scatter, reduce_scatter, direct_reduce_scatter,
                        ring_reduce_scatter);
}

}  // namespace
}  // namespace pccl::test
