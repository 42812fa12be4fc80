// The seam between bytes and meaning. Below it: sockets, lanes, framing, handshakes, checksums,
// encryption. Above it: engine/ and master/, which see peers, control payloads and segments.
//
// Everything here lives on one Loop (transport/loop.h) and is called on the thread that runs it.
// tests/sim/engine has links in memory (transport/network.h is the seam).
#pragma once

#include <array>
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

/// The route of a segment that a third peer passes on between two peers that have no link of their
/// own. All zero: the segment comes straight from the link's peer. The sender seals the payload and
/// the other fields of the header, so the third peer sees the route and the number of bytes.
struct Route {
  PeerId from;
  PeerId to;
  std::uint64_t session = 0;  // the receiver's session number, from its `open` (relay_message.h)
  std::uint64_t number = 0;   // of the small, or of the large segments of this link
  std::array<std::byte, 64> fields{};  // of the header, sealed (framing.h)
  std::array<std::byte, 16> tag{};     // of the seal
  bool operator==(const Route&) const = default;
  [[nodiscard]] bool relayed() const { return to != PeerId{}; }
};

/// A slice of a segment: of a long line's segments every lane carries some slices (slices.h), so
/// that none is waited for. All zero: the segment goes in one piece.
struct Slice {
  std::uint64_t number = 0;  // of the sliced segment, among those of the link and direction
  std::uint32_t offset = 0;  // in the segment; a multiple of kSliceBytes
  std::uint32_t bytes = 0;
  bool operator==(const Slice&) const = default;
  [[nodiscard]] bool is_one() const { return bytes > 0; }
};

class OwnArea;
class PeerArea;

/// Where the payload of a segment lies in the area of the process that sends it (area.h): the
/// segment itself carries none.
struct AreaPlace {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;  // of the slot; 0: it lies in no area
  bool operator==(const AreaPlace&) const = default;
};

/// The protocol to which a segment belongs, which decides the code that places it. The numbers are
/// on the wire, and are never reused.
enum class SegmentKind : std::uint8_t {
  collective = 1,  // data of a step of a schedule
  message = 2,     // data of a send that was announced and accepted
  eager = 3,       // a whole small send, which comes without announcement
  state = 4,       // an answer to a `pull`
  measure = 5      // bytes without meaning: the receiver drops them
};

/// The header of a segment; fixed size on the wire (PROTOCOL.md, "Segments"). Transport reads the
/// kind, the bytes and the route, and passes the other fields on unread.
struct SegmentHeader {
  SegmentKind kind = SegmentKind::collective;
  GroupId group;
  EpochId epoch;
  OpKey op;                   // of a send: step = tag, index = number within (sender, tag)
  std::uint32_t channel = 0;  // of a collective: Step::channel
  std::uint64_t offset = 0;   // in the range of the step, in the message or in the item
  std::uint32_t bytes = 0;    // of payload, at most kSegmentBytesMax
  OpDescriptor descriptor;
  Route route;     // used within transport only
  Slice slice;     // used within transport only
  AreaPlace area;  // of an arriving one: where its payload lies
  /// Of an arriving segment: its payload lies in memory, so that it can be used there (Placement).
  bool in_place = false;
};

/// Names the memory of one operation in one epoch at this peer. cancel(token) stops all reading
/// from and writing to that memory. Never reused; 0 is no operation's.
using MemoryToken = std::uint64_t;

/// Where the payload of an arriving segment goes.
struct Placement {
  std::byte* to = nullptr;  // null: drop the payload
  MemoryToken token = 0;
  std::uint64_t cookie = 0;  // handed back in segment_arrived
  /// The payload is not copied: segment_part shows it, part by part. Only for a segment that is
  /// `in_place`, and with a token.
  bool in_parts = false;
  /// The payload is not copied: it is used where it lies in the sender's area, any time later. Only
  /// for a segment that has such a place, and with a token.
  bool lends = false;
  std::shared_ptr<const PeerArea> lender = {};  // of one that lends, in segment_arrived
  [[nodiscard]] bool drops() const { return to == nullptr && !in_parts && !lends; }
};

/// Why a link is down.
enum class Down : std::uint8_t {
  lost,      // it was up
  unopened,  // it did not come up within its deadline
  refused,   // no process listens at the peer's address any more
  spoiled    // over a third peer something came that the other end has not sent
};

