// Lanes that join a link which is there: by whom, when, and what happens to the link when one of
// them does not get so far.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <map>

#include "base/limits.h"
#include "recorder.h"
#include "support.h"
#include "transport/address.h"
#include "transport/lane_dial.h"
#include "transport/listen.h"
#include "transport/transport.h"

namespace pccl {
namespace {

using test::BareClient;
using test::BarePeer;
using test::Bulk;
using test::bytes_of;
using test::Pair;
using test::place_in;
using test::Tensor;
using Step = BarePeer::Step;

constexpr std::uint64_t kNumber = 4711;

LinkOptions bulk_lanes(std::uint32_t count) {
  LinkOptions options;
  options.bulk_lanes = count;
  return options;
}

constexpr int kEstablished = 1;  // of linux/tcp.h

/// Connected TCP sockets of this process, both ends of every lane, with the bytes that each has
/// sent.
std::map<int, std::uint64_t> sent_over_sockets() {
  std::map<int, std::uint64_t> sent;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    tcp_info info{};
    socklen_t size = sizeof info;
    const int fd = std::stoi(entry.path().filename());
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    if (info.tcpi_state == kEstablished) sent[fd] = info.tcpi_bytes_acked;
  }
  return sent;
}
std::size_t sockets() { return sent_over_sockets().size(); }

/// A pair whose link is up, and tensors on their way in both directions.
struct Busy {
  explicit Busy(std::uint32_t lanes, std::size_t bytes = 32U << 20)
      : pair(bulk_lanes(lanes)), up(bytes, 1), down(bytes, 2), at_high(bytes), at_low(bytes) {
    pair.open();
    send();
  }
  void send() {
    pair.high.events.arrived.clear();
    pair.low.events.arrived.clear();
    pair.high.events.place = place_in(at_high);
    pair.low.events.place = place_in(at_low);
    up.send(*pair.low.links, pair.high_id(), 1U << 20, 1);
    down.send(*pair.high.links, pair.low_id(), 1U << 20, 2);
  }
  /// Each segment has come once, and right.
  void expect_all() {
    const std::size_t count = up.bytes.size() >> 20;
    EXPECT_TRUE(pair.until([&] {
      return pair.high.events.arrived.size() >= count && pair.low.events.arrived.size() >= count &&
             pair.low.links->queued_bytes(pair.high_id()) == 0;
    }));
    EXPECT_EQ(pair.high.events.arrived.size(), count);
    EXPECT_EQ(pair.low.events.arrived.size(), count);
    EXPECT_TRUE(up.is(at_high));
    EXPECT_TRUE(down.is(at_low));
    EXPECT_TRUE(pair.low.events.down.empty());
    EXPECT_TRUE(pair.high.events.down.empty());
  }
  Pair pair;
  Tensor up, down;
  std::vector<std::byte> at_high, at_low;
};

/// The link of a peer that a test plays, and of which it holds every socket.
struct PlayedPeer {
  explicit PlayedPeer(std::size_t lanes)
      : key(test::key_below(pair.high_id())), peer(pair, key, kNumber, lanes) {
    pair.high.links->open(peer.handle(), 30000, false);
    EXPECT_TRUE(pair.until([&] { return pair.high.events.ups == 1; }));
  }
  /// The link is up, and both sides hear each other.
  void expect_up() {
    const std::size_t heard = pair.high.events.controls.size();
    FrameHeader header;
    header.payload_bytes = 1;
    HeaderBytes bytes;
    const std::size_t size = encode_frame_header(header, bytes);
    peer.clients[0]->send(std::span<const std::byte>(bytes).first(size));
    peer.clients[0]->send("x");
    EXPECT_TRUE(pair.until([&] { return pair.high.events.controls.size() == heard + 1; }));
    EXPECT_TRUE(pair.high.events.down.empty());
    EXPECT_TRUE(pair.high.links->is_up(peer.id()));
  }
  Pair pair;
  KeyPair key;
  BarePeer peer;
};

TEST(Join, a_link_without_bulk_lanes_carries_everything_and_control_overtakes_bulk_data) {
  Bulk bulk(64U << 20, bulk_lanes(0));
  EXPECT_LT(bulk.bytes_before_control(), bulk.memory.size() / 2);
  ASSERT_TRUE(
      bulk.pair.until([&] { return bulk.pair.high.events.arrived_bytes == bulk.memory.size(); }));
  EXPECT_EQ(bulk.pair.high.events.controls.size(), 1U);
  EXPECT_TRUE(bulk.tensor.is(bulk.memory));
  EXPECT_EQ(sockets(), 2U);
}

TEST(Join, lanes_join_in_the_middle_of_bulk_data_from_both_sides_at_once_and_nothing_is_lost) {
  for (const bool low : {true, false}) {
    for (const bool high : {true, false}) {
      Busy busy(1);
      Pair& pair = busy.pair;
      ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() >= 2; }));
      if (low) pair.low.direct->widen(pair.high_id(), 2);
      if (high) pair.high.direct->widen(pair.low_id(), 2);
      busy.expect_all();
      const std::size_t bulk = 1U + (low ? 2 : 0) + (high ? 2 : 0);
      ASSERT_TRUE(test::poll_until(pair.loop, [&] { return sockets() == 2 * (1 + bulk); }));
      // Then each of them carries segments, both ways, and the small lane carries none any more.
      std::size_t carry = 0;
      for (int round = 0; round < 20 && carry != 2 * bulk; ++round) {
        const auto before = sent_over_sockets();
        busy.send();
        busy.expect_all();
        carry = 0;
        for (const auto& [fd, sent] : sent_over_sockets()) {
          if (sent > before.at(fd) + (64U << 10)) ++carry;
        }
      }
      EXPECT_EQ(carry, 2 * bulk);
    }
  }
}

