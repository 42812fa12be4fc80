#include <gtest/gtest.h>

#include "cast.h"
#include "membership/master.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::kEpoch;
using cast::member;
using cast::report;
using cast::sent;
using cast::tell;

TEST(Connections, connections_that_ended_while_it_was_stopped_are_awaited_with_patience) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(step(s, Clock{100}));
  static_cast<void>(step(s, Woke{}));
  Actions out = step(s, PeerDisconnected{PeerId{1}});
  ASSERT_EQ(cast::all<StartTimer>(out).size(), 1U);
  EXPECT_EQ(cast::all<StartTimer>(out)[0].kind, TimerKind::patience);
  EXPECT_EQ(s.seats.at(PeerId{1}).awaited, TimerKind::patience);
  static_cast<void>(step(s, Clock{110}));
  out = step(s, PeerDisconnected{PeerId{2}});
  EXPECT_EQ(cast::all<StartTimer>(out).at(0).kind, TimerKind::absence) << "long awake";
}

TEST(Connections, a_lost_link_to_a_member_whose_connection_has_closed_is_evidence) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(step(s, PeerDisconnected{PeerId{3}}));
  EXPECT_EQ(sent<Propose>(tell(s, 1, Suspect{kEpoch, PeerId{3}, false})).size(), 2U);
}

TEST(Connections, the_evidence_may_come_in_either_order) {
  State s = in_office({member(1), member(2), member(3)});
  EXPECT_TRUE(tell(s, 1, Suspect{kEpoch, PeerId{3}, false}).empty());
  EXPECT_EQ(sent<Propose>(step(s, PeerDisconnected{PeerId{3}})).size(), 2U);
}

TEST(Connections, an_expelled_member_cannot_come_back_before_the_next_start) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 0}}));
  const Report old = report(s, 2);
  static_cast<void>(tell(s, 2, Heartbeat{OpKey{1, 0}}));
  const Actions out = step(s, PeerConnected{Hello{"", member(2), old, false, {}}});
  EXPECT_EQ(sent<Propose>(out).size(), 0U);
  EXPECT_FALSE(s.peers.contains(PeerId{2}));
}

TEST(Connections, an_epoch_that_the_register_does_not_know_stops_everything) {
  State s;
  s.config.min_peers = 1;
  static_cast<void>(step(s, TakenOver{Register{}}));
  static_cast<void>(step(s, RegisterWritten{Register{1, std::nullopt, 0, false}, true}));
  static_cast<void>(step(s, FoundingOver{}));
  Report lost;
  lost.started = lost.accepted = EpochId::make(3, 7);
  const Actions out = step(s, PeerConnected{Hello{"", member(1), lost, false, {}}});
  ASSERT_EQ(cast::all<Say>(out).size(), 1U);
  EXPECT_NE(cast::all<Say>(out)[0].text.find("3.7"), std::string::npos);
  const Actions newcomer = step(s, PeerConnected{Hello{"", member(2), Report{}, false, {}}});
  EXPECT_TRUE(sent<Propose>(newcomer).empty()) << "no other run is founded beside it";
  EXPECT_FALSE(sent<Propose>(step(s, PeerDisconnected{PeerId{1}})).empty());
}

TEST(Connections, a_newer_attempt_of_a_replica_ends_the_older_one_that_is_here_or_awaited) {
  for (const bool here : {true, false}) {
    State s = in_office({member(1), member(2, "r")});
    if (!here) static_cast<void>(step(s, PeerDisconnected{PeerId{2}}));
    Member newer = member(3, "r");
    newer.place.attempt = 1;
    const Actions out = step(s, PeerConnected{Hello{"", newer, Report{}, false, {}}});
    EXPECT_FALSE(s.peers.contains(PeerId{2}));
    EXPECT_EQ(sent<Evicted>(out).size(), here ? 1U : 0U);
    EXPECT_EQ(sent<Propose>(out).size(), 1U) << "the others go on at once";
  }
}

TEST(Connections, a_standby_and_a_hello_that_is_refused_close_the_connection_and_nothing_else) {
  State standby;
  const Actions closed = step(standby, PeerConnected{Hello{"", member(1), Report{}, false, {}}});
  EXPECT_EQ(closed.size(), 1U);
  EXPECT_EQ(cast::all<Close>(closed).size(), 1U);
  EXPECT_TRUE(standby.peers.empty());

  State s = in_office({member(1), member(2)});
  const Actions refused =
      step(s, PeerConnected{Hello{"another run", member(3), Report{}, false, {}}});
  EXPECT_EQ(sent<Refuse>(refused).size(), 1U);
  EXPECT_EQ(cast::all<Close>(refused).size(), 1U);
  EXPECT_FALSE(s.peers.contains(PeerId{3}));
  EXPECT_TRUE(s.running) << "the members go on";
}

}  // namespace
}  // namespace pccl::master
