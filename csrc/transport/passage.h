// The peer in between of relayed links (relay.h): passes control messages and segments on between
// two other peers that cannot reach each other. What they seal for each other it cannot read. A
// segment is received into memory of this process and sent on from there. Its sender gets credit
// when the kernel has taken the segment, and has at most kRelayWindowBytes without credit on their
// way to one receiver: so the memory here is bounded, for each pair and for each sender. Messages
// have no window: a sender of very many that their receiver does not read loses its relayed link to
// that receiver, and no other link, because nobody can tell here which of the two is at fault.
//
// A Passage serves any two peers that have a link to this process; the master decides which pairs
// of members use one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "transport/buffers.h"
#include "transport/direct_links.h"
#include "transport/relay_message.h"

namespace pccl {

/// The text of a relay message.
[[nodiscard]] inline std::span<const std::byte> as_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Input: relay messages, and segments with a route. Output: the same, on the link to their
/// receiver. On the loop's thread. The links outlive the Passage.
class Passage {
 public:
  /// `of_one_max`: bytes of one sender under way to all receivers, or the windows of all to which
  /// it has opened relayed links, where that is more. By default the windows of 64.
  explicit Passage(DirectLinks& links, std::size_t of_one_max = 64 * kRelayWindowBytes)
      : links_(links), of_one_max_(of_one_max) {}

  /// Passes on a relay message of `from` to another peer. `payload`: the encoded message.
  void message(PeerId from, const RelayMessage& message, std::span<const std::byte> payload);
  /// Returns memory for the payload of a segment that `from` sends to another peer.
  [[nodiscard]] Placement take_in(PeerId from, const SegmentHeader& header);
  /// The payload of that segment is whole: sends the segment on.
  void arrived(const SegmentHeader& header, MemoryToken token);
  /// The kernel has taken the segment: frees the memory and gives the sender its credit.
  void sent(MemoryToken token) { over(token, true); }
  /// The direct link to `peer` has ended, or ends: tells the peers that had a relayed link to
  /// `peer`.
  void unlink(PeerId peer);

  /// Has `peer` a relayed link over this process, or is a segment from or to `peer` on its way?
  /// Still true after the relay message that ends such a link: its last segments may come later, on
  /// other lanes.
  [[nodiscard]] bool serves(PeerId peer) const;
  /// The number of messages and segments passed on from and to `peer` since its relayed links were
  /// opened.
  [[nodiscard]] std::uint64_t moved(PeerId peer) const;

  /// At least the bytes of messages of others that wait for this peer to read.
  [[nodiscard]] std::size_t waits_for(PeerId peer) const;

  /// Does the token name the memory of a segment that is passed on?
  [[nodiscard]] static bool owns(MemoryToken token) { return (token & kMark) != 0; }
  /// Payload bytes of all segments so far.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr MemoryToken kMark = 1ULL << 63;  // the bit is set in no other token
  using Pair = std::pair<PeerId, PeerId>;
  /// A segment on its way.
  struct Passing {
    Pair between;
    std::vector<std::byte> buffer;
    std::size_t cost = 0;  // relay_cost
    bool whole = false;    // received
  };
  void cut(PeerId from, PeerId to, std::string_view why);
  void over(MemoryToken token, bool credit);

  DirectLinks& links_;
  std::size_t of_one_max_;
  std::map<Pair, std::uint64_t> routes_;  // opened (from, to) -> messages and segments passed on
  std::map<MemoryToken, Passing> passing_;
  std::map<Pair, std::size_t> held_bytes_;  // sum over `passing_`
  // Receiver -> sender -> bytes of messages since few waited for the receiver; more than wait now.
  std::map<PeerId, std::map<PeerId, std::size_t>> waiting_;
  Buffers buffers_;
  MemoryToken tokens_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace pccl
