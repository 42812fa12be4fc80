// Paths that carry small packets and swallow those of full size: what shows them before a link is
// up, what is done then, and what is not taken for one.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "base/protocol.h"
#include "recorder.h"
#include "support.h"
#include "transport/address.h"
#include "transport/handshake.h"
#include "transport/listen.h"
#include "transport/transport.h"

namespace pccl {
namespace {

using test::Pair;
using test::poll_until;

constexpr std::size_t kFirstBytes = kOpeningBytes + kLaneHelloBytes;

std::uint32_t payload_of(int fd) {
  std::uint32_t bytes = 0;
  socklen_t size = sizeof bytes;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &bytes, &size), 0);
  return bytes;
}

/// The far end of a path, which stands for what the path does to a connection.
class Far {
 public:
  enum class Path : std::uint8_t { carries_all, swallows_large_packets };
  explicit Far(Loop& loop, Path path = Path::carries_all)
      : listening_(std::move(std::move(listen_on(loop, {"127.0.0.1"}, 0, 0)).value().front())) {
    if (path == Path::carries_all) return;
    // Neither those of full size pass, nor those of kSmallPacketPayloadBytes.
    std::array<sock_filter, 4> code = {{{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0},
                                        {BPF_JMP | BPF_JGT | BPF_K, 0, 1, 500},
                                        {BPF_RET | BPF_K, 0, 0, 0},
                                        {BPF_RET | BPF_K, 0, 0, ~0U}}};
    const sock_fprog program{code.size(), code.data()};
    EXPECT_EQ(::setsockopt(listening_.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program),
              0);
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
  void say(std::size_t index, std::span<const std::byte> bytes) const {
    EXPECT_EQ(::send(connections[index], bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  [[nodiscard]] std::uint32_t packet_payload(std::size_t index) const {
    return payload_of(connections[index]);
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

/// Dials, and answers with an opening what a dialler of full packets says; false: it says nothing.
bool answers(Pair& pair, Far& far) {
  pair.low.links->open(at(pair, far.address()), 30000, false);
  if (!poll_until(pair.loop, [&] { return far.has(1) && far.said(0).size() > kFirstBytes; })) {
    return false;
  }
  EXPECT_TRUE(hello_of(far.said(0)).fills);
  far.say(0, encode_opening({kProtocolVersion, Purpose::lane}));
  return true;
}

TEST(FullPackets, that_do_not_arrive_are_followed_by_small_ones) {
  Pair pair;
  Far far(pair.loop, Far::Path::swallows_large_packets);
  // Small packets come before another address, and before what another process says there.
  Pair strangers;
  Handle handle = at(pair, far.address());
  handle.addresses.push_back(strangers.low.handle().addresses[0]);
  pair.low.links->open(handle, 30000, false);
  const auto ticks = pair.loop.timer(1, 1, [&] { strangers.loop.run_once(false); });
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(1); }));
  EXPECT_GT(far.packet_payload(0), kSmallPacketPayloadBytes);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(2); }));
  EXPECT_LE(far.packet_payload(1), kSmallPacketPayloadBytes);
  // Those have no answer either: this far end has none at all.
  EXPECT_TRUE(pair.low.events.down.empty());
  ASSERT_TRUE(poll_until(pair.loop, [&] { return !pair.low.events.down.empty(); }));
  EXPECT_NE(pair.low.events.reasons[0].find("and small ones neither"), std::string::npos)
      << pair.low.events.reasons[0];
  EXPECT_NE(pair.low.events.reasons[0].find("another process"), std::string::npos);
}

TEST(FullPackets, that_have_no_answer_are_tried_again_when_small_ones_have_none) {
  Pair pair;
  Far far(pair.loop, Far::Path::swallows_large_packets);
  pair.low.links->open(at(pair, far.address()), 30000, false);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(3); }));
  EXPECT_LE(far.packet_payload(1), kSmallPacketPayloadBytes);
  EXPECT_GT(far.packet_payload(2), kSmallPacketPayloadBytes);
}

TEST(FullPackets, that_do_not_come_back_are_followed_by_small_ones) {
  Pair pair;
  Far far(pair.loop);
  ASSERT_TRUE(answers(pair, far));
  test::pass(pair.loop, 2 * kFullPacketMs);
  EXPECT_FALSE(far.has(2)) << "a process that was stopped before its offer";
  far.say(0, encode_lane_offer({}));
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(2); }));
  EXPECT_LE(far.packet_payload(1), kSmallPacketPayloadBytes);
}

TEST(FullPackets, that_come_slowly_are_waited_for) {
  Pair pair;
  Far far(pair.loop);
  ASSERT_TRUE(answers(pair, far));
  far.say(0, encode_lane_offer({}));
  far.say(0, std::vector<std::byte>(1));
  test::pass(pair.loop, 3 * kFullPacketMs);
  EXPECT_FALSE(far.has(2));
}

TEST(FullPackets, that_are_there_when_a_process_goes_on_have_an_answer) {
  Pair pair;
  Far far(pair.loop);
  ASSERT_TRUE(answers(pair, far));
  far.say(0, encode_lane_offer({}));
  far.say(0, std::vector<std::byte>(kFillerBytes));
  // As after SIGSTOP: the time is over before anything is read.
  std::this_thread::sleep_for(std::chrono::milliseconds(kFullPacketMs + 300));
  test::pass(pair.loop, 500);
  EXPECT_FALSE(far.has(2));
}

TEST(FullPackets, to_a_process_that_is_stopped_are_waited_for) {
  Pair pair;
  Far far(pair.loop);
  pair.low.links->open(at(pair, far.address()), 30000, false);
  ASSERT_TRUE(poll_until(pair.loop, [&] { return far.has(1); }));
  test::pass(pair.loop, 3 * kFullPacketMs);
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
    EXPECT_LE(payload_of(end), kSmallPacketPayloadBytes);
    EXPECT_GT(payload_of(end), kSmallPacketPayloadBytes - 40);  // but for TCP's options
  }
  ::close(fd);
}

}  // namespace
}  // namespace pccl