TEST(Join, lanes_may_join_as_soon_as_each_side_has_heard_of_the_link) {
  for (int round = 0; round < 20; ++round) {
    Pair pair;
    pair.low.events.on_up = [&](PeerId peer) { pair.low.direct->widen(peer, 1); };
    pair.high.events.on_up = [&](PeerId peer) { pair.high.direct->widen(peer, 1); };
    pair.open();
    ASSERT_TRUE(test::poll_until(pair.loop, [&] { return sockets() == 2U * 4; }));
    EXPECT_EQ(pair.low.events.ups, 1);
  }
}

TEST(Join, a_link_has_129_lanes_at_most) {
  Pair pair;
  pair.open();
  pair.low.direct->widen(pair.high_id(), 1000);
  ASSERT_TRUE(test::poll_until(pair.loop, [&] { return sockets() == 2U * kLanesMax; }));
  pair.low.direct->widen(pair.high_id(), 1);
  pair.low.links->send_control(pair.high_id(), bytes_of("on"));
  ASSERT_TRUE(pair.until([&] { return pair.high.events.controls.size() == 1; }));
  EXPECT_EQ(sockets(), 2U * kLanesMax);
}

TEST(Join, the_130th_lane_is_refused_wherever_the_link_is) {
  for (const bool parked : {false, true}) {
    Pair pair(bulk_lanes(kLanesMax - 1));
    BarePeer peer(pair, test::key_below(pair.high_id()), kNumber, kLanesMax);
    if (!parked) {
      pair.high.links->open(peer.handle(), 30000, false);
      ASSERT_TRUE(pair.until([&] { return pair.high.events.ups == 1; }));
    }
    EXPECT_EQ(BarePeer::verdict(*peer.dial(true)), LaneVerdict::no_such_link);
    EXPECT_FALSE(peer.clients.back()->closed());
  }
}

TEST(Join, lanes_of_a_link_that_was_dialled_early_wait_with_it) {
  Pair pair(bulk_lanes(3));
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(test::poll_until(pair.loop, [&] { return sockets() == 2U * 4; }));
  Tensor tensor(32U << 20);
  std::vector<std::byte> memory(tensor.bytes.size());
  tensor.send(*pair.low.links, pair.high_id(), 1U << 20, 1);
  pair.high.events.place = place_in(memory);
  pair.high.links->open(pair.low.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived_bytes == memory.size(); }));
  EXPECT_TRUE(tensor.is(memory));
  ASSERT_TRUE(pair.until([&] { return pair.high.events.ups == 1; }));
}

// --------------------------------------------------------------------------------- refused, or
// dead

