// Lanes and links under a rate (LinkOptions::max_rate), over real sockets.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/limits.h"
#include "recorder.h"
#include "support.h"
#include "transport/rate_queue.h"
#include "transport/stream_lane.h"
#include "transport/transport.h"

namespace pccl {
namespace {

using test::Bulk;
using test::bytes_of;
using test::Pair;
using test::Tensor;

constexpr std::uint64_t kCap = 8'000'000;
constexpr MemoryToken kOfTensor = 1;

LinkOptions capped(std::uint32_t bulk_lanes = 1) {
  LinkOptions options;
  options.bulk_lanes = bulk_lanes;
  options.max_rate = kCap;
  return options;
}

/// The bytes a second that `received` grows by, once the burst is over: the most of three seconds,
/// since a busy machine sends less.
double rate_of(Pair& pair, const std::function<std::uint64_t()>& received) {
  EXPECT_TRUE(pair.until([&] { return received() > 2'000'000; }));
  double most = 0;
  for (int second = 0; second < 3 && most < 0.85 * kCap; ++second) {
    const std::uint64_t before = received();
    const test::Stopwatch watch;
    EXPECT_TRUE(test::poll_until(pair.loop, [&] { return watch.ms() >= 1000; }));
    const double bytes = static_cast<double>(received() - before);
    most = std::max(most, bytes * 1000.0 / static_cast<double>(watch.ms()));
  }
  return most;
}

class CappedRates : public testing::TestWithParam<std::pair<std::uint32_t, Plaintext>> {};

TEST_P(CappedRates, of_all_lanes_of_a_link_together_are_the_cap) {
  LinkOptions options = capped(GetParam().first);
  options.plaintext = GetParam().second;
  Bulk bulk(32U << 20, options);
  const auto& at = *bulk.pair.high.links;
  const double rate = rate_of(bulk.pair, [&] { return at.segment_bytes_received(); });
  EXPECT_NEAR(rate, kCap, 0.15 * kCap);
  EXPECT_GT(bulk.pair.low.links->rate_held_ms(), 500U);
  EXPECT_EQ(at.rate_held_ms(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Lanes, CappedRates,
                         testing::Values(std::pair{0U, Plaintext::all},
                                         std::pair{1U, Plaintext::all},
                                         std::pair{5U, Plaintext::all},
                                         std::pair{2U, Plaintext::none}));

TEST(CappedLinks, two_links_share_the_cap_and_none_starves) {
  LinkOptions options = capped();
  options.listen_hosts = {"127.0.0.1"};
  Bulk bulk(32U << 20, options);
  Pair& pair = bulk.pair;
  test::End third;
  third.links =
      std::move(make_tcp_links(pair.loop, third.events, test::key_above(pair.low_id()), options))
          .value();
  pair.low.links->open(third.handle(), 30000, false);
  third.links->open(pair.low.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return third.events.ups > 0 && pair.low.events.ups > 1; }));
  bulk.tensor.send(*pair.low.links, third.id(), 1U << 20, 2);
  ASSERT_TRUE(pair.until([&] { return third.links->segment_bytes_received() > 0; }));
  const std::uint64_t first_before = pair.high.links->segment_bytes_received();
  const std::uint64_t third_before = third.links->segment_bytes_received();
  const double rate = rate_of(pair, [&] {
    return pair.high.links->segment_bytes_received() + third.links->segment_bytes_received();
  });
  EXPECT_NEAR(rate, kCap, 0.15 * kCap);
  const auto first = static_cast<double>(pair.high.links->segment_bytes_received() - first_before);
  const auto second = static_cast<double>(third.links->segment_bytes_received() - third_before);
  EXPECT_NEAR(first / second, 1, 0.3);
}

TEST(CappedLinks, messages_pass_at_once_while_segments_of_all_sizes_wait) {
  for (const std::size_t segment_bytes : {1U << 20, 16U << 10}) {
    Pair pair(capped());
    pair.open();
    Tensor tensor(16U << 20);
    tensor.send(*pair.low.links, pair.high_id(), segment_bytes, kOfTensor);
    const auto& at = *pair.high.links;
    ASSERT_TRUE(pair.until([&] { return at.segment_bytes_received() > 1'000'000; }));
    for (std::size_t i = 1; i <= 20; ++i) {
      const test::Stopwatch watch;
      pair.low.links->send_control(pair.high_id(), bytes_of("urgent"));
      ASSERT_TRUE(pair.until([&] { return pair.high.events.controls.size() == i; }));
      EXPECT_LT(watch.ms(), 1000);  // some milliseconds, on a machine that has time
    }
    EXPECT_LT(at.segment_bytes_received(), 15U << 20) << "the rest still waits";
  }
}

TEST(CappedLinks, small_segments_have_the_rate_too) {
  Pair pair(capped());
  pair.open();
  Tensor tensor(32U << 20);
  tensor.send(*pair.low.links, pair.high_id(), 20000, kOfTensor);
  const double rate = rate_of(pair, [&] { return pair.high.links->segment_bytes_received(); });
  EXPECT_NEAR(rate, kCap, 0.15 * kCap);
}

TEST(CappedLinks, small_segments_do_not_wait_for_the_large_ones) {
  Bulk bulk(32U << 20, capped());
  Pair& pair = bulk.pair;
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived_bytes > 2'000'000; }));
  Tensor small(1000);
  bool came = false;
  pair.high.events.on_segment = [&](const SegmentHeader& header) {
    came = came || header.bytes == 1000;
  };
  small.send(*pair.low.links, pair.high_id(), 1000, 2);
  ASSERT_TRUE(pair.until([&] { return came; }));
  EXPECT_LT(pair.high.events.arrived_bytes, 20U << 20);
}

