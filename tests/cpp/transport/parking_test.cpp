// Links that a peer has dialled and nobody here wants: what is kept of them, and how long.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/limits.h"
#include "recorder.h"
#include "support.h"
#include "transport/transport.h"

namespace pccl {
namespace {

using test::bytes_of;
using test::Pair;

TEST(Parking, who_closes_a_link_that_nobody_asked_for_does_not_wait_for_its_reader) {
  Pair pair;
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  bool done = false;
  const test::Stopwatch watch;
  pair.low.links->shutdown(30000, [&] { done = true; });
  ASSERT_TRUE(pair.until([&] { return done; }));
  EXPECT_LT(watch.ms(), static_cast<std::int64_t>(kHandshakeMs));
  EXPECT_EQ(pair.high.events.ups, 0);
}

TEST(Parking, one_that_was_cut_off_keeps_no_descriptors) {
  Pair pair;
  const test::BarePeer peer(pair, test::key_below(pair.high_id()), 7, 2);
  for (const auto& client : peer.clients) EXPECT_FALSE(client->closed());
  ::shutdown(peer.clients[0]->fd(), SHUT_WR);
  ASSERT_TRUE(test::poll_until(
      pair.loop, [&] { return peer.clients[0]->closed() && peer.clients[1]->closed(); }));
}

TEST(Parking, one_with_data_in_it_is_kept_whatever_came_after_them) {
  Pair pair;
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  pair.low.links->send_control(pair.high_id(), bytes_of("early"));
  pair.low.links->close(pair.high_id());
  bool later = false;
  const auto timer = pair.loop.timer(1000, 0, [&] { later = true; });
  ASSERT_TRUE(pair.until([&] { return later; }));
  pair.high.links->open(pair.low.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.down.empty(); }));
  ASSERT_EQ(pair.high.events.controls.size(), 1U);
  EXPECT_EQ(pair.high.events.controls[0], "early");
}

}  // namespace
}  // namespace pccl
