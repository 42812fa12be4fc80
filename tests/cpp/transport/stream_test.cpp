// The seam under lanes and handshakes: SocketStream keeps its promises, and what is built on a
// Stream works on one that is not TCP.
#include "transport/stream.h"

#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <deque>

#include "base/limits.h"
#include "base/random.h"
#include "memory_stream.h"
#include "support.h"
#include "transport/stream_lane.h"
#include "transport/talk.h"

namespace pccl {
namespace {

using test::MemoryStream;
using Outcome = Stream::Outcome;

/// Keeps what a lane delivers; gives the lane a queue of segments to take from.
struct LaneEnd : LaneOwner {
  void lane_message(FrameType, std::span<const std::byte> payload) override {
    messages.push_back(test::text_of(payload));
  }
  Placement lane_segment_header(const SegmentHeader& header) override {
    return {memory.data() + header.offset, 1, 0};
  }
  void lane_segment(const SegmentHeader&, const Placement&) override { ++segments; }
  void lane_received(std::size_t, bool) override {}
  void lane_sent(const Outgoing&) override { ++sent; }
  void lane_joined(Lane&) override {}
  std::optional<Outgoing> lane_next(const Lane&) override {
    if (queue.empty()) return std::nullopt;
    std::optional<Outgoing> next = std::move(queue.front());
    queue.pop_front();
    return next;
  }
  void lane_over(Lane&, const std::string& reason, bool) override { over = reason; }
  void lane_lost(Lane&, const std::string& reason, Leftover) override { over = reason; }
  void lane_closed(Lane&) override { closed = true; }

  std::deque<Outgoing> queue;
  std::vector<std::byte> memory = std::vector<std::byte>(300000);
  std::vector<std::string> messages;
  int segments = 0;
  int sent = 0;
  std::string over;
  bool closed = false;
};

Outgoing segment_of(std::span<const std::byte> memory, std::size_t offset, std::size_t bytes) {
  Outgoing out;
  out.frame.type = FrameType::segment;
  out.frame.payload_bytes = static_cast<std::uint32_t>(bytes);
  out.frame.segment.offset = offset;
  out.frame.segment.bytes = out.frame.payload_bytes;
  out.payload = memory.data() + offset;
  return out;
}

Outgoing message_of(std::string_view text) {
  Outgoing out;
  out.owned = test::bytes_of(text);
  out.frame.payload_bytes = static_cast<std::uint32_t>(text.size());
  out.payload = out.owned.data();
  return out;
}

TEST(Stream, a_lane_delivers_every_byte_whatever_the_pieces_in_which_its_stream_moves_them) {
  for (const std::size_t piece : {1U, 7U, 79U, 4096U, 1U << 20}) {
    Loop loop;
    LaneEnd a;
    LaneEnd b;
    auto [near, far] = MemoryStream::pair(loop, piece, 5000);
    StreamLane sender(loop, a, Lane::Kind::small, std::move(near), true);
    StreamLane receiver(loop, b, Lane::Kind::small, std::move(far), true);
    sender.start();
    receiver.start();
    Random random(piece);
    const std::size_t bytes = piece < 79 ? 3000 : a.memory.size();
    for (auto& byte : a.memory) byte = static_cast<std::byte>(random.next());
    for (std::size_t at = 0; at < bytes; at += 1000) {
      a.queue.push_back(segment_of(a.memory, at, std::min<std::size_t>(1000, bytes - at)));
    }
    sender.send(message_of("before"));
    sender.flush();
    ASSERT_TRUE(test::poll_until(loop, [&] { return a.queue.empty(); }));
    sender.send(message_of("after"));
    sender.close(kHandshakeMs);
    ASSERT_TRUE(test::poll_until(loop, [&] { return !b.over.empty(); }));
    EXPECT_EQ(b.messages, (std::vector<std::string>{"before", "after"}));
    EXPECT_EQ(static_cast<std::size_t>(b.segments), bytes / 1000);
    EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + static_cast<std::ptrdiff_t>(bytes),
                           b.memory.begin()));
    receiver.close(kHandshakeMs);
    ASSERT_TRUE(test::poll_until(loop, [&] { return a.closed && !receiver.open(); }));
  }
}