TEST(CappedLinks, a_message_comes_behind_the_small_sends_before_it_in_time) {
  LinkOptions options = capped();
  options.max_rate = 200'000;
  Pair pair(options);
  pair.open();
  const std::vector<std::byte> payload(50000);
  constexpr std::size_t kSends = 60;  // 3 MB: 15 s under the rate
  std::size_t before = 0;
  pair.high.events.on_control = [&] { before = pair.high.events.arrived.size(); };
  std::byte here[50000];
  pair.high.events.place = [&](const SegmentHeader&) { return Placement{here, 1, 0}; };
  const auto send = [&] {
    SegmentHeader header;
    header.kind = SegmentKind::eager;
    header.bytes = static_cast<std::uint32_t>(payload.size());
    pair.low.links->send_segment(pair.high_id(), header, payload.data(), kOfTensor, 0);
  };
  const test::Stopwatch watch;
  for (std::size_t i = 0; i < kSends; ++i) send();
  pair.low.links->send_control(pair.high_id(), bytes_of("behind them"));
  for (std::size_t i = 0; i < kSends; ++i) send();
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.controls.empty(); }));
  EXPECT_EQ(before, kSends) << "in order";
  EXPECT_GE(watch.ms(), 4500);
  EXPECT_LT(watch.ms(), 9000);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() > kSends; }));
  EXPECT_LT(pair.high.events.arrived.size(), 2 * kSends) << "the others wait for the rate";
}

TEST(CappedLinks, a_link_that_is_closed_sends_its_rest_under_the_rate) {
  const test::Stopwatch watch;
  Bulk bulk(6U << 20, capped(3));
  Pair& pair = bulk.pair;
  pair.low.links->close(pair.high_id());
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.down.empty(); }));
  EXPECT_TRUE(bulk.tensor.is(bulk.memory));
  EXPECT_GE(watch.ms(), 500);
}

TEST(CappedLinks, what_is_cancelled_or_dropped_while_it_waits_is_not_sent) {
  Bulk bulk(16U << 20, capped(2));
  Pair& pair = bulk.pair;
  ASSERT_TRUE(pair.until([&] { return pair.high.links->segment_bytes_received() > 1'000'000; }));
  Tensor small(4U << 20);
  small.send(*pair.low.links, pair.high_id(), 16U << 10, 2);
  pair.low.links->cancel(kOfTensor);
  pair.low.links->cancel(2);
  pair.low.links->send_control(pair.high_id(), bytes_of("after"));
  Tensor next(100'000, 7);
  std::vector<std::byte> memory(100'000);
  pair.high.events.place = test::place_in(memory);
  next.send(*pair.low.links, pair.high_id(), 1U << 20, 3);
  ASSERT_TRUE(pair.until([&] { return next.is(memory); }));
  EXPECT_LT(pair.high.links->segment_bytes_received(), 6U << 20) << "what had begun, and the next";
  EXPECT_EQ(pair.low.links->queued_bytes(pair.high_id()), 0U);
  pair.high.events.place = test::place_in(bulk.memory);
  bulk.tensor.send(*pair.low.links, pair.high_id(), 1U << 20, 4);
  pair.low.links->drop(pair.high_id());
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.down.empty(); }));
  const std::uint64_t held_ms = pair.low.links->rate_held_ms();
  EXPECT_FALSE(test::poll_until(pair.loop, [] { return false; }, 50));
  EXPECT_EQ(pair.low.links->rate_held_ms(), held_ms) << "nobody waits any more";
}

