// A LinkEvents that writes down what it is told and places segments where a test says.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/protocol.h"
#include "support.h"
#include "transport/direct_links.h"
#include "transport/framing.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/transport.h"

namespace pccl::test {

class Recorder : public LinkEvents {
 public:
  void link_up(PeerId peer) override {
    ++ups;
    up.push_back(peer);
    if (on_up) on_up(peer);
  }
  void link_down(PeerId peer, const std::string& reason, Down how) override {
    down.push_back(peer);
    reasons.push_back(reason);
    last_down = how;
    if (on_down) on_down(peer);
  }
  void control_arrived(PeerId, std::span<const std::byte> payload) override {
    controls.push_back(text_of(payload));
    if (on_control) on_control();
  }
  Placement segment_header(PeerId, const SegmentHeader& header) override {
    ++headers;
    if (on_header) on_header(header);
    return place ? place(header) : Placement{};
  }
  void segment_arrived(PeerId, const SegmentHeader& header, const Placement& at) override {
    arrived.push_back(header);
    arrived_bytes += header.bytes;
    last = at;
    if (on_segment) on_segment(header);
  }
  void segment_lost(PeerId, const SegmentHeader&, const Placement& at) override {
    ++losses;
    last = at;
  }
  void segment_sent(PeerId, std::uint64_t cookie) override {
    sent.push_back(cookie);
    if (on_sent) on_sent(cookie);
  }

  std::function<Placement(const SegmentHeader&)> place;
  std::function<void(PeerId)> on_up, on_down;
  std::function<void()> on_control;
  std::function<void(const SegmentHeader&)> on_header, on_segment;
  std::function<void(std::uint64_t)> on_sent;
  int ups = 0;
  std::vector<PeerId> up, down;
  std::vector<std::string> reasons;
  std::optional<Down> last_down;
  std::vector<std::string> controls;
  std::size_t headers = 0;
  std::size_t losses = 0;
  std::vector<SegmentHeader> arrived;
  std::uint64_t arrived_bytes = 0;
  std::vector<std::uint64_t> sent;
  Placement last;
};

/// The links of a process, and what it has heard of them.
struct End {
  /// Makes links with a key pair of their own.
  void make_links(Loop& loop, const LinkOptions& options) {
    const KeyPair identity = KeyPair::make();
    auto made = make_relay_links(loop, events, {identity, random_secret}, [&](DirectEvents& above) {
      auto below = make_direct_links(loop, above, identity, options);
      if (below.ok()) direct = below.value().get();
      return below;
    });
    EXPECT_TRUE(made.ok()) << made.error().text;
    links = std::move(made).value();
  }
  Recorder events;
  std::unique_ptr<Links> links;
  DirectLinks* direct = nullptr;  // of `links`, if make_links has made them
  [[nodiscard]] Handle handle() const {
    return {links->self(), {"127.0.0.1:" + std::to_string(links->port())}, links->key()};
  }
  [[nodiscard]] PeerId id() const { return links->self(); }
};

/// Two processes in one, `low` (it dials) and `high` (it accepts), on one loop.
struct Pair {
  explicit Pair(LinkOptions options = {}, std::size_t threads = 1) : loop(threads) {
    options.listen_hosts = {"127.0.0.1"};
    for (End* end : {&low, &high}) end->make_links(loop, options);
    // The ids are random: the smaller one is the one that dials.
    if (high.links->self() < low.links->self()) swap_ends(options);
  }
  void swap_ends(const LinkOptions& options) {
    while (high.links->self() < low.links->self()) high.make_links(loop, options);
  }
  void open() {
    low.links->open(high.handle(), 30000, false);
    high.links->open(low.handle(), 30000, false);
    EXPECT_TRUE(until([&] { return low.events.ups > 0 && high.events.ups > 0; }));
  }
  bool until(const std::function<bool()>& done, std::uint64_t timeout_ms = test::kTestMs) {
    return run_until(loop, done, timeout_ms);
  }
  [[nodiscard]] PeerId low_id() const { return low.id(); }
  [[nodiscard]] PeerId high_id() const { return high.id(); }

  Loop loop;
  End low, high;
};

/// A key pair whose peer has a smaller id than `high`: it dials.
inline KeyPair key_below(PeerId high) {
  while (true) {
    const KeyPair made = KeyPair::make();
    if (peer_of(made.public_key()) < high) return made;
  }
}
inline KeyPair key_above(PeerId low) {
  while (true) {
    const KeyPair made = KeyPair::make();
    if (low < peer_of(made.public_key())) return made;
  }
}

/// Bytes that a dialler of a lane is told before the first frame.
constexpr std::size_t kHandshakeBytes = kOpeningBytes + kLaneOfferBytes + kLaneAnswerBytes;

/// A peer made of bare sockets: it proves itself, and then sends what a test wants, frames or not.
class BarePeer {
 public:
  /// Dials so many lanes: the first one of a link, and those that join it.
  BarePeer(Pair& pair, const KeyPair& self, std::uint64_t link, std::size_t lanes,
           std::string host = "127.0.0.1")
      : pair_(pair), self_(self), link_(link), host_(std::move(host)) {
    while (clients.size() < lanes) {
      const bool joins = !clients.empty();
      clients.push_back(dial(joins));
      if (joins) say(*clients.back(), FrameType::joined);
    }
  }
  [[nodiscard]] Handle handle() const { return {id(), {}, self_.public_key()}; }
  [[nodiscard]] PeerId id() const { return peer_of(self_.public_key()); }
  [[nodiscard]] const KeyPair& identity() const { return self_; }

