// Links that a peer has dialled and nobody here wants: what is kept of them, and how long.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

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
  pair.low.links->shutdown({30000}, [&] { done = true; });
  ASSERT_TRUE(pair.until([&] { return done; }));
  EXPECT_LT(watch.ms(), static_cast<std::int64_t>(kHandshakeMs));
  EXPECT_EQ(pair.high.events.ups, 0);
}

TEST(Parking, a_closed_link_is_seen_behind_the_joined_frames_of_its_encrypted_lanes) {
  LinkOptions options;
  options.plaintext = Plaintext::none;
  options.bulk_lanes = 2;
  Pair pair(options);
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  const test::Stopwatch joining;
  ASSERT_TRUE(test::poll_until(pair.loop, [&] { return joining.ms() > 500; }));
  bool done = false;
  const test::Stopwatch watch;
  pair.low.links->shutdown({30000}, [&] { done = true; });
  ASSERT_TRUE(pair.until([&] { return done; }));
  EXPECT_LT(watch.ms(), static_cast<std::int64_t>(kHandshakeMs) / 2);
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

TEST(Parking, a_link_waits_with_as_many_lanes_as_this_process_uses) {
  Pair pair;  // one bulk lane
  test::BarePeer peer(pair, test::key_below(pair.high_id()), 7, 2);
  EXPECT_EQ(test::BarePeer::verdict(*peer.dial(true)), LaneVerdict::no_such_link);
  pair.high.links->open(peer.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.ups == 1; }));
  EXPECT_EQ(test::BarePeer::verdict(*peer.dial(true)), LaneVerdict::accepted);
}

TEST(Parking, a_crowd_of_new_ids_takes_no_descriptors_of_others_and_half_of_all_at_most) {
  constexpr std::size_t kDescriptors = 120;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{kDescriptors, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  test::LogLines log;
  const auto pair = std::make_unique<Pair>();  // it looks how many there are
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const test::BarePeer sound(*pair, test::key_below(pair->high_id()), 7, 2, "127.0.0.2");
  std::vector<std::unique_ptr<test::BarePeer>> crowd;
  for (int i = 0; i < 60; ++i) {
    crowd.push_back(std::make_unique<test::BarePeer>(*pair, KeyPair::make(), 7, 2));
  }
  const auto kept = [&] {
    std::size_t count = 0;
    for (const auto& peer : crowd) {
      for (const auto& client : peer->clients) count += client->closed() ? 0 : 1;
    }
    return count;
  };
  ASSERT_TRUE(test::poll_until(pair->loop, [&] { return kept() + 2 <= kDescriptors / 2; }));
  EXPECT_GE(kept() + 4, kDescriptors / 2);
  for (const auto& client : sound.clients) EXPECT_FALSE(client->closed());
  EXPECT_FALSE(crowd.back()->clients[0]->closed()) << "the oldest go";
  EXPECT_EQ(log.count("that it has not asked for"), 1U) << log.all();
}

}  // namespace
}  // namespace pccl
