// What an engine keeps of the fixed groups that it has closed, and until when.
#include "engine/closed_groups.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

constexpr PeerId kLow{1};
constexpr PeerId kHigh{2};

OpDescriptor gather_to(std::int32_t root) {
  return {OpKind::gather, ReduceOp::none, DType::f32, root, 4};
}

ClosedGroup closed(std::uint64_t id) {
  ClosedGroup group{GroupId{id}, {}, "rank 0", {{kLow, "rank 1"}, {kHigh, "rank 2"}}};
  group.completed.add(OpKey{0, 5}, gather_to(1));
  return group;
}

AskIssued ask(std::uint64_t group, std::uint64_t index, std::int32_t root) {
  return ask_about(GroupId{group}, OpKey{0, index}, gather_to(root));
}

TEST(ClosedGroups, name_the_two_calls_where_they_differ) {
  ClosedGroups groups;
  groups.add(closed(7));
  const auto text = groups.difference(kHigh, ask(7, 5, 2));
  ASSERT_TRUE(text);
  EXPECT_EQ(text->find("rank 2 calls gather("), 0U) << *text;
  EXPECT_NE(text->find("root 2), rank 0 has completed gather("), std::string::npos) << *text;
  EXPECT_FALSE(groups.difference(kHigh, ask(7, 5, 1))) << "the same call";
  EXPECT_FALSE(groups.difference(kHigh, ask(7, 6, 2))) << "not completed here";
  EXPECT_FALSE(groups.difference(kHigh, ask(8, 5, 2))) << "another group";
  EXPECT_FALSE(groups.difference(PeerId{3}, ask(7, 5, 2))) << "no member";
}

TEST(ClosedGroups, keep_a_group_until_each_member_has_closed_it_or_is_gone) {
  ClosedGroups groups;
  groups.add(closed(7));
  groups.add(closed(8));
  groups.closed_by(kLow, GroupId{7});
  EXPECT_FALSE(groups.difference(kLow, ask(7, 5, 2)));
  EXPECT_TRUE(groups.difference(kHigh, ask(7, 5, 2)));
  groups.link_gone(kHigh);
  EXPECT_EQ(groups.size(), 1U);
  groups.closed_by(kLow, GroupId{8});
  EXPECT_EQ(groups.size(), 0U);
}

TEST(ClosedGroups, keep_no_more_than_the_newest) {
  ClosedGroups groups;
  for (std::uint64_t id = 0; id <= ClosedGroups::kMax; ++id) groups.add(closed(id));
  EXPECT_EQ(groups.size(), ClosedGroups::kMax);
  EXPECT_FALSE(groups.difference(kLow, ask(0, 5, 2)));
  EXPECT_TRUE(groups.difference(kLow, ask(ClosedGroups::kMax, 5, 2)));
  ClosedGroup nobody = closed(1000);
  nobody.others.clear();
  groups.add(std::move(nobody));
  EXPECT_TRUE(groups.difference(kLow, ask(1, 5, 2)))
      << "a group that nobody asks about takes no room";
}

}  // namespace
}  // namespace pccl
