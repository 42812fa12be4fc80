// What large messages on their way take together, over real sockets: liars that say they send a lot
// and do not, and honest senders beside them.
#include "transport/receive_budget.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/limits.h"
#include "base/protocol.h"
#include "support.h"
#include "transport/channel.h"
#include "transport/framing.h"
#include "transport/handshake.h"

namespace pccl {
namespace {

using Share = ReceiveBudget::Share;
using test::bytes_of;
using test::poll_until;

constexpr std::size_t kMiB = 1U << 20;

TEST(ReceiveBudget, what_is_granted_never_exceeds_the_limit_and_the_order_is_that_of_asking) {
  const auto all = std::make_shared<ReceiveBudget>(100);
  std::vector<int> granted;
  const auto ask = [&](std::size_t bytes, int name) {
    return std::make_unique<Share>(all, bytes, [&granted, name] { granted.push_back(name); });
  };
  auto first = ask(60, 1);
  auto second = ask(40, 2);
  EXPECT_FALSE(first->waits() || second->waits() || all->any_waits());
  auto large = ask(90, 3);
  auto small = ask(10, 4);
  auto gone = ask(10, 5);
  auto last = ask(100, 6);
  EXPECT_TRUE(large->waits() && small->waits() && last->waits());
  EXPECT_EQ(all->taken(), 100U);
  first.reset();
  EXPECT_TRUE(large->waits() && small->waits());  // a small one does not pass a large one
  EXPECT_EQ(all->taken(), 40U);
  gone.reset();
  second.reset();
  EXPECT_EQ(granted, (std::vector<int>{3, 4}));
  EXPECT_EQ(all->taken(), 100U);
  large.reset();
  EXPECT_TRUE(last->waits());
  small.reset();
  EXPECT_FALSE(last->waits() || all->any_waits());
  last.reset();
  EXPECT_EQ(all->taken(), 0U);
  EXPECT_EQ(granted, (std::vector<int>{3, 4, 6}));
}

/// A listener whose channels are trusted, and what has come over each.
struct Master {
  struct Peer {
    std::unique_ptr<Channel> channel;
    std::vector<std::size_t> arrived;  // lengths
    std::string closed;
  };
  Loop loop;
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<Peer*> order;  // in which messages arrived
  std::unique_ptr<ChannelListener> listener;
  std::vector<std::unique_ptr<Dial>> dials;

  explicit Master(const ChannelLimits& limits) {
    auto made = listen_channels(
        loop, "127.0.0.1", 0,
        [this](std::unique_ptr<Channel> channel) {
          Peer& peer = *peers.emplace_back(std::make_unique<Peer>());
          peer.channel = std::move(channel);
          peer.channel->set_events({[this, &peer](std::span<const std::byte> payload) {
                                      peer.arrived.push_back(payload.size());
                                      order.push_back(&peer);
                                    },
                                    [&peer](const std::string& reason) {
                                      peer.closed = reason;
                                      peer.channel.reset();
                                    }});
          peer.channel->trust();
        },
        limits);
    EXPECT_TRUE(made.ok()) << made.error().text;
    listener = std::move(made).value();
  }