TEST(Join, a_wrong_number_or_another_peer_is_refused_and_disturbs_nobody) {
  PlayedPeer played(2);
  const KeyPair another = test::key_below(played.pair.high_id());
  for (const bool same : {true, false}) {
    for (const std::uint64_t number : {kNumber, kNumber + 1}) {
      if (same && number == kNumber) continue;
      BarePeer stranger(played.pair, same ? played.key : another, number, 0);
      const auto client = stranger.dial(true);
      EXPECT_EQ(BarePeer::verdict(*client), LaneVerdict::no_such_link);
      ASSERT_TRUE(test::poll_until(played.pair.loop, [&] { return client->closed(); }));
    }
  }
  // Nor does a link of another peer, which is there, take one.
  BarePeer other(played.pair, another, kNumber + 1, 1);
  BarePeer mixed(played.pair, played.key, kNumber + 1, 0);
  EXPECT_EQ(BarePeer::verdict(*mixed.dial(true)), LaneVerdict::no_such_link);
  played.expect_up();
}

TEST(Join, a_lane_that_ends_between_any_two_steps_before_it_has_joined_harms_nothing) {
  PlayedPeer played(1);
  for (const Step step : {Step::connected, Step::opened, Step::greeted, Step::offered, Step::proven,
                          Step::answered}) {
    auto client = played.peer.dial(true, step);
    client.reset();
    played.expect_up();
  }
  // What was sent meanwhile has not gone into one of them, however full the other lane is.
  Tensor tensor(32U << 20);
  auto unjoined = played.peer.dial(true);
  tensor.send(*played.pair.high.links, played.peer.id(), 1U << 20, 1);
  unjoined.reset();
  const auto here = [&] {
    return !played.peer.clients[0]->closed() &&
           played.peer.clients[0]->received.size() > tensor.bytes.size();
  };
  ASSERT_TRUE(test::poll_until(played.pair.loop, here));
  played.expect_up();
  ASSERT_TRUE(test::poll_until(played.pair.loop, [] { return sockets() == 2U; }));
}

TEST(Join, lanes_that_have_vanished_take_no_room) {
  PlayedPeer played(1);
  for (std::size_t i = 0; i < kLanesMax + 5; ++i) {
    const auto client = played.peer.dial(true);
    ASSERT_EQ(BarePeer::verdict(*client), LaneVerdict::accepted) << i;
    ::shutdown(client->fd(), SHUT_WR);
    ASSERT_TRUE(test::poll_until(played.pair.loop, [&] { return client->closed(); }));
  }
  played.expect_up();
}

TEST(Join,
     a_lane_that_stalls_before_the_answer_is_dropped_after_the_handshake_time_and_harms_nothing) {
  PlayedPeer played(1);
  std::vector<std::unique_ptr<BareClient>> clients;
  for (const Step step : {Step::connected, Step::opened, Step::greeted, Step::offered}) {
    clients.push_back(played.peer.dial(true, step));
  }
  const auto all_closed = [&] {
    bool all = true;
    for (const auto& client : clients) all = client->closed() && all;
    return all;
  };
  ASSERT_TRUE(test::poll_until(played.pair.loop, all_closed, kHandshakeMs + 3000));
  played.expect_up();
}

TEST(Join, a_lane_joins_however_long_its_dialler_stops_after_the_answer) {
  PlayedPeer played(1);
  auto late = played.peer.dial(true);
  ASSERT_FALSE(
      test::poll_until(played.pair.loop, [&] { return late->closed(); }, kHandshakeMs + 500));
  BarePeer::say(*late, FrameType::joined);
  Tensor tensor(1U << 20);
  ASSERT_TRUE(test::poll_until(played.pair.loop, [&, sent = false]() mutable {
    if (!std::exchange(sent, true)) played.expect_up();
    tensor.send(*played.pair.high.links, played.peer.id(), 1U << 20, 1);
    return !late->closed() && late->received.size() > tensor.bytes.size();
  }));
  played.expect_up();
}

