#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::peers;
using cast::root;
using cast::tell;
using cast::until_another;

State trio() { return in_office({member(1), member(2), member(3)}); }

void ready(State& s, std::uint64_t p) {
  static_cast<void>(tell(s, p, Ready{s.proposal->id, cast::report(s, p)}));
}

/// A new epoch of the same members is proposed.
void propose_same(State& s) {
  static_cast<void>(tell(s, 1, Relinked{EpochId::make(1, 1), PeerId{2}}));
  ASSERT_TRUE(s.proposal);
}

/// All stand at a boundary, with these states.
void vote(State& s, std::initializer_list<StateRoot> roots) {
  std::uint64_t p = 0;
  for (const StateRoot& r : roots) static_cast<void>(tell(s, ++p, Vote{1, VoteKind::refresh, r}));
  ASSERT_TRUE(s.proposal && s.proposal->boundary);
}

TEST(Unready, a_member_that_never_says_that_it_is_ready_goes_after_two_minutes) {
  State s = trio();
  propose_same(s);
  ready(s, 1);
  ready(s, 2);
  EXPECT_NEAR(static_cast<double>(until_another(s, 200)), 120, 1);
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2}));
  EXPECT_NE(s.seats.at(PeerId{3}).reason.find("it is not ready for epoch"), std::string::npos);
}

TEST(Unready, one_that_fetches_has_half_an_hour) {
  State s = trio();
  vote(s, {root(5, 'a'), root(5, 'a'), root(4, 'b')});
  ready(s, 1);
  ready(s, 2);
  const auto fetches = [&](std::uint64_t second) {
    const std::uint64_t bytes = second * 2 * kPullBytesPerSecondMin;
    for (const std::uint64_t p : {1U, 2U}) {
      static_cast<void>(tell(s, p, Heartbeat{OpKey{1, 0}, false, false, 0, bytes, 1ULL << 50}));
    }
    static_cast<void>(tell(s, 3, Heartbeat{OpKey{1, 0}, false, false, bytes}));
  };
  EXPECT_NEAR(static_cast<double>(until_another(s, 3000, fetches)), 1800, 1);
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2}));
}

TEST(Unready, one_that_says_it_fetches_and_is_served_by_nobody_goes_after_two_minutes) {
  State s = trio();
  vote(s, {root(5, 'a'), root(5, 'a'), root(4, 'b')});
  ready(s, 1);
  ready(s, 2);
  const auto fetches = [&](std::uint64_t second) {
    static_cast<void>(tell(s, 3, Heartbeat{OpKey{1, 0}, false, false, second << 30}));
  };
  EXPECT_NEAR(static_cast<double>(until_another(s, 3000, fetches)), 120, 1);
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2}));
}

TEST(Unready, one_whose_state_no_other_can_fetch_goes_and_not_those_that_need_it) {
  State s = trio();
  vote(s, {root(5, 'a'), root(4, 'b'), root(6, 'c')});
  ASSERT_EQ(s.plans.at(0).sources, peers({3})) << "of three states the newest";
  ready(s, 3);
  EXPECT_NEAR(static_cast<double>(until_another(s, 200)), 120, 1);
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2}));
  EXPECT_NE(s.seats.at(PeerId{3}).reason.find("have its state"), std::string::npos);
}

TEST(Unready, while_most_are_not_ready_for_no_known_reason_it_is_proposed_anew) {
  State s = trio();
  propose_same(s);
  ready(s, 1);
  EXPECT_NEAR(static_cast<double>(until_another(s, 200)), 120, 1);
  ASSERT_TRUE(s.proposal);
  EXPECT_EQ(s.proposal->members.size(), 3U);
}

TEST(Unready, each_proposal_has_its_own_time) {
  State s = trio();
  for (int times = 0; times < 3; ++times) {
    propose_same(s);
    ready(s, 1);
    ready(s, 2);
    EXPECT_EQ(until_another(s, 100), 0U);
    s.proposal.reset();
    s.running = true;
  }
}

}  // namespace
}  // namespace pccl::master
