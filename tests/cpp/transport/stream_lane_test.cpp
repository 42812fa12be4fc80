// One lane alone, fed by hand: which frames it takes, and what ends it.
#include "transport/stream_lane.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

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
  void lane_closed(Lane&) override {}
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
  Outgoing frame;
  frame.frame.type = FrameType::control;
  frame.owned.resize(450U << 10);
  frame.frame.payload_bytes = static_cast<std::uint32_t>(frame.owned.size());
  frame.payload = frame.owned.data();
  const std::size_t all = 2 * kFrameHeaderBytes + frame.owned.size();  // and the goodbye
  lane.send(std::move(frame));
  lane.close();
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
