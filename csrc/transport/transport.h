// The seam between bytes and meaning. Below it: sockets, lanes, framing, handshakes, checksums (TLS
// later). Above it: engine/ and master/, which see peers, control payloads and segments.
//
// Everything here lives on one Loop (transport/loop.h) and is called on the thread that runs it.
// tests/sim/engine has links in memory (transport/network.h is the seam).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/ids.h"
#include "base/types.h"

namespace pccl {

/// Of a segment that a third peer passes on, between two that have no link of their own. All zero:
/// it comes straight from the link's peer.
struct Route {
  PeerId from;
  PeerId to;
  std::uint64_t session = 0;  // the receiver's, as its opening named it
  bool operator==(const Route&) const = default;
  [[nodiscard]] bool relayed() const { return to != PeerId{}; }
};

/// Which protocol a segment belongs to, and so who places it. The numbers are on the wire, and are
/// never reused.
enum class SegmentKind : std::uint8_t {
  collective = 1,  // of a step of a schedule
  message = 2,     // of a send that was announced and accepted
  eager = 3,       // a whole small send, which comes unannounced
  state = 4        // an answer to a `pull`
};

/// What a segment is for; fixed size on the wire (PROTOCOL.md, "Segments"). Transport reads the
/// kind, the bytes and the route; the other fields are a label that it passes on as it is.
struct SegmentHeader {
  SegmentKind kind = SegmentKind::collective;
  GroupId group;
  EpochId epoch;
  OpKey op;                   // of a send: step = tag, index = number within (sender, tag)
  std::uint32_t channel = 0;  // of a collective: Step::channel
  std::uint64_t offset = 0;   // in the range of the step, in the message or in the item
  std::uint32_t bytes = 0;    // of payload, at most kSegmentBytesMax
  OpDescriptor descriptor;
  Route route;  // transport's own: nobody above it sees one
};

/// Names the memory of one operation in one epoch at this peer: what is sent from it and placed in
/// it can be cancelled by it. Never reused; 0 is "nobody's".
using MemoryToken = std::uint64_t;

/// Where the payload of an arriving segment goes.
struct Placement {
  std::byte* to = nullptr;  // null: drop the payload
  MemoryToken token = 0;
  std::uint64_t cookie = 0;  // handed back in segment_arrived
};

/// Why a link is down.
enum class Down : std::uint8_t {
  lost,      // it was up
  unopened,  // it did not come up within its deadline
  refused    // nobody listens there any more
};

/// What Links tells its owner. Called on the loop's thread, never from inside a call of Links. Any
/// call of Links is allowed inside, but not its destruction.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  /// The link to `peer` is there: its first lane is proven. Others join it meanwhile.
  virtual void link_up(PeerId peer) = 0;
  /// It was up and is not any more, or `open` did not succeed within its deadline. What was queued
  /// is gone. After an `open` that met a link whose loss had not been told yet it is `lost`: open
  /// it again.
  virtual void link_down(PeerId peer, const std::string& reason, Down how) = 0;
  /// A control payload, in the order in which the peer sent them.
  virtual void control_arrived(PeerId peer, std::span<const std::byte> payload) = 0;
  /// A header has arrived; says where its payload goes. Segments of one peer may arrive in any
  /// order.
  virtual Placement segment_header(PeerId peer, const SegmentHeader& header) = 0;
  /// The payload is complete at Placement::to.
  virtual void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) = 0;
  /// The kernel has taken the last byte of the segment that was sent with `cookie`.
  virtual void segment_sent(PeerId peer, std::uint64_t cookie) = 0;
};

struct LinkOptions {
  std::vector<std::string> listen_hosts;  // empty: all interfaces
  std::uint16_t port_first = 0;           // 0: any free port
  std::uint16_t port_last = 0;
  std::uint32_t bulk_lanes = 1;
  std::uint64_t connect_timeout_ms = 10000;
  std::uint64_t tcp_user_timeout_ms = 30000;
  std::optional<bool> payload_crc;  // none: unless both ends are on one machine
};

