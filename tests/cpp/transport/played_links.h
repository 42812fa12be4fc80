// The direct links of a process, played by a test: it keeps what is sent over them, and hands over
// what comes from another peer.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "transport/direct_links.h"
#include "transport/relay_message.h"

namespace pccl::test {

constexpr PeerId kBetween{2};

/// A frame between an end of a relayed link and the peer in between.
struct Passed {
  std::vector<std::byte> bytes;  // the payload
  SegmentHeader header;          // routed segments have a route
  MemoryToken token = 0;
  std::uint64_t cookie = 0;
  PeerId over{};  // the direct link
  [[nodiscard]] bool is_segment() const { return header.route.relayed(); }
  [[nodiscard]] RelayMessage message() const { return decode_relay(bytes).value(); }
  [[nodiscard]] bool is(RelayKind kind) const { return !is_segment() && message().kind == kind; }
};

/// One to the peer in between is up; others as `also_up` says.
class PlayedLinks final : public DirectLinks {
 public:
  PlayedLinks(DirectEvents& events, PublicKey key) : events_(events), key_(key) {}

  [[nodiscard]] std::uint16_t port() const override { return 1; }
  [[nodiscard]] PeerId self() const override { return peer_of(key_); }
  [[nodiscard]] const PublicKey& key() const override { return key_; }
  void open(const Handle&, std::uint64_t, bool) override {}
  void close(PeerId) override {}
  void drop(PeerId) override {}
  void give_up(PeerId, const std::string& reason) override { gave_up = reason; }
  [[nodiscard]] bool is_up(PeerId peer) const override {
    return peer == kBetween || (also_up && also_up(peer));
  }
  void send_control(PeerId, std::vector<std::byte>) override {}
  void send_segment(PeerId to, const SegmentHeader& header, const std::byte* payload,
                    MemoryToken token, std::uint64_t cookie) override {
    sent.push_back({{payload, payload + header.bytes}, header, token, cookie, to});
  }
  void send_relay(PeerId to, std::vector<std::byte> payload) override {
    sent.push_back({std::move(payload), {}, 0, 0, to});
  }
  void cancel(MemoryToken) override {}
  [[nodiscard]] std::uint64_t bytes_sent() const override { return 0; }
  [[nodiscard]] std::uint64_t bytes_received() const override { return 0; }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override { return 0; }
  [[nodiscard]] std::size_t queued_bytes(PeerId) const override { return 0; }
  [[nodiscard]] std::size_t queued_message_bytes(PeerId) const override { return 0; }
  void shutdown(const GoodbyeTime&, std::function<void()> done) override { done(); }

  /// What comes from another peer.
  void hear(const Passed& frame, PeerId from = kBetween) {
    if (!frame.is_segment()) return events_.relay_arrived(from, frame.bytes);
    finish(frame, begin(frame, from), from);
  }
  Placement begin(const Passed& frame, PeerId from = kBetween) {
    return events_.segment_header(from, frame.header);
  }
  void finish(const Passed& frame, const Placement& at, PeerId from = kBetween) {
    if (at.to == nullptr) return;
    std::copy(frame.bytes.begin(), frame.bytes.end(), at.to);
    events_.segment_arrived(from, frame.header, at);
  }
  void was_sent(const Passed& frame) {
    events_.routed_sent(frame.header.route.to, frame.token, frame.cookie);
  }

  std::deque<Passed> sent;
  std::string gave_up;
  std::function<bool(PeerId)> also_up;

 private:
  DirectEvents& events_;
  PublicKey key_;
};

}  // namespace pccl::test
