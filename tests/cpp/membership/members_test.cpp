#include "membership/members.h"

#include <gtest/gtest.h>

#include "cast.h"

namespace pccl {
namespace {

using cast::member;

TEST(Members, an_operation_is_decided_below_the_front_or_by_name) {
  const OpSet set{OpKey{2, 1}, {OpKey{2, 3}, OpKey{2, 5}}};
  EXPECT_TRUE(contains(set, OpKey{1, 9}));
  EXPECT_TRUE(contains(set, OpKey{2, 0}));
  EXPECT_FALSE(contains(set, OpKey{2, 1}));
  EXPECT_TRUE(contains(set, OpKey{2, 5}));
  EXPECT_FALSE(contains(set, OpKey{3, 0}));
}

TEST(Members, a_rank_is_a_position_in_the_own_peer_group) {
  const std::vector<Member> members = {member(1, "a", 0, 2), member(2, "a", 1, 2),
                                       member(3, "b", 0, 2), member(4, "b", 1, 2)};
  EXPECT_EQ(rank_of(members, PeerId{2}), 0U);
  EXPECT_EQ(rank_of(members, PeerId{3}), 1U);
  EXPECT_EQ(rank_of(members, PeerId{9}), 4U);
  EXPECT_EQ(name_of(members, members[3]), "rank 1 of peer group 1 (0000000000000004, replica b)");
  EXPECT_TRUE(contains(members, PeerId{4}));
  EXPECT_FALSE(contains(members, PeerId{5}));
}

TEST(Members, texts_are_counted_and_cut) {
  EXPECT_EQ(count_of(1, "member"), "1 member");
  EXPECT_EQ(count_of(0, "member"), "0 members");
  EXPECT_EQ(cut_text(std::string(2 * kTextBytesMax, 'x')).size(), kTextBytesMax);
}

}  // namespace
}  // namespace pccl