TEST(Stream,
     what_came_before_a_write_failed_is_read_and_the_lane_ends_with_the_reason_of_the_write) {
  Loop loop;
  LaneEnd a;
  auto [near, far] = MemoryStream::pair(loop, 100, 5000);
  MemoryStream& broken = *near;
  StreamLane lane(loop, a, Lane::Kind::small, std::move(near), false);
  LaneEnd b;
  StreamLane other(loop, b, Lane::Kind::small, std::move(far), false);
  other.send(message_of("the last word"));
  other.end();
  broken.write_fails = true;
  lane.send(message_of("lost"));
  lane.start();
  ASSERT_TRUE(test::poll_until(loop, [&] { return !a.over.empty(); }));
  EXPECT_EQ(a.messages, (std::vector<std::string>{"the last word"}));
  EXPECT_EQ(a.over, "broken on purpose");
}

TEST(Stream, a_handshake_needs_no_socket_and_hands_its_stream_on_with_nothing_read_too_much) {
  Loop loop;
  auto [near, far] = MemoryStream::pair(loop, 3, 100);
  const auto talk = std::make_shared<Talk>(loop, std::move(near), 60000);
  std::string got;
  talk->expect(5, [&](std::span<const std::byte> bytes) { got = test::text_of(bytes); });
  for (const std::string_view part : {"hel", "lor", "est"}) {
    ASSERT_EQ(far->write(test::bytes_of(part)).bytes, 3U);
  }
  ASSERT_TRUE(test::poll_until(loop, [&] { return !got.empty(); }));
  EXPECT_EQ(got, "hello");
  const std::unique_ptr<Stream> stream = talk->take();
  EXPECT_TRUE(talk->over());
  std::array<std::byte, 10> rest{};
  EXPECT_EQ(stream->peek(rest).bytes, 4U);
  EXPECT_EQ(stream->read(rest).bytes, 3U);
  EXPECT_EQ(test::text_of(std::span(rest).first(3)), "res");
}

TEST(Stream, tcp_gathers_scatters_peeks_and_says_what_it_saw) {
  Loop loop;
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  SocketStream a(loop, Socket(loop, fds[0]));
  SocketStream b(loop, Socket(loop, fds[1]));
  std::array<std::byte, 16> into{};
  EXPECT_EQ(b.read(into).outcome, Outcome::later);
  EXPECT_EQ(b.peek(into).outcome, Outcome::later);
  auto first = test::bytes_of("gather");
  auto second = test::bytes_of("ed");
  std::array<iovec, 2> parts = {iovec{first.data(), 6}, iovec{second.data(), 2}};
  EXPECT_EQ(a.write(parts).bytes, 8U);
  EXPECT_EQ(b.peek(into).bytes, 8U);
  parts = {iovec{into.data() + 8, 3}, iovec{into.data(), 8}};
  EXPECT_EQ(b.read(parts).bytes, 8U);
  EXPECT_EQ(test::text_of(std::span(into).subspan(8, 3)), "gat");
  EXPECT_EQ(test::text_of(std::span(into).first(5)), "hered");

  bool readable = false;
  b.on_ready([&](bool in, bool) { readable = in; });
  b.want(true, false);
  a.shut();
  ASSERT_TRUE(test::poll_until(loop, [&] { return readable; }));
  EXPECT_EQ(b.read(into).outcome, Outcome::ended);
  b.close();
  EXPECT_FALSE(b.open());
  const Stream::Moved failed = a.write(second);
  EXPECT_EQ(failed.outcome, Outcome::failed);
  EXPECT_FALSE(failed.error.empty());
}

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}

TEST(Stream, connections_inherit_the_options_of_their_listening_socket) {
  Loop loop;
  const std::vector<Socket> listening = listen_on(loop, {"127.0.0.1"}, 0, 0, 24000).value();
  const std::uint16_t port = local_address(listening[0].fd()).port();
  const SocketAddress there = numeric_address("127.0.0.1", port).value();
  const Socket near = new_tcp_socket(loop, AF_INET).value();
  (void)::connect(near.fd(), there.raw(), there.length);
  pollfd waits{listening[0].fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&waits, 1, 5000), 1);
  const Socket far(loop, ::accept4(listening[0].fd(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_EQ(option(far.fd(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(far.fd(), SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(far.fd(), IPPROTO_TCP, TCP_KEEPIDLE), 8);
  EXPECT_EQ(option(far.fd(), IPPROTO_TCP, TCP_KEEPINTVL), 3);
  EXPECT_EQ(option(far.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT), 24000);
  constexpr int kTcpRtoMaxMs = 44;
  EXPECT_EQ(option(far.fd(), IPPROTO_TCP, kTcpRtoMaxMs),
            option(listening[0].fd(), IPPROTO_TCP, kTcpRtoMaxMs));
}

}  // namespace
}  // namespace pccl