/// An acceptor that takes its time between the proof and the answer: by then it has taken the lane
/// for its own.
TEST(Join, who_has_proven_itself_waits_for_the_answer_as_long_as_it_wants_the_lane) {
  Loop loop;
  const auto listening = listen_on(loop, {"127.0.0.1"}, 0, 0);
  const std::string address = local_address(listening.value()[0].fd()).text();
  const KeyPair here = KeyPair::make();
  const KeyPair there = KeyPair::make();
  const PeerId acceptor = peer_of(there.public_key());
  bool proven = false;
  LaneDial dial(
      loop, {here, Plaintext::all, 30000}, Handle{acceptor, {address}, there.public_key()},
      {here.public_key(), acceptor, kNumber, false, 0},
      LaneDial::Events{[&](std::unique_ptr<Stream>, const std::string&) { proven = true; },
                       [](const LaneDial::Failure& failure) { FAIL() << failure.what; }});
  std::unique_ptr<Stream> stream;
  std::vector<std::byte> said(kOpeningBytes + kLaneHelloBytes + kFillerBytes);
  ASSERT_TRUE(test::poll_until(loop, [&] {
    const int fd = ::accept4(listening.value()[0].fd(), nullptr, nullptr, SOCK_NONBLOCK);
    if (fd >= 0) stream = std::make_unique<SocketStream>(loop, Socket(loop, fd));
    return stream != nullptr;
  }));
  ASSERT_TRUE(test::poll_until(loop, [&] {
    return stream->peek(said).bytes == said.size() && stream->read(said).bytes == said.size();
  }));
  const auto hello =
      decode_lane_hello(std::span(said).subspan(kOpeningBytes, kLaneHelloBytes)).value();
  EXPECT_EQ(hello.capabilities, capability::kPlain);
  static_cast<void>(stream->write(encode_opening({kProtocolVersion, Purpose::lane})));
  static_cast<void>(stream->write(encode_lane_offer({})));
  static_cast<void>(stream->write(std::vector<std::byte>(kFillerBytes)));
  const Secret key =
      lane_secret(*there.shared_with(hello.dialer), hello, there.public_key(), LaneOffer{});
  const auto tls = TlsStream::accept(loop, std::move(stream), [&](auto) { return key; });
  ASSERT_TRUE(test::poll_until(loop, [&] { return tls->established(); }));
  EXPECT_FALSE(test::poll_until(loop, [&] { return proven; }, kHandshakeMs + 500));
  EXPECT_TRUE(dial.has_proven());
  static_cast<void>(tls->write(encode_lane_answer(LaneVerdict::accepted)));
  EXPECT_TRUE(test::run_until(loop, [&] { return proven; }));
}

TEST(Join, a_lane_that_has_joined_carries_the_bulk_data_and_is_missed_like_any_other) {
  PlayedPeer played(1);
  auto joined = played.peer.dial(true);
  BarePeer::say(*joined, FrameType::joined);
  Tensor tensor(1U << 20);
  ASSERT_TRUE(test::poll_until(played.pair.loop, [&, sent = false]() mutable {
    if (!std::exchange(sent, true)) played.expect_up();
    tensor.send(*played.pair.high.links, played.peer.id(), 1U << 20, 1);
    return !joined->closed() && joined->received.size() > tensor.bytes.size();
  }));
  EXPECT_TRUE(played.pair.high.events.down.empty());
  // More than its connection holds unread: so it is lost in the middle of a segment.
  for (int i = 0; i < 64; ++i) tensor.send(*played.pair.high.links, played.peer.id(), 1U << 20, 1);
  EXPECT_FALSE(test::poll_until(played.pair.loop, [] { return false; }, 50));
  joined.reset();
  ASSERT_TRUE(played.pair.until([&] { return !played.pair.high.events.down.empty(); }));
}

TEST(Join, a_lane_joins_once_and_the_first_one_never) {
  for (const std::size_t lane : {0U, 1U}) {
    PlayedPeer played(2);
    BarePeer::say(*played.peer.clients[lane], FrameType::joined);
    ASSERT_TRUE(played.pair.until([&] { return !played.pair.high.events.down.empty(); }));
    EXPECT_NE(played.pair.high.events.reasons[0].find("broken framing"), std::string::npos);
  }
}

// ------------------------------------------------------------------------------ the end of the
// link

