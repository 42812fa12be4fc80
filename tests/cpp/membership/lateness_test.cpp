#include <gtest/gtest.h>

#include "cast.h"
#include "membership/master.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::kEpoch;
using cast::member;
using cast::sent;
using cast::tell;

TEST(Lateness, who_has_not_issued_an_expired_operation_is_evicted_at_its_next_heartbeat) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  EXPECT_TRUE(tell(s, 1, Heartbeat{OpKey{1, 5}}).empty());
  EXPECT_TRUE(tell(s, 2, Heartbeat{OpKey{1, 5}}).empty());
  const Actions out = tell(s, 3, Heartbeat{OpKey{1, 4}});
  ASSERT_EQ(sent<Evicted>(out).size(), 1U);
  EXPECT_EQ(sent<Evicted>(out)[0].first, PeerId{3});
  EXPECT_EQ(s.proposal->members.size(), 2U);
}

TEST(Lateness, who_stands_at_the_boundary_already_is_not_late) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 2, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 0}}));
  EXPECT_TRUE(tell(s, 2, Heartbeat{OpKey{1, 0}}).empty());
  EXPECT_EQ(sent<Evicted>(tell(s, 3, Heartbeat{OpKey{1, 0}})).size(), 1U);
}

TEST(Lateness, where_programs_differ_about_an_operation_and_a_boundary_the_fewer_go) {
  const OpKey op{1, 2};
  const auto world = [&](const std::vector<std::uint64_t>& callers,
                         const std::vector<std::uint64_t>& standing) {
    State s = in_office({member(1), member(2), member(3)});
    for (const std::uint64_t p : standing) static_cast<void>(tell(s, p, Heartbeat{op}));
    for (const std::uint64_t p : standing) {
      EXPECT_TRUE(sent<Evicted>(tell(s, p, Vote{1, VoteKind::refresh, {}})).empty());
    }
    for (const std::uint64_t p : callers) {
      EXPECT_TRUE(sent<Evicted>(tell(s, p, Heartbeat{OpKey{1, 3}})).empty());
    }
    static_cast<void>(tell(s, callers.front(), Expired{kEpoch, op}));
    return s;
  };
  State s = world({1, 2}, {3});
  EXPECT_TRUE(tell(s, 1, Heartbeat{OpKey{1, 3}}).empty());
  Actions out = tell(s, 3, Heartbeat{op});
  ASSERT_EQ(sent<Evicted>(out).size(), 1U);
  EXPECT_EQ(sent<Evicted>(out)[0].first, PeerId{3});
  EXPECT_NE(sent<Evicted>(out)[0].second.text.find("operation 1.2"), std::string::npos);

  s = world({1}, {2, 3});
  EXPECT_TRUE(tell(s, 2, Heartbeat{op}).empty());
  EXPECT_TRUE(tell(s, 3, Heartbeat{op}).empty());
  out = tell(s, 1, Heartbeat{OpKey{1, 3}});
  ASSERT_EQ(sent<Evicted>(out).size(), 1U);
  EXPECT_EQ(sent<Evicted>(out)[0].first, PeerId{1});

  s = in_office({member(1), member(2)});  // as many: those at the boundary
  static_cast<void>(tell(s, 2, Heartbeat{op}));
  static_cast<void>(tell(s, 2, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, op}));
  EXPECT_TRUE(tell(s, 1, Heartbeat{OpKey{1, 3}}).empty());
  EXPECT_EQ(sent<Evicted>(tell(s, 2, Heartbeat{op})).size(), 1U);
}

/// The peers that are evicted when these say that they have come to `issued`, and are not late.
std::set<std::uint64_t> evicted_at(State& s, std::initializer_list<std::uint64_t> who, OpKey issued,
                                   bool overdue = false) {
  std::set<std::uint64_t> out;
  for (const std::uint64_t p : who) {
    for (const auto& [peer, message] :
         sent<Evicted>(tell(s, p, Heartbeat{issued, overdue, overdue}))) {
      out.insert(peer.value);
    }
  }
  return out;
}

using Peers = std::set<std::uint64_t>;

TEST(Lateness, one_that_names_an_operation_to_which_nobody_can_have_come_is_the_one_that_goes) {
  for (const OpKey far : {OpKey{std::uint64_t{1} << 40, 0}, OpKey{3, 0}}) {
    State s = in_office({member(1), member(2), member(3), member(4)});
    const auto out = sent<Evicted>(tell(s, 1, Expired{kEpoch, far}));
    ASSERT_EQ(out.size(), 1U);
    EXPECT_EQ(out[0].first, PeerId{1});
    EXPECT_TRUE(evicted_at(s, {2, 3, 4}, OpKey{1, 4}, true).empty());
  }
}

