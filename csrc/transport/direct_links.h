// The interface between links over TCP (links.cpp) and the relay (relay.cpp): direct links of two
// peers, which also carry the frames of a relay without looking into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transport/clock.h"
#include "transport/transport.h"
#include "trust/secrets.h"

namespace pccl {

class DirectEvents : public LinkEvents {
 public:
  /// The payload of a relay frame (relay_message.h), in order with control payloads.
  virtual void relay_arrived(PeerId peer, std::span<const std::byte> payload) = 0;
  /// Comes in place of segment_sent for a segment with a route to `far`.
  virtual void routed_sent(PeerId far, MemoryToken token, std::uint64_t cookie) = 0;
};

class DirectLinks : public LinksBase {
 public:
  /// For tests: dials at once what Widening dials when a link is busy, so many more bulk lanes, to
  /// kLanesMax in all; either side may call it. A lane that has joined carries segments, over a
  /// long line if the link wants so many; one that has not joined within kJoinMs is given up, with
  /// a line in the log. Does nothing if the link is not up, or has no connections.
  virtual void widen(PeerId /*peer*/, std::size_t /*bulk_lanes*/) {}
  /// Does nothing if the link to the peer is not up.
  virtual void send_relay(PeerId peer, std::vector<std::byte> payload) = 0;
  /// Bytes of control and relay messages that wait to be sent to the peer, each with
  /// kKeptMessageBytes more.
  [[nodiscard]] virtual std::size_t queued_message_bytes(PeerId peer) const = 0;
};

/// Makes links that report to `events`, which outlives them.
using MakeDirectLinks = std::function<Result<std::unique_ptr<DirectLinks>>(DirectEvents& events)>;
/// What the ends of relayed links in this process are trusted by, and make their keys of.
struct RelayTrust {
  KeyPair identity;
  std::function<Secret()> secret;  // another one with each call
  bool ids_follow_keys = true;     // false in a simulation, where ids are drawn
};
/// Makes links with relays over the direct links that `make` makes.
[[nodiscard]] Result<std::unique_ptr<Links>> make_relay_links(Clock& clock, LinkEvents& events,
                                                              const RelayTrust& trust,
                                                              const MakeDirectLinks& make);

[[nodiscard]] Result<std::unique_ptr<DirectLinks>> make_direct_links(Loop& loop,
                                                                     DirectEvents& events,
                                                                     const KeyPair& identity,
                                                                     const LinkOptions& options);

}  // namespace pccl
