// What is left of an earlier relayed link to the same peer does not count for the one that is up,
// and is not told.
#include <gtest/gtest.h>

#include "played_relay.h"

namespace pccl {
namespace {

using test::Passed;
using test::PlayedRelay;
using test::Tensor;

TEST(RelaySession,
     a_segment_that_an_earlier_link_left_half_way_is_neither_told_nor_counted_for_the_next) {
  PlayedRelay relay;
  relay.open();
  ASSERT_TRUE(relay.both_up());
  const Tensor tensor(8);
  relay.send(tensor, 8);
  const Passed late = relay.take(relay.a);
  const Placement at = relay.b.direct->begin(late);
  relay.b.links->drop(relay.a.id());
  relay.pass();
  ASSERT_EQ(relay.a.events.down.size(), 1U);

  relay.open();
  ASSERT_TRUE(relay.both_up());
  // The other end sends one segment over this link and closes it; the segment travels on a slower
  // lane.
  relay.send(tensor, 8);
  const Passed last = relay.take(relay.a);
  ASSERT_NE(last.header.route.session, late.header.route.session);
  relay.a.links->close(relay.b.id());
  relay.b.direct->finish(late, at);
  EXPECT_TRUE(relay.b.events.arrived.empty()) << "no callback comes for a link that has ended";
  const Passed down = relay.take(relay.a);
  ASSERT_TRUE(down.is(RelayKind::down));
  relay.b.direct->hear(last);
  relay.b.direct->hear(down);
  EXPECT_EQ(relay.b.events.arrived.size(), 1U);
  relay.pass();
  EXPECT_EQ(relay.b.events.down, std::vector<PeerId>{relay.a.id()});
}

TEST(RelaySession, an_end_waits_for_the_large_segments_that_the_other_end_has_sent) {
  PlayedRelay relay;
  relay.open();
  const Tensor tensor(100000);
  relay.send(tensor, 100000);
  const Passed last = relay.take(relay.a);
  const Placement at = relay.b.direct->begin(last);
  relay.a.links->close(relay.b.id());
  relay.b.direct->hear(relay.take(relay.a));
  relay.pass();
  EXPECT_TRUE(relay.b.events.down.empty()) << "the last segment is not here yet";
  relay.b.direct->finish(last, at);
  EXPECT_EQ(relay.b.events.arrived.size(), 1U);
  relay.pass();
  ASSERT_EQ(relay.b.events.down.size(), 1U);
  EXPECT_EQ(relay.b.events.reasons[0], "the peer has closed the link");
}

TEST(RelaySession, an_opening_that_was_late_over_an_earlier_relay_ends_no_link_over_the_next) {
  constexpr PeerId kNext{3};
  PlayedRelay relay;
  const auto open_over_next = [&] {
    relay.a.links->open_via(relay.b.handle(), kNext, 30000);
    relay.b.links->open_via(relay.a.handle(), kNext, 30000);
    while (!relay.a.direct->sent.empty() || !relay.b.direct->sent.empty()) {
      for (auto* from : {&relay.a, &relay.b}) {
        if (from->direct->sent.empty()) continue;
        const Passed frame = relay.take(*from);
        relay.other(*from).direct->hear(frame, frame.over);
      }
    }
  };
  relay.open();
  ASSERT_TRUE(relay.both_up());
  relay.a.links->give_up(relay.b.id(), "the peer in between leaves the run");
  relay.pass();
  ASSERT_EQ(relay.b.events.down.size(), 1U);
  // It has not heard of the next way.
  relay.b.links->open_via(relay.a.handle(), test::kBetween, 30000);
  const Passed late = relay.take(relay.b);
  ASSERT_TRUE(late.is(RelayKind::open));
  open_over_next();
  ASSERT_TRUE(relay.both_up());
  relay.a.direct->hear(late);
  relay.pass();
  EXPECT_TRUE(relay.both_up());
  EXPECT_EQ(relay.a.events.down.size(), 1U);
}

TEST(RelaySession, an_opening_over_the_next_relay_ends_the_link_once_the_owner_has_asked_for_it) {
  constexpr PeerId kNext{3};
  PlayedRelay relay;
  relay.open();
  ASSERT_TRUE(relay.both_up());
  relay.b.links->drop(relay.a.id());
  relay.b.direct->sent.clear();  // its end is not told
  relay.b.links->open_via(relay.a.handle(), kNext, 30000);
  const Passed opening = relay.take(relay.b);
  relay.a.direct->hear(opening, kNext);
  relay.pass();
  EXPECT_TRUE(relay.a.links->is_up(relay.b.id())) << "not asked for yet";
  relay.a.links->open_via(relay.b.handle(), kNext, 30000);
  relay.a.direct->hear(opening, kNext);
  for (int i = 0; i < 3; ++i) relay.loop.run_once(false);
  EXPECT_EQ(relay.a.events.down.size(), 1U);
}
}  // namespace
}  // namespace pccl