/// The calls of Links to its owner, on the loop's thread, never from inside a call of Links. Inside
/// them any call of Links is allowed, but not its destruction.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  /// The link to `peer` is up: its first lane is proven. Other lanes join meanwhile.
  virtual void link_up(PeerId peer) = 0;
  /// The link to `peer` was up and is not any more, or `open` did not succeed within its deadline.
  /// Its queue is dropped. If `open` was called before the loss of the former link was reported,
  /// the reason is `lost`: call `open` again.
  virtual void link_down(PeerId peer, const std::string& reason, Down how) = 0;
  /// A control payload, in the order in which the peer sent them.
  virtual void control_arrived(PeerId peer, std::span<const std::byte> payload) = 0;
  /// The header of a segment has arrived; returns the memory for its payload. Segments of one peer
  /// may arrive in any order.
  virtual Placement segment_header(PeerId peer, const SegmentHeader& header) = 0;
  /// The next part of the payload of a segment that is placed `in_parts`: [offset, offset + bytes)
  /// of it, for use within this call. A part begins at a multiple of 16 bytes, in the payload and
  /// in memory.
  virtual void segment_part(PeerId /*peer*/, const SegmentHeader& /*header*/,
                            const Placement& /*at*/, std::uint32_t /*offset*/,
                            std::span<const std::byte> /*bytes*/) {}
  /// The payload is complete at Placement::to, or its last part has been shown.
  virtual void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) = 0;
  /// In place of it: the other side has begun to write something else where the payload lay. What
  /// was copied, or shown, is of no use, and the segment does not come any more.
  virtual void segment_lost(PeerId /*peer*/, const SegmentHeader& /*header*/,
                            const Placement& /*at*/) {}
  /// People should know this of a direct link that is up, and goes on.
  virtual void link_trouble(PeerId /*peer*/, const std::string& /*what*/) {}
  /// The kernel has taken the last byte of the segment that was sent with `cookie`.
  virtual void segment_sent(PeerId peer, std::uint64_t cookie) = 0;
};

/// The lanes that may go on without encryption once both ends have proven who they are. A lane does
/// if both ends allow it.
enum class Plaintext : std::uint8_t { none, loopback, all };

struct LinkOptions {
  std::vector<std::string> listen_hosts;  // empty: all interfaces
  std::uint16_t port_first = 0;           // 0: any free port
  std::uint16_t port_last = 0;
  std::uint32_t bulk_lanes = 1;
  std::uint64_t tcp_user_timeout_ms = 30000;
  std::optional<bool> payload_crc;  // none: unless both ends are on one machine
  Plaintext plaintext = Plaintext::all;
  bool bbr = true;             // over long lines, where the system lets this process have it
  bool shared_memory = false;  // with processes of this machine and user
  std::uint64_t max_rate = 0;  // bytes a second that all lanes over TCP send together; 0: no cap
};

/// One connection of a link.
struct LaneView {
  std::uint64_t bytes_sent = 0;  // frames
  std::uint64_t bytes_resent = 0;
  std::uint64_t rate = 0;           // bytes a second at which data has arrived lately; 0: not known
  std::uint64_t round_trip_us = 0;  // now
};

/// What a link that is up has carried since then, and over what, for people.
struct LinkView {
  PeerId peer;
  std::string name;              // as logs name the peer
  std::string carrier;           // what its bytes go through
  std::uint64_t bytes_sent = 0;  // payload of segments and messages
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_resent = 0;   // that TCP has sent again
  std::uint64_t bytes_arrived = 0;  // that the other machine's TCP has, of all that lanes have sent
  bool local = false;               // it stays on this machine, and needs no network
  std::size_t bulk_lanes = 0;
  std::uint64_t lanes_lost = 0;     // without the link
  std::uint64_t round_trip_us = 0;  // the shortest; 0: not known
  bool bbr = false;                 // its lanes use BBR
  std::uint64_t pace = 0;           // bytes a second that it is held to; 0: to none
  std::vector<LaneView> lanes;      // those open, the small one first; of Links::views alone
};

/// For how long a process that ends sends what others still need.
struct GoodbyeTime {
  /// c10d's time-out of an operation, unless a program sets another one: nobody waits longer for
  /// data.
  static constexpr std::uint64_t kAllMs = 30ULL * 60 * 1000;
  std::uint64_t quiet_ms = 0;     // a link over which nothing moves for so long ends
  std::uint64_t all_ms = kAllMs;  // all links end, however they move; quiet_ms at least
};

/// A link has a small lane, its first, and bulk lanes, which join it: the side that dials adds
/// `bulk_lanes` bulk lanes at once. Control messages and segments of up to kSmallSegmentBytesMax go
/// over the small lane. Larger segments go over the bulk lanes; as long as there is none, over the
/// small lane, behind its own frames. Of two peers the one with the smaller id dials first; if that
/// does not succeed the other one dials too, so that a peer which no other can dial (behind a NAT)
/// gets its links.
class LinksBase {
 public:
  virtual ~LinksBase() = default;