/// A link is a small lane, which makes it, and bulk lanes, which join it: the side that dials adds
/// `bulk_lanes` at once. Control and segments to kSmallSegmentBytesMax go over the small lane;
/// larger segments over the bulk lanes, and behind the former over the small one while there is no
/// other. Of a pair the peer with the smaller id dials first; where that does not succeed the other
/// one dials too, so that a peer which nobody can dial (NAT) reaches all that it can.
class LinksBase {
 public:
  virtual ~LinksBase() = default;

  /// This process's handle, but for the host part of its addresses, which the caller decides.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  [[nodiscard]] virtual PeerId self() const = 0;
  [[nodiscard]] virtual const LinkKey& key() const = 0;

  /// Brings up the link to a peer, dialling or awaiting it; link_up or link_down follows (link_up
  /// also if it is up already). May be called again after link_down. `refusal_tells`: if nobody
  /// listens there any more the peer is gone; else it may dial from where nobody can reach it.
  virtual void open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) = 0;
  /// Sends what is queued (as long as it moves), then closes both directions; nothing is reported
  /// any more. The memory of what is queued stays borrowed until cancel(token).
  virtual void close(PeerId peer) = 0;
  /// Closes at once.
  virtual void drop(PeerId peer) = 0;
  /// Closes a link at once that is up but of no use; link_down follows, with this reason.
  virtual void give_up(PeerId peer, const std::string& reason) = 0;
  [[nodiscard]] virtual bool is_up(PeerId peer) const = 0;
  /// Dials so many more bulk lanes to a peer whose link is up, to kLanesMax in all; either side
  /// may. Each carries segments as soon as it has joined; one that cannot is given up after
  /// kJoinMs, with a line in the log. To a peer whose link is not up it does nothing.
  virtual void widen(PeerId peer, std::size_t bulk_lanes) = 0;

  /// To a peer whose link is not up both do nothing.
  virtual void send_control(PeerId peer, std::vector<std::byte> payload) = 0;
  /// The payload stays the caller's until segment_sent, or until cancel(token).
  virtual void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                            MemoryToken token, std::uint64_t cookie) = 0;
  /// After it returns, no byte is read from or written to memory under `token`: queued segments are
  /// dropped, the rest of a half-sent one is copied, the rest of a half-received one goes nowhere.
  virtual void cancel(MemoryToken token) = 0;

  /// Payload bytes of segments and control messages so far, all links.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_received() const = 0;
  /// Of segments alone, whole or not: grows as long as a link moves data, however slowly.
  [[nodiscard]] virtual std::uint64_t segment_bytes_received() const = 0;
  /// Payload bytes queued and not yet taken by the kernel, to one peer.
  [[nodiscard]] virtual std::size_t queued_bytes(PeerId peer) const = 0;

  /// Stops listening, flushes every link until the other side has closed it or `deadline_ms` is
  /// over, then calls `done`.
  virtual void shutdown(std::uint64_t deadline_ms, std::function<void()> done) = 0;
};

/// The links of this process: one per peer, shared by all groups. One that is closed or dropped
/// ends for its owner at once; over it links that were closed send their rest, and what this
/// process passes on between others goes on, as long as it moves.
class Links : public LinksBase {
 public:
  /// As `open`, for a peer that cannot be reached: over `via`, to which both have a link or are
  /// about to have one. A link to the peer itself is taken where there is one.
  virtual void open_via(const Handle& peer, PeerId via, std::uint64_t deadline_ms) = 0;
  /// Over whom the link to this peer goes; nothing where it is its own.
  [[nodiscard]] virtual std::optional<PeerId> via(PeerId peer) const = 0;
  /// Payload bytes of segments that this peer has passed on between others.
  [[nodiscard]] virtual std::uint64_t bytes_relayed() const = 0;
};

class Loop;
/// Over TCP. Throws nothing: a port that cannot be opened is the Result's error.
[[nodiscard]] Result<std::unique_ptr<Links>> make_tcp_links(Loop& loop, LinkEvents& events,
                                                            const LinkOptions& options);

}  // namespace pccl
