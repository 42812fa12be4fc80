// Sites as members name them become the numbers that schedules use.
#include "base/sites.h"

#include <gtest/gtest.h>

#include <vector>

namespace pccl {
namespace {

TEST(Sites, AreNumberedAsTheyComeAndLeftOutWhereTheyAreOfNoUse) {
  EXPECT_EQ(numbered_sites({7, 7, 3, 7}), (Sites{0, 0, 1, 0}));
  EXPECT_EQ(numbered_sites({}), Sites{});
  EXPECT_EQ(numbered_sites({4}), Sites{});
  EXPECT_EQ(numbered_sites({4, 4, 4}), Sites{});
  EXPECT_EQ(numbered_sites({4, 5, 6}), Sites{});
  std::vector<std::uint32_t> many(kSitesMax);
  for (std::uint32_t i = 0; i < many.size(); ++i) many[i] = i;
  EXPECT_EQ(numbered_sites(many), Sites{});  // nobody is beside another one
  many.push_back(0);
  EXPECT_EQ(numbered_sites(many), many);
  many.push_back(kSitesMax);
  EXPECT_EQ(numbered_sites(many), Sites{});  // too many
}

}  // namespace
}  // namespace pccl
