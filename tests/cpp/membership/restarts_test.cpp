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

/// The epoch that is proposed, or runs.
EpochId newest(const State& s) { return s.proposal ? s.proposal->id : s.held->epoch->id; }

Actions back(State& s, std::uint64_t p, std::uint64_t q) {
  return tell(s, p, Relinked{newest(s), PeerId{q}});
}

TEST(Restarts, a_link_that_is_back_for_the_eighth_time_in_one_operation_is_given_up) {
  State s = in_office({member(1), member(2), member(3)});
  for (int times = 1; times < 8; ++times) {
    EXPECT_EQ(sent<Propose>(back(s, 2, 3)).size(), 3U);
    EXPECT_TRUE(s.proposal->relays.empty());
  }
  static_cast<void>(back(s, 2, 3));
  ASSERT_EQ(s.proposal->relays.size(), 1U);
  EXPECT_EQ(s.proposal->relays[0], (Relay{PeerId{2}, PeerId{3}, PeerId{1}}));
}

TEST(Restarts, a_link_that_the_two_cannot_have_makes_nobody_begin_anew) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  cast::newcomer(s, member(9, "c", 0, 2));
  const auto nothing = [&](std::uint64_t p, std::uint64_t q) {
    EXPECT_TRUE(back(s, p, q).empty()) << p << " about " << q;
    EXPECT_TRUE(tell(s, p, Cannot{newest(s), PeerId{q}, "", {}}).empty()) << p << " about " << q;
    EXPECT_TRUE(tell(s, p, Suspect{newest(s), PeerId{q}, true}).empty()) << p << " about " << q;
    EXPECT_TRUE(s.running) << p << " about " << q;
  };
  nothing(1, 1);
  nothing(1, 4);     // of another peer group
  nothing(1, 9);     // no member yet
  nothing(9, 1);     // nor may that one say so
  nothing(1, 1234);  // of nobody
  EXPECT_TRUE(s.restarts.empty());
  EXPECT_FALSE(s.seats.at(PeerId{4}).suspected);
  EXPECT_EQ(sent<Propose>(back(s, 1, 3)).size(), 4U);
}

TEST(Restarts, one_that_says_of_all_its_links_that_they_are_back_for_ever_goes) {
  State s = in_office({member(1), member(2), member(3), member(4)});
  for (int times = 1; times <= 8; ++times) {
    for (const std::uint64_t q : {1U, 2U, 4U}) static_cast<void>(back(s, 3, q));
  }
  ASSERT_TRUE(s.proposal);
  EXPECT_EQ(ids_of(s.proposal->members), cast::peers({1, 2, 4}));
}

TEST(Restarts, what_is_committed_in_between_or_holds_for_a_minute_counts_no_more) {
  State s = in_office({member(1), member(2), member(3)});
  for (std::uint64_t times = 1; times < 30; ++times) {
    static_cast<void>(step(s, Clock{times * 60, 0}));
    static_cast<void>(back(s, 2, 3));
  }
  EXPECT_TRUE(s.proposal->relays.empty());
  s = in_office({member(1), member(2), member(3)});
  for (std::uint64_t times = 0; times < 30; ++times) {
    for (const std::uint64_t p : {1U, 2U, 3U}) {
      static_cast<void>(tell(s, p, Done{kEpoch, {OpKey{1, times}}}));
    }
    static_cast<void>(back(s, 2, 3));
    EXPECT_TRUE(s.proposal->relays.empty());
    s.proposal.reset();
    s.running = true;
  }
}

TEST(Restarts, a_member_that_connects_to_the_master_for_the_sixteenth_time_in_one_operation_goes) {
  State s = in_office({member(1), member(2), member(3)});
  Hello hello;
  hello.member = member(3);
  hello.report = cast::report(s, 3);
  for (int times = 1; times < 16; ++times) {
    EXPECT_TRUE(sent<Evicted>(step(s, PeerConnected{hello})).empty());
    EXPECT_TRUE(s.proposal);
  }
  const auto out = sent<Evicted>(step(s, PeerConnected{hello}));
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].first, PeerId{3});
  EXPECT_EQ(ids_of(s.proposal->members), cast::peers({1, 2}));
}

}  // namespace
}  // namespace pccl::master