  /// This process's handle, but for the host part of its addresses, which the caller decides.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  [[nodiscard]] virtual PeerId self() const = 0;
  [[nodiscard]] virtual const PublicKey& key() const = 0;

  /// Brings up the link to a peer, by dialling or by waiting to be dialled; link_up or link_down
  /// follows (link_up also if the link is up already). May be called again after link_down.
  /// `refusal_tells`: a refused dial means that the peer is gone. Otherwise the peer may be one
  /// that can only dial.
  virtual void open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) = 0;
  /// Sends the queue (as long as bytes move), then closes both directions; no callback for this
  /// link comes any more. The memory of queued segments stays borrowed until cancel(token).
  virtual void close(PeerId peer) = 0;
  /// Closes at once.
  virtual void drop(PeerId peer) = 0;
  /// Closes at once a link that is up but moves nothing; link_down follows, with this reason.
  virtual void give_up(PeerId peer, const std::string& reason) = 0;
  /// What has been seen of a direct link that is being opened and not up yet; empty: nothing. For
  /// people.
  [[nodiscard]] virtual std::string opening_text(PeerId) const { return ""; }
  /// Why a direct link that is up moves nothing large, as far as is known; empty: nothing. For
  /// people. The reason of link_down has it, too.
  [[nodiscard]] virtual std::string trouble_text(PeerId) const { return ""; }
  [[nodiscard]] virtual bool is_up(PeerId peer) const = 0;

  /// These two do nothing if the link to the peer is not up.
  virtual void send_control(PeerId peer, std::vector<std::byte> payload) = 0;
  /// The payload is borrowed until segment_sent, or until cancel(token).
  virtual void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                            MemoryToken token, std::uint64_t cookie) = 0;
  /// The memory of this process that others of its machine read. A segment whose payload begins a
  /// slot there goes as a reference to a process that reads it: what it lies in may be written
  /// again when the other side has said by data of its own that it has read it. Null: there is
  /// none.
  [[nodiscard]] virtual OwnArea* area() { return nullptr; }
  /// After this call no byte is read from or written to memory under `token`: queued segments are
  /// dropped, the rest of a half-sent one is copied, the rest of a half-received one is dropped.
  virtual void cancel(MemoryToken token) = 0;

  /// Payload bytes of segments and control messages so far, all links.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_received() const = 0;
  /// Those of the sent ones that went through memory which both ends share.
  [[nodiscard]] virtual std::uint64_t bytes_shared() const { return 0; }
  /// The time in which data has waited because of LinkOptions::max_rate.
  [[nodiscard]] virtual std::uint64_t rate_held_ms() const { return 0; }
  /// The links that are up and direct.
  [[nodiscard]] virtual std::vector<LinkView> views() const { return {}; }
  /// The one to this peer.
  [[nodiscard]] virtual std::optional<LinkView> view(PeerId) const { return std::nullopt; }
  /// Payload bytes of segments so far, unfinished ones included, but not of those that measure: the
  /// number grows as long as a link moves data, however slowly.
  [[nodiscard]] virtual std::uint64_t segment_bytes_received() const = 0;
  /// Payload bytes queued and not yet taken by the kernel, to one peer.
  [[nodiscard]] virtual std::size_t queued_bytes(PeerId peer) const = 0;

  /// Stops listening, sends the queue of every link until the other side has closed it or the time
  /// is over, then calls `done`.
  virtual void shutdown(const GoodbyeTime& time, std::function<void()> done) = 0;
};

/// The links of this process: one for each peer, shared by all groups, direct or over a third peer.
/// A link that is closed or dropped ends for the owner at once. Its connection stays, as long as
/// data moves, for relayed links over it that still send their queue, and for data that this
/// process passes on between others.
class Links : public LinksBase {
 public:
  /// As `open`, for a peer that cannot be reached directly: over `via`, to which both peers have,
  /// or soon have, a link. If there is a direct link to the peer, that link is used.
  virtual void open_via(const Handle& peer, PeerId via, std::uint64_t deadline_ms) = 0;
  /// The third peer over which the link to this peer goes; none: the link is direct.
  [[nodiscard]] virtual std::optional<PeerId> via(PeerId peer) const = 0;
  /// Payload bytes of segments that this process has passed on between others.
  [[nodiscard]] virtual std::uint64_t bytes_relayed() const = 0;
};

class Loop;
class KeyPair;
/// Over TCP, for the process whose key pair is `identity`. Throws nothing: a port that cannot be
/// opened is the Result's error.
[[nodiscard]] Result<std::unique_ptr<Links>> make_tcp_links(Loop& loop, LinkEvents& events,
                                                            const KeyPair& identity,
                                                            const LinkOptions& options);

}  // namespace pccl
