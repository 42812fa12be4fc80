// The passing on between two other peers that reach each other over this one only: control
// messages, and segments, which are taken into memory of this process and sent on. Of segments its
// sender has at most kRelayWindowBytes without credit on their way, and the credit is given for
// what the kernel has taken: so the memory here is bounded.
//
// Any two peers that have a link to this one may use it: who that is the master decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/direct_links.h"
#include "transport/relay_message.h"

namespace pccl {

/// The text of a relay message.
[[nodiscard]] inline std::span<const std::byte> as_span(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// On the loop's thread. The links outlive it.
class Passage {
 public:
  explicit Passage(DirectLinks& links) : links_(links) {}

  /// A relay message of `from` that is for another peer; `payload` is all of it.
  void message(PeerId from, const RelayMessage& message, std::span<const std::byte> payload);
  /// Where the payload of a segment goes that `from` sends to another peer.
  [[nodiscard]] Placement take_in(PeerId from, const SegmentHeader& header);
  /// Its payload has come.
  void arrived(const SegmentHeader& header, MemoryToken token);
  /// The kernel has taken it.
  void sent(MemoryToken token) { over(token, true); }
  /// The own link to this peer has ended, or ends: who reached others over this peer hears of it.
  void unlink(PeerId peer);

  /// Has it opened a link to another one over this peer, or is something of theirs on its way? Also
  /// after it has said that this link ends: segments of it may come later, on other lanes.
  [[nodiscard]] bool serves(PeerId peer) const;
  /// Messages and segments that have been passed on between it and others: while it serves.
  [[nodiscard]] std::uint64_t moved(PeerId peer) const;

  /// Is this the memory of a segment that is passed on?
  [[nodiscard]] static bool owns(MemoryToken token) { return (token & kMark) != 0; }
  /// Payload bytes of segments so far.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr MemoryToken kMark = 1ULL << 63;  // no other token has it
  using Pair = std::pair<PeerId, PeerId>;
  /// A segment on its way.
  struct Passing {
    Pair between;
    std::vector<std::byte> buffer;
    bool whole = false;  // received
  };
  void over(MemoryToken token, bool credit);

  DirectLinks& links_;
  std::map<Pair, std::uint64_t> routes_;  // (from, to) that have opened, and what has moved since
  std::map<MemoryToken, Passing> passing_;
  std::map<Pair, std::size_t> held_bytes_;       // of `passing_`
  std::vector<std::vector<std::byte>> buffers_;  // kept
  MemoryToken tokens_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace pccl