  /// An honest sender, and its end here.
  std::pair<std::unique_ptr<Channel>, Peer*> connect() {
    std::unique_ptr<Channel> channel;
    const std::size_t before = peers.size();
    dials.push_back(dial_channel(loop, "127.0.0.1:" + std::to_string(listener->port()), 5000,
                                 [&](Result<std::unique_ptr<Channel>> made) {
                                   ASSERT_TRUE(made.ok()) << made.error().text;
                                   channel = std::move(made).value();
                                   channel->set_events({[](std::span<const std::byte>) {}, {}});
                                 }));
    EXPECT_TRUE(test::run_until(loop, [&] { return channel && peers.size() > before; }));
    return {std::move(channel), peers.back().get()};
  }
  /// One that says that it sends `bytes`, and then sends what it is told to.
  std::pair<std::unique_ptr<test::BareClient>, Peer*> liar(std::size_t bytes) {
    const std::size_t before = peers.size();
    auto client = std::make_unique<test::BareClient>(loop, listener->port());
    client->send(encode_opening({kProtocolVersion, Purpose::channel}));
    FrameHeader header;
    header.payload_bytes = static_cast<std::uint32_t>(bytes);
    HeaderBytes encoded;
    client->send(std::span<const std::byte>(encoded).first(encode_frame_header(header, encoded)));
    EXPECT_TRUE(test::run_until(loop, [&] { return peers.size() > before; }));
    return {std::move(client), peers.back().get()};
  }
  /// Sends `bytes` more of the message of a liar, which the kernel may take in pieces; false where
  /// the connection has ended before.
  [[nodiscard]] bool bring(test::BareClient& client, std::size_t bytes) {
    const std::vector<std::byte> piece(64U << 10);
    bool ended = false;
    const bool done = poll_until(loop, [&] {
      while (bytes > 0 && !ended) {
        const auto sent =
            ::send(client.fd(), piece.data(), std::min(bytes, piece.size()), MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) return false;
        if (sent < 0) {
          ended = true;
        } else {
          bytes -= static_cast<std::size_t>(sent);
        }
      }
      return true;
    });
    return done && !ended;
  }
};

/// Nobody is given up for being slow.
ChannelLimits patient(std::size_t bytes) {
  ChannelLimits limits;
  limits.large_bytes_max = bytes;
  limits.look_bytes_min = 0;
  return limits;
}

TEST(LargeMessages, without_room_a_connection_is_not_read_until_others_have_come) {
  Master master(patient(8 * kMiB));
  const auto [slow, slow_peer] = master.liar(6 * kMiB);
  ASSERT_TRUE(master.bring(*slow, kMiB));
  const auto [first, first_peer] = master.connect();
  const auto [second, second_peer] = master.connect();
  const auto [small, small_peer] = master.connect();
  first->send(bytes_of(std::string(5 * kMiB, 'a')));
  first->send(bytes_of("behind it"));
  ASSERT_TRUE(poll_until(master.loop, [&, p = first_peer] { return p->channel->held_back(); }));
  second->send(bytes_of(std::string(kMiB, 'b')));  // would fit, but comes later
  ASSERT_TRUE(poll_until(master.loop, [&, p = second_peer] { return p->channel->held_back(); }));
  small->send(bytes_of(std::string(kHandshakeBytesMax, 'c')));
  ASSERT_TRUE(poll_until(master.loop, [&, p = small_peer] { return p->arrived.size() == 1; }));
  EXPECT_LT(first_peer->channel->received_bytes(), 2 * kHandshakeBytesMax);
  EXPECT_TRUE(first_peer->arrived.empty() && second_peer->arrived.empty());
  EXPECT_FALSE(slow_peer->channel->held_back());
  ASSERT_TRUE(master.bring(*slow, 5 * kMiB));
  ASSERT_TRUE(poll_until(master.loop, [&, p = second_peer] { return p->arrived.size() == 1; }));
  ASSERT_TRUE(poll_until(master.loop, [&, p = first_peer] { return p->arrived.size() == 2; }));
  EXPECT_EQ(slow_peer->arrived, std::vector<std::size_t>{6 * kMiB});
  EXPECT_EQ(first_peer->arrived, (std::vector<std::size_t>{5 * kMiB, 9}));
  EXPECT_FALSE(first_peer->channel->held_back() || second_peer->channel->held_back());
}

TEST(LargeMessages, many_honest_ones_come_in_turn_through_little_room) {
  Master master(patient(3 * kMiB / 2));
  std::vector<std::unique_ptr<Channel>> senders;
  for (int i = 0; i < 12; ++i) senders.push_back(master.connect().first);
  for (const auto& sender : senders) {
    for (int i = 0; i < 3; ++i) sender->send(bytes_of(std::string(5 * kMiB / 4, 'x')));
  }
  ASSERT_TRUE(poll_until(master.loop, [&] { return master.order.size() == 36; }));
  for (const auto& peer : master.peers) EXPECT_EQ(peer->arrived.size(), 3U);
}

TEST(LargeMessages, a_slow_one_is_given_up_while_others_wait_and_only_then) {
  ChannelLimits limits;
  limits.large_bytes_max = 8 * kMiB;
  limits.look_ms = 200;
  limits.look_bytes_min = 64U << 10;
  Master master(limits);
  const auto [trickles, peer] = master.liar(8 * kMiB);
  ASSERT_TRUE(master.bring(*trickles, kMiB));
  const auto drip =
      master.loop.timer(10, 10, [&, client = trickles.get()] { client->send("drip"); });
  test::pass(master.loop, 1000);
  EXPECT_EQ(peer->closed, "");  // it disturbs nobody
  const auto [honest, honest_peer] = master.connect();
  honest->send(bytes_of(std::string(4 * kMiB, 'x')));
  ASSERT_TRUE(poll_until(master.loop, [&, p = honest_peer] { return p->arrived.size() == 1; }));
  EXPECT_EQ(peer->closed,
            "a message of 8388608 bytes comes too slowly, while others wait for room");
}

TEST(LargeMessages, a_fast_one_is_not_given_up_however_many_wait) {
  ChannelLimits limits;
  limits.large_bytes_max = 32 * kMiB;
  limits.look_ms = 1000;  // longer than a busy machine keeps this thread waiting
  limits.look_bytes_min = 64U << 10;
  Master master(limits);
  const auto [steady, peer] = master.liar(32 * kMiB);
  ASSERT_TRUE(master.bring(*steady, kMiB));
  const auto [waits, waiting] = master.connect();
  waits->send(bytes_of(std::string(4 * kMiB, 'x')));
  ASSERT_TRUE(poll_until(master.loop, [&, p = waiting] { return p->channel->held_back(); }));
  for (int i = 0; i < 31; ++i) {
    test::pass(master.loop, 100);
    ASSERT_TRUE(master.bring(*steady, kMiB));
  }
  ASSERT_TRUE(poll_until(master.loop, [&, p = waiting] { return p->arrived.size() == 1; }));
  EXPECT_EQ(peer->arrived.size(), 1U);
  EXPECT_EQ(peer->closed, "");
}

TEST(LargeMessages, a_crowd_of_liars_delays_an_honest_one_for_a_bounded_time) {
  ChannelLimits limits;
  limits.large_bytes_max = 64 * kMiB;
  limits.look_ms = 400;
  limits.look_bytes_min = 64U << 10;
  Master master(limits);
  std::vector<std::unique_ptr<test::BareClient>> liars;
  for (int i = 0; i < 24; ++i) {
    liars.push_back(master.liar(32 * kMiB).first);
    // Less does not stand in the queue. On a busy machine some are given up before.
    std::ignore = master.bring(*liars.back(), 300U << 10);
  }
  for (int i = 0; i < 100; ++i) liars.push_back(master.liar(64 * kMiB).first);
  const auto [honest, honest_peer] = master.connect();
  honest->send(bytes_of(std::string(40 * kMiB, 'x')));
  const test::Stopwatch watch;
  ASSERT_TRUE(poll_until(master.loop, [&, p = honest_peer] { return p->arrived.size() == 1; }));
  EXPECT_GE(watch.ms(), 400);
  EXPECT_EQ(honest_peer->closed, "");
}

TEST(LargeMessages, waiting_for_room_has_an_end) {
  ChannelLimits limits = patient(8 * kMiB);
  limits.look_ms = 50;
  limits.wait_ms = 300;
  Master master(limits);
  const auto [slow, slow_peer] = master.liar(8 * kMiB);
  ASSERT_TRUE(master.bring(*slow, kMiB));
  const auto [waits, peer] = master.connect();
  waits->send(bytes_of(std::string(4 * kMiB, 'x')));
  ASSERT_TRUE(poll_until(master.loop, [&, p = peer] { return !p->closed.empty(); }));
  EXPECT_EQ(peer->closed, "a message of 4194304 bytes has waited 300 ms for room");
  ASSERT_TRUE(master.bring(*slow, 7 * kMiB));
  EXPECT_TRUE(poll_until(master.loop, [&, p = slow_peer] { return p->arrived.size() == 1; }));
}

TEST(LargeMessages, a_connection_that_closes_gives_its_room_back) {
  Master master(patient(8 * kMiB));
  const auto [held, held_peer] = master.liar(8 * kMiB);
  ASSERT_TRUE(master.bring(*held, kMiB));
  const auto [waits, waiting] = master.liar(8 * kMiB);
  ASSERT_TRUE(master.bring(*waits, kMiB));
  const auto [honest, honest_peer] = master.connect();
  honest->send(bytes_of(std::string(4 * kMiB, 'x')));
  ASSERT_TRUE(poll_until(master.loop, [&, p = honest_peer] { return p->channel->held_back(); }));
  waiting->channel->close();  // in good order, as after a refusal
  held_peer->channel->close();
  ASSERT_TRUE(poll_until(master.loop, [&, p = honest_peer] { return p->arrived.size() == 1; }));
}

}  // namespace
}  // namespace pccl
