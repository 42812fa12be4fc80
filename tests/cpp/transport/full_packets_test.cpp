// Paths that carry small packets and swallow those of full size: what shows them before a link is
// up, what is done then, and what is not taken for one.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/protocol.h"
#include "recorder.h"
#include "support.h"
#include "transport/handshake.h"
#include "transport/sys.h"
#include "transport/transport.h"

namespace pccl {
namespace {

using test::Pair;
using test::poll_until;

constexpr std::size_t kFirstBytes = kOpeningBytes + kLaneHelloBytes;

/// The far end of a path, which stands for what the path does to a connection.
class Far {
 public:
  explicit Far(Loop& loop, int receive_buffer = 0)
      : listening_(std::move(std::move(listen_on(loop, {"127.0.0.1"}, 0, 0)).value().front())) {
    if (receive_buffer > 0) {
      ::setsockopt(listening_.fd(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
  }
  ~Far() {
    for (const int fd : connections) ::close(fd);
  }
  Far(const Far&) = delete;
  Far& operator=(const Far&) = delete;

  [[nodiscard]] std::string address() const { return local_address(listening_.fd()).text(); }
  /// Takes what has come since; true if there are `count` connections in all.
  bool has(std::size_t count) {
    for (int fd = 0; (fd = ::accept(listening_.fd(), nullptr, nullptr)) >= 0;) {
      connections.push_back(fd);
    }
    return connections.size() >= count;
  }
  /// The first words of connection `index`, which are looked at and left there; empty: not there.
  [[nodiscard]] std::vector<std::byte> said(std::size_t index) const {
    std::vector<std::byte> bytes(kFirstBytes + 1);
    const auto got =
        ::recv(connections[index], bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return bytes;
  }
  [[nodiscard]] int packet_payload(std::size_t index) const {
    int bytes = 0;
    socklen_t size = sizeof bytes;
    ::getsockopt(connections[index], IPPROTO_TCP, TCP_MAXSEG, &bytes, &size);
    return bytes;
  }
  std::vector<int> connections;

 private:
  Socket listening_;
};

Handle at(const Pair& pair, const std::string& address) {
  Handle handle = pair.high.handle();
  handle.addresses = {address};
  return handle;
}

LaneHello hello_of(const std::vector<std::byte>& said) {
  EXPECT_GE(said.size(), kFirstBytes);
  return decode_lane_hello(std::span(said).subspan(kOpeningBytes, kLaneHelloBytes)).value();
}

TEST(FullPackets, that_do_not_arrive_are_followed_by_small_ones) {
  Pair pair;
  Far far(pair.loop, 2048);  // takes as much as one small packet, and no more
  pair.low.links->open(at(pair, far.address()), 30000, false);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(1); }));
  EXPECT_GT(far.packet_payload(0), kSmallPacketPayloadBytes);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(2); }));
  EXPECT_LE(far.packet_payload(1), kSmallPacketPayloadBytes);
  // Those have no answer either (this far end has none at all): the next ones are large again.
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.said(1).size() >= kFirstBytes; }));
  EXPECT_EQ(far.said(1).size(), kFirstBytes) << "no filler";
  EXPECT_FALSE(hello_of(far.said(1)).fills);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(3); }));
  EXPECT_GT(far.packet_payload(2), kSmallPacketPayloadBytes);
}

TEST(FullPackets, that_do_not_come_back_are_followed_by_small_ones) {
  Pair pair;
  Far far(pair.loop);
  pair.low.links->open(at(pair, far.address()), 30000, false);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(1); }));
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.said(0).size() > kFirstBytes; }));
  EXPECT_TRUE(hello_of(far.said(0)).fills);
  const auto opening = encode_opening({kProtocolVersion, Purpose::lane});
  ASSERT_EQ(::send(far.connections[0], opening.data(), opening.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(opening.size()));
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(2); }));
  EXPECT_LE(far.packet_payload(1), kSmallPacketPayloadBytes);
}

TEST(FullPackets, to_a_process_that_is_stopped_are_waited_for) {
  Pair pair;
  Far far(pair.loop);
  pair.low.links->open(at(pair, far.address()), 30000, false);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(1); }));
  const test::Stopwatch watch;
  ASSERT_TRUE(poll_until(pair.loop, [&] { return watch.ms() > 3 * std::int64_t{kFullPacketMs}; }));
  EXPECT_FALSE(far.has(2));
}

TEST(FullPackets, are_answered_when_they_have_come) {
  Pair pair;
  pair.open();
  const KeyPair own = KeyPair::make();
  test::BareClient client(pair.loop, pair.high.links->port());
  LaneHello hello{own.public_key(), pair.high_id(), 1, false, 0};
  hello.fills = true;
  client.send(encode_opening({kProtocolVersion, Purpose::lane}));
  client.send(encode_lane_hello(hello));
  client.send(std::vector<std::byte>(kFillerBytes - 1));
  ASSERT_TRUE(poll_until(
      pair.loop, [&] { return client.closed() || client.received.size() >= kOpeningBytes; }));
  const test::Stopwatch watch;
  ASSERT_TRUE(poll_until(pair.loop, [&] { return client.closed() || watch.ms() > 200; }));
  EXPECT_EQ(client.received.size(), kOpeningBytes);
  client.send(std::vector<std::byte>(1));
  const std::size_t all = kOpeningBytes + kLaneOfferBytes + kFillerBytes;
  ASSERT_TRUE(
      poll_until(pair.loop, [&] { return client.closed() || client.received.size() >= all; }));
  EXPECT_EQ(client.received.size(), all);
}

TEST(FullPackets, of_a_dialler_with_small_ones_are_those_of_both_ends) {
  Pair pair;
  const auto listening = std::move(listen_on(pair.loop, {"127.0.0.1"}, 0, 0)).value();
  const Socket near = new_tcp_socket(pair.loop, AF_INET, /*small_packets=*/true).value();
  const SocketAddress to = local_address(listening.front().fd());
  ::connect(near.fd(), to.raw(), to.length);
  int fd = -1;
  ASSERT_TRUE(poll_until(
      pair.loop, [&] { return (fd = ::accept(listening.front().fd(), nullptr, nullptr)) >= 0; }));
  for (const int end : {near.fd(), fd}) {
    int bytes = 0;
    socklen_t size = sizeof bytes;
    ASSERT_EQ(::getsockopt(end, IPPROTO_TCP, TCP_MAXSEG, &bytes, &size), 0);
    EXPECT_LE(bytes, kSmallPacketPayloadBytes);
    EXPECT_GT(bytes, kSmallPacketPayloadBytes - 40);  // but for TCP's options
  }
  ::close(fd);
}

}  // namespace
}  // namespace pccl