TEST(Lateness, one_that_votes_for_a_far_boundary_and_calls_it_expired_goes) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Vote{1000, VoteKind::refresh, {}}));
  const auto out = sent<Evicted>(tell(s, 1, Expired{kEpoch, OpKey{1, 0}}));
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].first, PeerId{1});
}

TEST(Lateness, an_operation_of_a_step_that_all_have_left_makes_nobody_late) {
  State s = in_office({member(1), member(2), member(3)}, 2);
  cast::report(s, 3).vote = VoteKind::refresh;  // at the last boundary: it has not come on yet
  cast::report(s, 3).step = 1;
  for (const std::uint64_t p : {1, 2}) static_cast<void>(tell(s, p, Heartbeat{OpKey{2, 1}}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 5}}));
  EXPECT_TRUE(sent<Evicted>(tell(s, 3, Heartbeat{OpKey{2, 0}})).empty());
}

TEST(Lateness, one_against_two_that_are_within_their_own_time_outs_evicts_nobody) {
  State s = in_office({member(1), member(2), member(3)});
  for (std::uint64_t i = 4; i < 20; ++i) {
    EXPECT_TRUE(sent<Evicted>(tell(s, 1, Expired{kEpoch, OpKey{1, i}})).empty());
    EXPECT_EQ(evicted_at(s, {1, 2, 3}, OpKey{1, 4}), Peers{});
  }
}

TEST(Lateness, one_at_a_boundary_against_two_that_are_within_their_own_time_outs_evicts_nobody) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 0}}));
  EXPECT_EQ(evicted_at(s, {2, 3}, OpKey{1, 4}), Peers{});
  EXPECT_EQ(evicted_at(s, {2, 3}, OpKey{1, 4}, true), (Peers{2})) << "3 is missing then";
}

TEST(Lateness, two_of_three_whose_programs_hang_go_one_after_the_other) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  EXPECT_EQ(evicted_at(s, {2}, OpKey{1, 4}, true), Peers{2});
  s = in_office({member(1), member(3)});
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 4}), Peers{3}) << "of two nobody can tell who lies";
}

TEST(Lateness, what_two_say_counts_whatever_the_third_says_of_itself) {
  State s = in_office({member(1), member(2), member(3)});
  s.newest_commit[0] = OpKey{1, 2};
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 3}), Peers{});
  static_cast<void>(tell(s, 3, Expired{kEpoch, OpKey{1, 2}}));  // hides nothing
  static_cast<void>(tell(s, 2, Expired{kEpoch, OpKey{1, 5}}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 3}), Peers{3});

  s = in_office({member(1), member(2), member(3)});
  s.newest_commit[0] = OpKey{1, 2};
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
    static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 0}}));
  }
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 3}), Peers{3});
}

TEST(Lateness, nobody_denies_to_be_late_for_ever) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  s.now_s = 100;
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  static_cast<void>(step(s, Clock{1899, 0}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 0}), Peers{});
  static_cast<void>(step(s, Clock{1900, 0}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 0}), Peers{3});
}

TEST(Lateness, an_accuser_that_waits_in_several_operations_counts_from_the_first_that_is_open) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  s.now_s = 100;
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 5}), Peers{});
  for (std::uint64_t now = 100; now < 1900; now += 60) {
    static_cast<void>(step(s, Clock{now, 0}));
    for (const std::uint64_t i : {4U, 6U, 7U, 4U}) {  // 4 has been issued by both
      static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, i}}));
    }
    EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 5}), Peers{});
  }
  static_cast<void>(step(s, Clock{1900, 0}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 5}), Peers{3});
}

TEST(Lateness, who_goes_to_and_fro_has_not_come_further) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  s.now_s = 100;
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  static_cast<void>(tell(s, 3, Heartbeat{OpKey{1, 1}, false, false}));
  static_cast<void>(step(s, Clock{1000, 0}));
  static_cast<void>(tell(s, 3, Heartbeat{OpKey{1, 0}, false, false}));
  static_cast<void>(tell(s, 3, Heartbeat{OpKey{1, 1}, false, false}));
  static_cast<void>(step(s, Clock{1900, 0}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 0}), Peers{3});
}

/// A third one keeps data back, or the member that waits says so and lies.
TEST(Lateness, who_waits_in_an_operation_is_not_late_for_the_next_one) {
  State s = in_office({member(1), member(2), member(3)});
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Heartbeat{OpKey{1, 2}, false, false}));
    static_cast<void>(tell(s, p, Done{kEpoch, {OpKey{1, 0}}}));
    static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 1}}));
  }
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 1}), Peers{}) << "it is not done with 1.0";
  static_cast<void>(step(s, Clock{1799, 0}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 1}), Peers{});
  State late = s;
  static_cast<void>(tell(late, 3, Done{kEpoch, {OpKey{1, 0}}}));
  EXPECT_EQ(evicted_at(late, {3}, OpKey{1, 1}), Peers{3});
  static_cast<void>(step(s, Clock{1800, 0}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 1}), Peers{3}) << "not for ever";
}

