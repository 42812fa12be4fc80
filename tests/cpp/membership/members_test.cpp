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

TEST(Members, committed_operations_join_the_front_in_any_order_and_a_new_step_forgets_the_old) {
  OpSet set;
  for (const std::uint64_t index : {2U, 0U, 2U, 3U}) add(set, OpKey{4, index});
  EXPECT_EQ(set, (OpSet{OpKey{4, 1}, {OpKey{4, 2}, OpKey{4, 3}}}));
  add(set, OpKey{4, 1});
  EXPECT_EQ(set, (OpSet{OpKey{4, 4}, {}}));
  add(set, OpKey{4, 3});
  add(set, OpKey{3, 9});
  EXPECT_EQ(set, (OpSet{OpKey{4, 4}, {}})) << "these are committed already";
  add(set, OpKey{4, 6});
  add(set, OpKey{6, 1});
  EXPECT_EQ(set, (OpSet{OpKey{6, 0}, {OpKey{6, 1}}}));
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

TEST(Members, a_member_is_called_what_it_calls_itself_as_far_as_that_can_be_printed) {
  Member m = member(7);
  EXPECT_EQ(name_of({m}, m), "rank 0 (0000000000000007)");
  m.handle.name = "node7/4711";
  EXPECT_EQ(name_of({m}, m), "rank 0 (node7/4711)");
  m.handle.name = "a\x1b[2Jb\n\xc3\xa9\xff";
  EXPECT_EQ(name_of({m}, m), "rank 0 (a?[2Jb?\xc3\xa9?)");
  m.handle.name = "x\xe2\x80\xaey";  // turns the direction of what follows
  EXPECT_EQ(name_of(m.handle), "x?y");
}

TEST(Members, a_replica_of_eight_ranks_that_is_lost_is_one_text) {
  std::vector<Member> members;
  for (std::uint32_t i = 0; i < 16; ++i) {
    members.push_back(member(i + 1, i < 8 ? "a" : "b", i % 8, 8));
    members.back().handle.name = "n" + std::to_string(i);
  }
  std::vector<Change> changes;
  for (std::size_t i = 8; i < 16; ++i) changes.push_back({&members[i], "lost", ""});
  changes[3].reason = "silent for 10.0 s";
  changes[5].reason = "silent for 10.0 s";
  EXPECT_EQ(texts_of(members, changes),
            std::vector<std::string>{"rank 1 (replica b: n8, n9, n10, n11, n12, n13, n14, n15) "
                                     "lost: its ranks 3, 5: silent for 10.0 s"});
}

TEST(Members, single_ranks_and_different_fates_have_texts_of_their_own) {
  const std::vector<Member> members = {member(1), member(2), member(3, "c", 0, 2),
                                       member(4, "c", 1, 2)};
  const std::vector<Change> changes = {{&members[0], "left", ""},
                                       {&members[1], "lost", "why"},
                                       {&members[2], "lost", "an error"},
                                       {&members[3], "left", ""}};
  EXPECT_EQ(joined(texts_of(members, changes)),
            "rank 0 (0000000000000001) left; rank 1 (0000000000000002) lost: why; "
            "rank 2 of peer group 0 (0000000000000003, replica c) lost: an error; "
            "rank 0 of peer group 1 (0000000000000004, replica c) left");
}

TEST(Members, texts_are_counted_and_cut) {
  EXPECT_EQ(count_of(1, "member"), "1 member");
  EXPECT_EQ(count_of(0, "member"), "0 members");
  EXPECT_EQ(cut_text(std::string(2 * kTextBytesMax, 'x')).size(), kTextBytesMax);
}

}  // namespace
}  // namespace pccl