TEST(CappedLinks, what_waits_behind_something_that_is_cancelled_goes_on_by_itself) {
  Pair pair(capped());
  pair.open();
  EXPECT_FALSE(test::poll_until(pair.loop, [] { return false; }, 100)) << "bulk lanes join";
  const std::string message(30'000, 'm');  // in debt for a while
  for (int i = 0; i < 60; ++i) pair.low.links->send_control(pair.high_id(), bytes_of(message));
  Tensor first(1U << 20);
  Tensor second(1U << 20, 7);
  std::vector<std::byte> memory(1U << 20);
  pair.high.events.place = test::place_in(memory);
  first.send(*pair.low.links, pair.high_id(), 1U << 20, 1);
  second.send(*pair.low.links, pair.high_id(), 1U << 20, 2);
  pair.low.links->cancel(1);
  EXPECT_TRUE(pair.until([&] { return second.is(memory); }));
}

TEST(CappedLinks, memory_that_two_processes_share_is_no_network) {
  LinkOptions options = capped();
  options.max_rate = 100'000;
  options.shared_memory = true;
  Bulk bulk(16U << 20, options);
  ASSERT_TRUE(bulk.pair.until([&] { return bulk.pair.high.events.arrived_bytes == 16U << 20; }));
  EXPECT_EQ(bulk.pair.low.links->rate_held_ms(), 0U);
}

/// A lane of a socket under a rate, with the frames that a test gives it.
struct HeldLane : LaneOwner {
  explicit HeldLane(Lane::Kind kind) : rate(loop, 1'000'000) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    far = std::make_unique<Socket>(loop, fds[1]);
    lane = std::make_unique<StreamLane>(loop, *this, kind,
                                        std::make_unique<SocketStream>(loop, Socket(loop, fds[0])),
                                        false, &rate);
    lane->start();
  }
  void lane_message(FrameType, std::span<const std::byte>) override {}
  Placement lane_segment_header(const SegmentHeader&) override { return {}; }
  void lane_segment(const SegmentHeader&, const Placement&) override {}
  void lane_received(std::size_t, bool) override {}
  void lane_sent(const Outgoing& frame) override {
    ++sent;
    types.push_back(frame.frame.type);
  }
  void lane_joined(Lane&) override {}
  std::optional<Outgoing> lane_next(const Lane&) override {
    if (next == 0) return std::nullopt;
    --next;
    return segment(1U << 20, SegmentKind::collective);
  }
  void lane_over(Lane&, const std::string&, bool) override {}
  void lane_lost(Lane&, const std::string&, Leftover) override {}
  void lane_closed(Lane&) override { closed = true; }
  Outgoing segment(std::size_t bytes, SegmentKind kind) const {
    Outgoing out;
    out.frame.type = FrameType::segment;
    out.frame.payload_bytes = static_cast<std::uint32_t>(bytes);
    out.frame.segment.kind = kind;
    out.frame.segment.bytes = out.frame.payload_bytes;
    out.payload = memory.data();
    out.token = kOfTensor;
    out.tells = true;
    return out;
  }
  /// Reads what has come, and returns how much.
  std::size_t drain() const {
    std::vector<std::byte> into(1U << 20);
    std::size_t bytes = 0;
    while (true) {
      const auto got = ::recv(far->fd(), into.data(), into.size(), 0);
      if (got <= 0) return bytes;
      bytes += static_cast<std::size_t>(got);
    }
  }

  Loop loop;
  RateQueue rate;
  int fds[2] = {-1, -1};
  std::unique_ptr<Socket> far;
  std::vector<std::byte> memory = std::vector<std::byte>(1U << 20);
  std::size_t next = 0;
  std::size_t sent = 0;
  std::vector<FrameType> types;  // of those that were sent
  bool closed = false;
  std::unique_ptr<StreamLane> lane;
};

TEST(CappedLane, one_that_waits_does_not_keep_the_loop_busy) {
  HeldLane at(Lane::Kind::bulk);
  at.next = 4;
  at.lane->flush();
  EXPECT_EQ(at.rate.waiting(), 1U);
  bool over = false;
  int rounds = 0;
  const auto timer = at.loop.timer(500, 0, [&] { over = true; });
  while (!over) {
    at.loop.run_once(true);
    at.drain();
    ++rounds;
  }
  EXPECT_LT(rounds, 300);  // 50 ticks, some rounds for each
}