TEST(Join, a_link_that_is_closed_while_lanes_join_delivers_everything_and_closes_them_all) {
  for (int rounds = 0; rounds < 60; ++rounds) {
    const bool low_closes = rounds % 2 == 0;
    Busy busy(1, 4U << 20);
    Pair& pair = busy.pair;
    pair.low.direct->widen(pair.high_id(), 3);
    pair.high.direct->widen(pair.low_id(), 3);
    for (int i = 0; i < rounds / 4; ++i) pair.loop.run_once(false);
    test::End& closer = low_closes ? pair.low : pair.high;
    test::End& other = low_closes ? pair.high : pair.low;
    bool done = false;
    closer.links->send_control(other.id(), bytes_of("last"));
    closer.links->close(other.id());
    ASSERT_TRUE(pair.until([&] { return !other.events.down.empty(); }));
    EXPECT_EQ(other.events.reasons[0], "the peer has closed the link") << rounds;
    EXPECT_TRUE(low_closes ? busy.up.is(busy.at_high) : busy.down.is(busy.at_low)) << rounds;
    EXPECT_EQ(other.events.controls.size(), 1U);
    closer.links->shutdown({10000}, [&] { done = true; });
    ASSERT_TRUE(pair.until([&] { return done; }));
    ASSERT_TRUE(test::poll_until(pair.loop, [] { return sockets() == 0U; })) << rounds;
  }
}

TEST(Join, a_link_that_is_dropped_while_lanes_join_leaves_none_of_them_behind) {
  for (int rounds = 0; rounds < 40; ++rounds) {
    Busy busy(1, 4U << 20);
    Pair& pair = busy.pair;
    pair.low.direct->widen(pair.high_id(), 3);
    pair.high.direct->widen(pair.low_id(), 3);
    for (int i = 0; i < rounds / 4; ++i) pair.loop.run_once(false);
    test::End& dropper = rounds % 2 == 0 ? pair.low : pair.high;
    test::End& other = rounds % 2 == 0 ? pair.high : pair.low;
    dropper.links->drop(other.id());
    ASSERT_TRUE(pair.until([&] { return !other.events.down.empty(); }));
    ASSERT_TRUE(test::poll_until(pair.loop, [] { return sockets() == 0U; })) << rounds;
  }
}

TEST(Join, a_lane_whose_peer_does_not_answer_is_given_up_and_says_what_was_seen) {
  Pair pair;
  const auto silent = listen_on(pair.loop, {"127.0.0.1"}, 0, 0);
  const std::string address = local_address(silent.value()[0].fd()).text();
  const KeyPair here = KeyPair::make();
  LaneHello hello;
  hello.joins = true;
  std::string why;
  std::unique_ptr<LaneJoin> join;
  join = std::make_unique<LaneJoin>(pair.loop, Dialler{here, Plaintext::all, 30000},
                                    Handle{PeerId{1}, {address}, {}}, hello, 300,
                                    LaneJoin::Events{[](std::unique_ptr<Stream>) { FAIL(); },
                                                     [&](const std::string& reason) {
                                                       why = reason;
                                                       join.reset();
                                                     }});
  ASSERT_TRUE(pair.until([&] { return !why.empty(); }));
  EXPECT_EQ(why, address + ": " + kNoAnswer);
}

TEST(Join, a_lane_that_was_refused_is_dialled_again_until_the_link_is_there) {
  Pair pair;
  const KeyPair here = test::key_below(pair.high_id());
  const LaneHello hello{here.public_key(), pair.high_id(), kNumber, true, 0};
  bool joined = false;
  std::unique_ptr<Stream> stream;
  LaneJoin join(pair.loop, {here, Plaintext::all, 30000}, pair.high.handle(), hello, 30000,
                LaneJoin::Events{[&](std::unique_ptr<Stream> proven) {
                                   stream = std::move(proven);
                                   joined = true;
                                 },
                                 [](const std::string& why) { FAIL() << why; }});
  bool later = false;
  const auto timer = pair.loop.timer(100, 0, [&] { later = true; });
  ASSERT_TRUE(pair.until([&] { return later; }));
  EXPECT_FALSE(joined);
  const BarePeer first(pair, here, kNumber, 1);
  ASSERT_TRUE(pair.until([&] { return joined; }));
}

}  // namespace
}  // namespace pccl