TEST(Lateness, who_waits_in_an_operation_that_nobody_else_has_called_is_late) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 3, Heartbeat{OpKey{1, 1}, false, false}));
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
    static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 0}}));
  }
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 1}), Peers{3}) << "the programs differ";
}

TEST(Lateness, nobody_keeps_an_operation_from_being_committed_for_ever) {
  State s = in_office({member(1), member(2), member(3)});
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Done{kEpoch, {OpKey{1, 0}, OpKey{1, 1}}}));
    static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 0}}));
    static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 1}}));  // hides nothing
  }
  static_cast<void>(step(s, Clock{2699, 0}));
  EXPECT_EQ(evicted_at(s, {1, 2, 3}, OpKey{1, 2}), Peers{});
  static_cast<void>(step(s, Clock{2700, 0}));
  State one = s;
  one.accusations.erase(PeerId{2});
  EXPECT_EQ(evicted_at(one, {1, 2, 3}, OpKey{1, 2}), Peers{}) << "on the word of one";
  EXPECT_EQ(evicted_at(s, {1, 2, 3}, OpKey{1, 2}), Peers{3});
}

TEST(Lateness, what_a_verdict_has_committed_is_done) {
  State s = in_office({member(1), member(2), member(3)});
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    Report& its = s.peers.at(PeerId{p}).report;
    its.issued = OpKey{1, 1};
    its.done = {OpKey{1, 0}};
  }
  static_cast<void>(tell(s, 1, Relinked{kEpoch, PeerId{2}}));
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    static_cast<void>(tell(s, p, Ready{s.proposal->id, s.peers.at(PeerId{p}).report}));
  }
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  const EpochId id = own(s)->id;
  for (const std::uint64_t p : {1U, 2U}) static_cast<void>(tell(s, p, Expired{id, OpKey{1, 1}}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 1}), Peers{3});
}

TEST(Lateness, a_completion_that_is_repeated_after_the_commit_hides_no_member_that_is_late) {
  for (const std::uint64_t late : {2U, 3U}) {
    std::vector<Member> members;
    for (std::uint64_t p = 1; p <= late; ++p) members.push_back(member(p));
    State s = in_office(members);
    for (std::uint64_t p = 1; p <= late; ++p) {
      static_cast<void>(tell(s, p, Done{kEpoch, {OpKey{1, 0}}}));
    }
    static_cast<void>(tell(s, 1, Done{kEpoch, {OpKey{1, 0}}}));  // said again
    for (std::uint64_t p = 1; p < late; ++p) {
      static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 0}}));  // from before the commit
      static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 1}}));
    }
    EXPECT_EQ(evicted_at(s, {late}, OpKey{1, 1}), Peers{late});
  }
}

TEST(Lateness, a_failed_operation_hides_no_member_that_is_late_for_the_boundary) {
  State s = in_office({member(1), member(2), member(3)});
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    static_cast<void>(tell(s, p, Heartbeat{OpKey{1, 2}, false, false}));
    if (p < 3) static_cast<void>(tell(s, p, Done{kEpoch, {OpKey{1, 1}}}));
  }
  static_cast<void>(
      tell(s, 1, Mismatch{kEpoch, OpKey{1, 0}, Error{ErrorCode::mismatch, "rank 0 differs"}}));
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
    static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 2}}));
  }
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 2}), Peers{3});
}

TEST(Lateness, ranks_of_one_replica_count_as_one_that_says_so) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2),
                       member(4, "b", 1, 2), member(5, "c", 0, 2), member(6, "c", 1, 2)});
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
    static_cast<void>(tell(s, p, Expired{kEpoch, OpKey{1, 0}}));
  }
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 0}), Peers{});
  static_cast<void>(tell(s, 5, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 5, Expired{kEpoch, OpKey{1, 0}}));
  EXPECT_EQ(evicted_at(s, {3}, OpKey{1, 0}), Peers{3});
}

TEST(Lateness, an_accusation_ends_with_the_operation) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  static_cast<void>(tell(s, 1, Done{kEpoch, {OpKey{1, 4}}}));
  EXPECT_TRUE(s.accusations.empty());
}

TEST(Lateness, one_that_says_to_wait_in_an_operation_evicts_none_that_stands_at_the_boundary) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 2, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 1, Heartbeat{OpKey{1, 3}}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 2}}));
  EXPECT_EQ(evicted_at(s, {2}, OpKey{1, 2}), Peers{}) << "3 has not decided yet";
  static_cast<void>(tell(s, 3, Vote{1, VoteKind::refresh, {}}));
  EXPECT_EQ(evicted_at(s, {2, 3}, OpKey{1, 2}), Peers{});
  EXPECT_EQ(evicted_at(s, {1}, OpKey{1, 3}), Peers{1});
}

}  // namespace
}  // namespace pccl::master