TEST(CappedLane, one_that_is_ended_or_freed_waits_no_more) {
  for (const bool frees : {false, true}) {
    for (const Lane::Kind kind : {Lane::Kind::small, Lane::Kind::bulk}) {
      HeldLane at(kind);
      at.next = 4;
      at.lane->flush();
      if (kind == Lane::Kind::small) at.lane->send(at.segment(1000, SegmentKind::collective));
      EXPECT_EQ(at.rate.waiting(), 1U);
      EXPECT_TRUE(at.lane->sent().held);
      EXPECT_FALSE(at.lane->idle());
      if (frees) {
        at.lane.reset();
      } else {
        at.lane->end();
        EXPECT_FALSE(at.lane->sent().held);
      }
      EXPECT_EQ(at.rate.waiting(), 0U);
      const std::uint64_t held_ms = at.rate.held_ms();
      EXPECT_FALSE(test::run_until(at.loop, [] { return false; }, 50));
      EXPECT_EQ(at.rate.held_ms(), held_ms);
    }
  }
}

TEST(CappedLane, one_whose_frames_are_cancelled_waits_for_those_alone_that_have_begun) {
  HeldLane at(Lane::Kind::small);
  at.rate.took(1'000'000);
  for (int i = 0; i < 3; ++i) at.lane->send(at.segment(1000, SegmentKind::collective));
  EXPECT_EQ(at.rate.waiting(), 1U);
  EXPECT_FALSE(at.lane->idle());
  EXPECT_EQ(at.lane->cancel(kOfTensor), 3000U);
  EXPECT_EQ(at.rate.waiting(), 0U);
  EXPECT_TRUE(at.lane->idle());

  HeldLane begun(Lane::Kind::bulk);
  begun.next = 1;
  begun.lane->flush();
  EXPECT_EQ(begun.lane->cancel(kOfTensor), 0U);
  EXPECT_EQ(begun.rate.waiting(), 1U);
  std::size_t came = 0;
  ASSERT_TRUE(test::poll_until(begun.loop, [&] {
    came += begun.drain();
    return begun.sent == 1;
  }));
  came += begun.drain();
  EXPECT_EQ(came, (1U << 20) + kSegmentHeaderBytes);
  EXPECT_EQ(begun.rate.waiting(), 0U);
}

TEST(CappedLane, what_is_passed_on_for_others_counts_and_keeps_its_order) {
  const test::Stopwatch watch;  // the loop's clock stands still from here to its first turn
  HeldLane at(Lane::Kind::small);
  const auto message = [&](std::size_t bytes) {
    Outgoing out;
    out.frame.type = FrameType::relay;
    out.frame.payload_bytes = static_cast<std::uint32_t>(bytes);
    out.payload = at.memory.data();
    return out;
  };
  for (int i = 0; i < 3; ++i) at.lane->send(message(60000));
  EXPECT_EQ(at.sent, 3U) << "into debt";
  Outgoing routed = at.segment(1000, SegmentKind::collective);
  routed.frame.type = FrameType::routed;
  at.lane->send(std::move(routed));
  at.lane->send(message(100));
  EXPECT_EQ(at.sent, 3U);
  EXPECT_EQ(at.rate.waiting(), 1U);
  ASSERT_TRUE(test::run_until(at.loop, [&] { return at.sent == 5; }));
  EXPECT_GE(watch.ms(), 70) << "80 kB of debt";
  EXPECT_EQ(at.types[3], FrameType::routed);
  EXPECT_EQ(at.types[4], FrameType::relay);
}

TEST(CappedLane, one_that_is_closed_sends_its_frames_and_then_its_goodbye) {
  HeldLane at(Lane::Kind::small);
  for (int i = 0; i < 4; ++i) at.lane->send(at.segment(60000, SegmentKind::collective));
  at.lane->send(at.segment(60000, SegmentKind::eager));
  EXPECT_EQ(at.rate.waiting(), 1U);
  at.lane->close(kHandshakeMs);
  std::size_t came = 0;
  ASSERT_TRUE(test::poll_until(at.loop, [&] {
    came += at.drain();
    std::byte one{};
    return ::recv(at.far->fd(), &one, 1, MSG_PEEK) == 0;
  }));
  EXPECT_EQ(came, 5 * (60000 + kSegmentHeaderBytes) + kFrameHeaderBytes);
  EXPECT_EQ(at.rate.waiting(), 0U);
  at.far.reset();
  EXPECT_TRUE(test::run_until(at.loop, [&] { return at.closed; }));
}

TEST(CappedLane, a_lane_that_fails_waits_no_more) {
  HeldLane at(Lane::Kind::bulk);
  at.next = 4;
  at.lane->flush();
  at.far.reset();
  ASSERT_TRUE(test::run_until(at.loop, [&] { return !at.lane->open(); }));
  EXPECT_EQ(at.rate.waiting(), 0U);
}

}  // namespace
}  // namespace pccl
