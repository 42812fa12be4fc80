#include "base/limits.h"
#include "collectives/algorithms.h"
#include "mixed_sites.h"
#include "runner.h"

namespace pccl::test {
namespace {

Case of(OpKind kind, const Sites& sites, std::vector<std::uint64_t> counts) {
  return {.kind = kind,
          .size = static_cast<std::uint32_t>(sites.size()),
          .counts = std::move(counts),
          .lines = {80'000, 20'000, 0, sites}};
}

Schedule reduce_scatter(const CollectiveArgs& args) {
  return two_level_reduce_scatter(args).value();
}

void run_at_all_sites(OpKind kind, const Algorithm& algorithm) {
  for (const Sites& sites : kMixedSites) {
    std::vector<std::uint64_t> odd;
    for (std::uint64_t i = 0; i < sites.size(); ++i) odd.push_back(i * i % 7);
    for (const auto& counts : {std::vector<std::uint64_t>{0}, {1}, {3}, {13}, odd}) {
      for (const ReduceOp reduce : {ReduceOp::sum, ReduceOp::avg}) {
        if (kind == OpKind::all_gather && reduce == ReduceOp::avg) continue;
        Case c = of(kind, sites, counts);
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

TEST(TwoLevelGather, GivesAllPartsInEveryInterleaving) {
  run_at_all_sites(OpKind::all_gather, two_level_all_gather);
}

TEST(TwoLevelGather, GivesEachRankItsSumInEveryInterleaving) {
  run_at_all_sites(OpKind::reduce_scatter, reduce_scatter);
}

/// Elements that ranks of site 0 send to other sites.
std::uint64_t far_elements(OpKind kind, const Sites& sites, const Algorithm& algorithm) {
  std::uint64_t bytes = 0;
  for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
    if (sites[rank] != 0) continue;
    for (const Step& step : algorithm(args_of(of(kind, sites, {10}), rank)).steps) {
      if (step.kind == StepKind::send && sites[step.peer] != 0) bytes += step.from.bytes;
    }
  }
  return bytes / 8;
}

TEST(TwoLevelGather, APartCrossesOnceToEachSiteAndASumToItsRank) {
  for (const Sites& sites : kMixedSites) {
    const auto ranks = ranks_by_site(sites);
    EXPECT_EQ(far_elements(OpKind::all_gather, sites, two_level_all_gather),
              10 * ranks[0].size() * (ranks.size() - 1));
    EXPECT_EQ(far_elements(OpKind::reduce_scatter, sites, reduce_scatter),
              10 * (sites.size() - ranks[0].size()));
  }
}

/// Little for each rank but the last one, whose part makes five chunks: the fifth one takes slots
/// that the first one has used.
Case in_chunks(const Sites& sites) {
  std::vector<std::uint64_t> counts;
  for (std::uint64_t i = 0; i + 1 < sites.size(); ++i) counts.push_back(i * i % 7 * 3);
  counts.push_back(5 * (2U << 20) / 8 - 3);
  Case c = of(OpKind::reduce_scatter, sites, counts);
  c.segment_bytes = 256U << 10;
  return c;
}

TEST(TwoLevelGather, SumsInChunks) {
  run_and_check(in_chunks({0, 0, 0, 1, 1}), reduce_scatter);
  run_and_check(in_chunks({0, 0, 1, 1, 2, 2}), reduce_scatter);
}

TEST(TwoLevelGather, AChunkTakesNoSlotThatIsInUse) {
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

TEST(TwoLevelGather, TakesLittleScratchMemory) {
  Sites many(992);
  for (std::uint32_t i = 0; i < many.size(); ++i) many[i] = i % 16;
  std::vector<Sites> all = kMixedSites;
  all.push_back(many);
  for (const Sites& sites : all) {
    for (const std::uint64_t elements : {1U << 10, 1U << 21}) {
      const CollectiveArgs args = args_of(of(OpKind::reduce_scatter, sites, {elements}), 1);
      EXPECT_LE(reduce_scatter(args).scratch_bytes, 65U << 20) << sites.size();
    }
  }
}

TEST(TwoLevelGather, IsNotTakenWhereSumsWouldTakeMuchMemory) {
  // Each of three ranks would sum for 332 others.
  Sites three(1000, 1);
  three[0] = three[1] = three[2] = 0;
  const CollectiveArgs args = args_of(of(OpKind::reduce_scatter, three, {1024}), 1);
  EXPECT_FALSE(two_level_reduce_scatter(args).has_value());
  EXPECT_EQ(build_schedule(args).steps.size(), direct_reduce_scatter(args).steps.size());
}

TEST(TwoLevelGather, IsTakenForMuchOfRanksAtSites) {
  const Sites sites{0, 0, 0, 0, 1, 1, 1, 1};
  const std::uint64_t mib = (1U << 20) / 8 / sites.size();  // elements of a part
  for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter}) {
    const bool gathers = kind == OpKind::all_gather;
    const auto is = [&](const std::vector<std::uint64_t>& counts, const Algorithm& algorithm) {
      const CollectiveArgs args = args_of(of(kind, sites, counts), 3);
      const Schedule built = build_schedule(args);
      const Schedule named = algorithm(args);
      return built.scratch_bytes == named.scratch_bytes && built.steps.size() == named.steps.size();
    };
    const auto levels = gathers ? two_level_all_gather : reduce_scatter;
    for (const std::uint64_t many : {4, 64, 256}) EXPECT_TRUE(is({many * mib}, levels)) << many;
    EXPECT_TRUE(is({mib / 4}, gathers ? direct_all_gather : direct_reduce_scatter));
    // A part of one rank alone crosses once by a ring, too.
    EXPECT_TRUE(
        is({512 * mib, 0, 0, 0, 0, 0, 0, 0}, gathers ? ring_all_gather : ring_reduce_scatter));
  }
}

}  // namespace
}  // namespace pccl::test
