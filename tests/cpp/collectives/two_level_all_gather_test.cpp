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
  const Sites sites{0, 0, 0, 0, 1, 1, 1, 1};
  const std::uint64_t mib = (1U << 20) / 8 / sites.size();  // elements of a part
  const auto takes = [&](const std::vector<std::uint64_t>& counts, const Algorithm& algorithm) {
    return is_taken(at_sites(OpKind::all_gather, sites, counts), algorithm);
  };
  for (const std::uint64_t many : {4, 64, 256}) {
    EXPECT_TRUE(takes({many * mib}, two_level_all_gather)) << many;
  }
  EXPECT_TRUE(takes({mib / 4}, direct_all_gather));
  // A part of one rank alone crosses once by a ring, too.
  EXPECT_TRUE(takes({512 * mib, 0, 0, 0, 0, 0, 0, 0}, ring_all_gather));
}

}  // namespace
}  // namespace pccl::test
