#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::proposed;
using cast::report;
using cast::sent;

const std::vector<Member> kThree = {member(1), member(2), member(3)};

Actions hear(State& s, std::uint64_t peer, PeerToMaster message) {
  return step(s, PeerMessage{PeerId{peer}, std::move(message)});
}

/// All members say that they have issued nothing in `step`; the actions of the last one.
Actions all_quiet(State& s, std::uint64_t in_step = 1) {
  Actions out;
  for (const Member& m : own(s)->members) {
    out = step(s, PeerMessage{m.peer(), Heartbeat{OpKey{in_step, 0}}});
  }
  return out;
}

Actions ready(State& s, std::uint64_t peer, bool calm) {
  Report r = report(s, peer);
  r.calm = calm;
  r.accepted = s.proposal->id;
  return hear(s, peer, Ready{s.proposal->id, r});
}

Actions written(State& s, const Actions& actions) {
  const auto writes = cast::all<WriteRegister>(actions);
  EXPECT_EQ(writes.size(), 1U);
  return step(s, RegisterWritten{writes.at(0).to, true});
}

TEST(Leaving, at_once_when_all_say_that_they_have_issued_nothing) {
  State s = in_office(kThree);
  EXPECT_TRUE(hear(s, 1, Leave{true}).empty()) << "who knows what the others do just now";
  const Actions out = all_quiet(s);
  EXPECT_EQ(proposed(out), (std::vector<PeerId>{PeerId{2}, PeerId{3}}));
  EXPECT_FALSE(s.proposal->boundary);
  EXPECT_TRUE(ready(s, 2, true).empty());
  const Actions started = written(s, ready(s, 3, true));
  EXPECT_EQ(sent<Left>(started).size(), 1U);
  ASSERT_EQ(sent<Start>(started).size(), 2U);
  EXPECT_EQ(sent<Start>(started)[0].second.verdict.pinned.size(), 3U) << "the numbering stays";
  EXPECT_TRUE(wants_boundary(s, s.held->pinned, own(s)->members));
  EXPECT_FALSE(s.wishes);
}

TEST(Leaving, a_wish_for_the_boundary_waits_for_it_until_it_is_repeated) {
  State s = in_office(kThree);
  static_cast<void>(hear(s, 1, Leave{false}));
  EXPECT_TRUE(all_quiet(s).empty());
  static_cast<void>(hear(s, 1, Leave{true}));
  EXPECT_EQ(proposed(all_quiet(s)).size(), 2U);
}

TEST(Leaving, what_was_said_before_the_wish_or_before_an_operation_does_not_count) {
  State s = in_office(kThree);
  static_cast<void>(all_quiet(s));
  EXPECT_TRUE(hear(s, 1, Leave{true}).empty());
  EXPECT_TRUE(hear(s, 2, Heartbeat{OpKey{1, 0}}).empty());
  EXPECT_TRUE(hear(s, 3, Heartbeat{OpKey{1, 0}}).empty());
  static_cast<void>(hear(s, 2, Done{EpochId::make(1, 1), {OpKey{1, 0}}}));
  EXPECT_TRUE(hear(s, 1, Heartbeat{OpKey{1, 0}}).empty());
  EXPECT_TRUE(hear(s, 2, Heartbeat{OpKey{1, 1}}).empty());
  EXPECT_TRUE(s.running);
}

TEST(Leaving, an_operation_issued_meanwhile_lets_the_boundary_of_that_step_decide) {
  State s = in_office(kThree);
  static_cast<void>(hear(s, 1, Leave{true}));
  static_cast<void>(all_quiet(s));
  const Actions again = ready(s, 2, false);
  EXPECT_EQ(proposed(again).size(), 3U) << "the same members";
  EXPECT_NE(sent<Propose>(again)[0].second.why.find("do so at the boundary"), std::string::npos);
  static_cast<void>(ready(s, 1, true));
  static_cast<void>(ready(s, 2, false));
  EXPECT_EQ(sent<Start>(written(s, ready(s, 3, true))).size(), 3U);
  EXPECT_TRUE(all_quiet(s).empty()) << "not twice in one step";
  EXPECT_EQ(proposed(all_quiet(s, 2)).size(), 2U) << "but in the next";
}

TEST(Leaving, a_replica_leaves_as_a_whole_and_all_its_ranks_are_asked) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  static_cast<void>(hear(s, 2, Leave{true}));
  for (const std::uint64_t p : {2, 3, 4}) {
    EXPECT_TRUE(hear(s, p, Heartbeat{OpKey{1, 0}}).empty());
  }
  EXPECT_EQ(proposed(hear(s, 1, Heartbeat{OpKey{1, 0}})),
            (std::vector<PeerId>{PeerId{3}, PeerId{4}}));
}

TEST(Leaving, when_all_leave_at_once_the_run_is_over) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(hear(s, 1, Leave{true}));
  static_cast<void>(hear(s, 2, Leave{true}));
  const Actions out = all_quiet(s);
  ASSERT_EQ(cast::all<WriteRegister>(out).size(), 1U);
  EXPECT_TRUE(cast::all<WriteRegister>(out)[0].to.over);
  EXPECT_EQ(sent<Left>(written(s, out)).size(), 2U);
}

TEST(Leaving, a_second_leaver_joins_the_first_and_a_loss_is_no_departure) {
  State s = in_office(kThree);
  static_cast<void>(hear(s, 1, Leave{true}));
  static_cast<void>(all_quiet(s));
  EXPECT_EQ(proposed(hear(s, 2, Leave{true})), std::vector<PeerId>{PeerId{3}});
  static_cast<void>(step(s, PeerGone{PeerId{2}, "silent"}));
  const Actions started = written(s, ready(s, 3, true));
  EXPECT_EQ(sent<Left>(started).size(), 1U);
  EXPECT_FALSE(s.left.contains(PeerId{2}));
}

TEST(Leaving, where_every_operation_takes_all_the_boundary_decides) {
  std::vector<Member> members = kThree;
  for (Member& m : members) m.raises = true;
  State s = in_office(members);
  static_cast<void>(hear(s, 1, Leave{true}));
  EXPECT_TRUE(all_quiet(s).empty());
}

TEST(Leaving, a_boundary_that_opens_meanwhile_takes_the_leaver_along) {
  State s = in_office(kThree);
  static_cast<void>(hear(s, 1, Leave{true}));
  static_cast<void>(all_quiet(s));
  for (const std::uint64_t p : {1, 2, 3}) {
    static_cast<void>(hear(s, p, Vote{1, VoteKind::refresh, cast::root(1, 'a')}));
  }
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_TRUE(s.proposal->boundary);
  EXPECT_EQ(s.proposal->members.size(), 2U);
  EXPECT_FALSE(sent<Propose>(ready(s, 2, false)).size() > 0) << "calm or not, this is a boundary";
}

}  // namespace
}  // namespace pccl::master
