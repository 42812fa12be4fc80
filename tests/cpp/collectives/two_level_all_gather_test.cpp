#include "collectives/algorithms.h"
#include "mixed_sites.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(TwoLevelAllGather, GivesAllPartsInEveryInterleaving) {
  run_at_all_sites(OpKind::all_gather, two_level_all_gather);
}

TEST(TwoLevelAllGather, APartCrossesOnceToEachSite) {
  for (const Sites& sites : kMixedSites) {
    const auto ranks = ranks_by_site(sites);
    EXPECT_EQ(far_elements(at_sites(OpKind::all_gather, sites, {10}), two_level_all_gather),
              10 * ranks[0].size() * (ranks.size() - 1));
  }
}

TEST(TwoLevelAllGather, IsTakenForMuchOfRanksAtSites) {
  expect_taken_for_much(OpKind::all_gather, two_level_all_gather, direct_all_gather,
                        ring_all_gather);
}

}  // namespace
}  // namespace pccl::test
