// One lane alone, fed by hand: which frames it takes, and what ends it.
#include "transport/stream_lane.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "memory_stream.h"
#include "support.h"
#include "transport/crc32c.h"
#include "transport/framing.h"
#include "transport/tls_stream.h"

namespace pccl {
namespace {

struct Owner : LaneOwner {
  void lane_message(FrameType type, std::span<const std::byte>) override { types.push_back(type); }
  Placement lane_segment_header(const SegmentHeader&) override { return {}; }
  void lane_segment(const SegmentHeader&, const Placement&) override {}
  void lane_received(std::size_t, bool) override { ++received; }
  void lane_sent(const Outgoing&) override {}
  void lane_joined(Lane&) override {}
  std::optional<Outgoing> lane_next(const Lane&) override { return std::nullopt; }
  void lane_over(Lane&, const std::string& reason, bool) override { over = reason; }
  void lane_lost(Lane&, const std::string& reason, Leftover) override { over = reason; }
  void lane_closed(Lane&) override { closed = true; }
  bool closed = false;
  std::vector<FrameType> types;
  std::size_t received = 0;
  std::string over;
};

TEST(StreamLane, control_and_relay_frames_break_a_bulk_lane_and_nothing_is_kept_for_them) {
  for (const FrameType type : {FrameType::control, FrameType::relay}) {
    for (const Lane::Kind kind : {Lane::Kind::small, Lane::Kind::bulk}) {
      Loop loop;
      Owner owner;
      int fds[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      Socket feeder(loop, fds[1]);
      StreamLane lane(loop, owner, kind, std::make_unique<SocketStream>(loop, Socket(loop, fds[0])),
                      true);
      lane.start();
      FrameHeader header;
      header.type = type;
      header.payload_bytes = kRelayHeadBytes;
      HeaderBytes bytes;
      const std::size_t size = encode_frame_header(header, bytes);
      std::vector<std::byte> stream(bytes.begin(),
                                    bytes.begin() + static_cast<std::ptrdiff_t>(size));
      stream.resize(size + kRelayHeadBytes);
      ASSERT_EQ(::send(feeder.fd(), stream.data(), stream.size(), 0),
                static_cast<std::ptrdiff_t>(stream.size()));
      ASSERT_TRUE(
          test::run_until(loop, [&] { return !owner.types.empty() || !owner.over.empty(); }));
      EXPECT_EQ(owner.over.empty(), kind == Lane::Kind::small) << owner.over;
      EXPECT_EQ(owner.types.empty(), kind == Lane::Kind::bulk);
    }
  }
}

/// Works on each segment for longer than turns last, and then sends one back.
struct Answering : Owner {
  Placement lane_segment_header(const SegmentHeader&) override { return {memory.data(), 1, 0}; }
  void lane_segment(const SegmentHeader&, const Placement&) override {
    ++segments;
    if (!answers) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(6));
    push();
  }
  void push() {
    Outgoing frame;
    frame.frame.type = FrameType::segment;
    frame.frame.payload_bytes = frame.frame.segment.bytes = kBytes;
    frame.payload = memory.data();
    waiting.push_back(std::move(frame));
    if (lane->idle()) lane->flush();
  }
  std::optional<Outgoing> lane_next(const Lane&) override {
    if (waiting.empty()) return std::nullopt;
    Outgoing next = std::move(waiting.front());
    waiting.pop_front();
    return next;
  }
  static constexpr std::uint32_t kBytes = 100'000;
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
  std::deque<Outgoing> waiting;
  StreamLane* lane = nullptr;
  bool answers = false;
  int segments = 0;
};

TEST(StreamLane, what_is_flushed_in_a_turn_goes_when_the_time_of_the_turn_is_over) {
  for (const std::size_t threads : {1U, 3U}) {
    Loop loop(threads);
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    Answering asks;
    Answering answers;
    answers.answers = true;
    std::vector<std::unique_ptr<StreamLane>> lanes;
    for (std::size_t i = 0; i < 2; ++i) {
      Answering& owner = i == 0 ? asks : answers;
      lanes.push_back(std::make_unique<StreamLane>(
          loop, owner, Lane::Kind::bulk, std::make_unique<SocketStream>(loop, Socket(loop, fds[i])),
          false));
      owner.lane = lanes.back().get();
      lanes.back()->start();
    }
    for (int i = 1; i <= 5; ++i) {
      asks.push();
      ASSERT_TRUE(test::run_until(loop, [&] { return asks.segments == i; }, 5000)) << threads;
    }
  }
}

TEST(StreamLane, a_first_piece_leaves_at_once_whatever_the_number_of_threads) {
  for (const std::size_t threads : {1U, 3U}) {
    Loop loop(threads);
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    Socket peer(loop, fds[1]);
    Answering owner;
    StreamLane lane(loop, owner, Lane::Kind::bulk,
                    std::make_unique<SocketStream>(loop, Socket(loop, fds[0])), false);
    owner.lane = &lane;
    lane.start();
    owner.push();
    std::vector<std::byte> come(2 * Answering::kBytes);
    EXPECT_GT(::recv(peer.fd(), come.data(), come.size(), 0), 10'000) << threads;
  }
}

Outgoing message_of(std::size_t bytes) {
  Outgoing frame;
  frame.frame.type = FrameType::control;
  frame.owned.resize(bytes);
  frame.frame.payload_bytes = static_cast<std::uint32_t>(bytes);
  frame.payload = frame.owned.data();
  return frame;
}

TEST(StreamLane, ends_when_its_connection_takes_nothing_any_more_and_goes_on_to_live) {
  Loop loop;
  Owner owner;
  auto [near, far] = test::MemoryStream::pair(loop, 1U << 20, 30000);
  near->write_fails = true;
  StreamLane lane(loop, owner, Lane::Kind::small, std::move(near), false);
  lane.start();
  lane.send(message_of(1000));
  EXPECT_EQ(owner.over, "") << "what the other side sent before is still to be read";
  ASSERT_TRUE(test::run_until(loop, [&] { return !owner.over.empty(); }, 2 * kHandshakeMs));
  EXPECT_EQ(owner.over, "broken on purpose");
  EXPECT_FALSE(lane.open());
}

TEST(StreamLane, a_closed_one_ends_where_the_peer_reads_nothing_whatever_it_sends) {
  Loop loop;
  Owner owner;
  auto [near, far] = test::MemoryStream::pair(loop, 1U << 20, 30000);
  StreamLane lane(loop, owner, Lane::Kind::small, std::move(near), false);
  lane.start();
  lane.send(message_of(100'000));
  lane.close(kHandshakeMs);
  const auto talks = loop.timer(1000, 1000, [&] {
    static_cast<void>(far->write(std::span<const std::byte>(std::vector<std::byte>(100))));
  });
  ASSERT_TRUE(test::run_until(loop, [&] { return owner.closed; }, 3 * kHandshakeMs));
  EXPECT_FALSE(lane.open());
}

TEST(StreamLane, the_rest_of_a_closed_encrypted_lane_arrives_over_a_slow_connection) {
  Loop loop;
  Owner owner;
  const Secret key = random_secret();
  auto [near, far] = test::MemoryStream::pair(loop, 1U << 20, 30000);
  auto dials = TlsStream::dial(loop, std::move(near), "slow", key);
  const auto reader = TlsStream::accept(loop, std::move(far), [&](auto) { return key; });
  ASSERT_TRUE(
      test::poll_until(loop, [&] { return dials->established() && reader->established(); }));
  StreamLane lane(loop, owner, Lane::Kind::small, std::move(dials), false);
  lane.start();
  Outgoing frame = message_of(450U << 10);
  const std::size_t all = 2 * kFrameHeaderBytes + frame.owned.size();  // and the goodbye
  lane.send(std::move(frame));
  lane.close(kHandshakeMs);
  std::size_t received = 0;
  bool over = false;
  const auto slowly = loop.timer(200, 200, [&] {
    std::vector<std::byte> some(14U << 10);
    const Stream::Moved moved = reader->read(some);
    received += moved.bytes;
    over = over ||
           (moved.outcome != Stream::Outcome::moved && moved.outcome != Stream::Outcome::later);
  });
  ASSERT_TRUE(test::poll_until(loop, [&] { return over; }));
  EXPECT_EQ(received, all);
}

}  // namespace
}  // namespace pccl