  enum class Step { connected, opened, greeted, offered, proven, answered };
  /// One lane as far as `to`; up to the answer, what was expected has come. Without encryption
  /// after it.
  std::unique_ptr<BareClient> dial(bool joins, Step to = Step::answered) {
    auto made = std::make_unique<BareClient>(pair_.loop, pair_.high.links->port(), host_);
    BareClient& client = *made;
    const LaneHello hello{self_.public_key(), pair_.high_id(), link_, joins, capability::kPlain};
    if (to >= Step::opened) client.send(encode_opening({kProtocolVersion, Purpose::lane}));
    if (to >= Step::greeted) client.send(encode_lane_hello(hello));
    if (to < Step::offered) return made;
    wait_for(client, kOpeningBytes + kLaneOfferBytes);
    const auto offer = decode_lane_offer(std::span(client.received).subspan(kOpeningBytes));
    EXPECT_TRUE(offer.ok());
    if (to < Step::proven) return made;
    const PublicKey& there = pair_.high.links->key();
    const Secret key = lane_secret(*self_.shared_with(there), hello, there, offer.value());
    const TlsStream& tls = client.protect(kLaneIdentity, key);
    EXPECT_TRUE(poll_until(pair_.loop, [&] { return tls.established(); }));
    if (to >= Step::answered) {
      wait_for(client, kHandshakeBytes);
      if (verdict(client) == LaneVerdict::accepted) client.unprotect();
    }
    return made;
  }
  static LaneVerdict verdict(const BareClient& client) {
    const auto answer = std::span(client.received).subspan(kOpeningBytes + kLaneOfferBytes);
    return decode_lane_answer(answer.first(kLaneAnswerBytes)).value();
  }
  static void say(BareClient& client, FrameType type) {
    FrameHeader header;
    header.type = type;
    HeaderBytes bytes;
    const std::size_t size = encode_frame_header(header, bytes);
    client.send(std::span<const std::byte>(bytes).first(size));
  }
  /// On its first lane.
  void say_relay(std::span<const std::byte> payload) {
    FrameHeader header;
    header.type = FrameType::relay;
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    HeaderBytes bytes;
    const std::size_t size = encode_frame_header(header, bytes);
    clients[0]->send(std::span<const std::byte>(bytes).first(size));
    clients[0]->send(payload);
  }
  std::vector<std::unique_ptr<BareClient>> clients;

 private:
  void wait_for(BareClient& client, std::size_t size) {
    EXPECT_TRUE(
        poll_until(pair_.loop, [&] { return client.closed() || client.received.size() >= size; }));
    ASSERT_EQ(client.received.size(), size);
  }
  Pair& pair_;
  KeyPair self_;
  std::uint64_t link_;
  std::string host_;
};

/// A tensor that is sent in segments of `segment_bytes`.
struct Tensor {
  std::vector<std::byte> bytes;
  explicit Tensor(std::size_t size, unsigned seed = 1) : bytes(size) {
    // By words, and compared by memcmp: a sanitizer makes each look at a byte expensive.
    for (std::size_t i = 0; i < size; i += 8) {
      const std::uint64_t word = (i + seed) * 0x9E3779B97F4A7C15U;
      std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, size - i));
    }
  }
  [[nodiscard]] bool is(const std::vector<std::byte>& other) const {
    return other.size() == bytes.size() &&
           std::memcmp(other.data(), bytes.data(), bytes.size()) == 0;
  }
  void send(Links& links, PeerId to, std::size_t segment_bytes, MemoryToken token,
            std::uint64_t step = 0) {
    std::uint64_t cookie = 0;
    for (std::size_t at = 0; at < bytes.size(); at += segment_bytes) {
      SegmentHeader header;
      header.group.value = 7;
      header.op.step = step;
      header.offset = at;
      header.bytes = static_cast<std::uint32_t>(std::min(segment_bytes, bytes.size() - at));
      links.send_segment(to, header, bytes.data() + at, token, cookie++);
    }
  }
};

/// Places every segment at its offset in `memory`.
inline std::function<Placement(const SegmentHeader&)> place_in(std::vector<std::byte>& memory,
                                                               MemoryToken token = 9) {
  return [&memory, token](const SegmentHeader& header) {
    PCCL_ASSERT(header.offset + header.bytes <= memory.size(), header.offset, header.bytes);
    return Placement{memory.data() + header.offset, token, header.offset};
  };
}

/// A tensor on its way from `low` to `high`, in segments of 1 MiB.
struct Bulk {
  explicit Bulk(std::size_t bytes, const LinkOptions& options = {})
      : pair(options), tensor(bytes), memory(bytes) {
    pair.open();
    pair.high.events.place = place_in(memory);
    tensor.send(*pair.low.links, pair.high_id(), 1U << 20, 1);
  }
  /// Sends a control message behind the tensor, and says how many bytes of the tensor were there
  /// when it arrived.
  std::uint64_t bytes_before_control() {
    std::uint64_t before = 0;
    pair.high.events.on_control = [&] { before = pair.high.events.arrived_bytes; };
    pair.low.links->send_control(pair.high_id(), bytes_of("urgent"));
    EXPECT_TRUE(pair.until([&] { return !pair.high.events.controls.empty(); }));
    pair.high.events.on_control = nullptr;
    return before;
  }
  Pair pair;
  Tensor tensor;
  std::vector<std::byte> memory;
};

}  // namespace pccl::test
