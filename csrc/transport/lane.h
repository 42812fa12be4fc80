// The interface between a link and the lanes that carry its frames: a lane moves frames to one peer
// and back. A link uses lanes by this interface alone. The lane of this project is StreamLane
// (stream_lane.h), over whatever Stream (stream.h) carries its bytes: TCP, TLS, a unix socket,
// memory that two processes share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/framing.h"
#include "transport/line.h"
#include "transport/transport.h"

namespace pccl {

/// A frame that is to be sent. `payload` points into `owned` or into memory of the caller.
struct Outgoing {
  FrameHeader frame;
  const std::byte* payload = nullptr;
  std::vector<std::byte> owned;
  MemoryToken token = 0;
  std::uint64_t cookie = 0;
  /// A whole segment, of borrowed memory: the owner of the links hears when it is sent, and a
  /// `cancel` of its token drops it if it has not begun. False of a slice, of a message and of
  /// payload that is copied: a `cancel` copies what a slice borrows, and the slice is sent.
  bool tells = false;
  /// Of a slice: is it the first one that a lane sends? `again`: a copy of one that the kernel has
  /// taken before, for a connection that was lost or is stuck. `spare`: has begun on this lane, and
  /// another lane sends a copy, too.
  enum class Copy : std::uint8_t { first, again, spare };
  Copy copy = Copy::first;

  // Set by the lane, once it has taken the frame.
  bool encoded = false;
  HeaderBytes header{};
  std::size_t header_size = 0;
  std::size_t sent = 0;  // of header and payload
  bool shared = false;   // went through memory that both ends share

  [[nodiscard]] std::size_t payload_bytes() const { return frame.payload_bytes; }
  /// That the other side gets: also what a reference names.
  [[nodiscard]] std::size_t data_bytes() const {
    return frame.type == FrameType::reference ? frame.segment.bytes : frame.payload_bytes;
  }
};

/// Copies the payload of a frame whose memory goes. Throws std::bad_alloc.
inline void own_payload(Outgoing& frame) {
  if (frame.owned.empty()) frame.owned.assign(frame.payload, frame.payload + frame.payload_bytes());
  frame.payload = frame.owned.data();
  frame.token = 0;
  frame.tells = false;
}

/// What a lane has taken and not brought to the other side's machine, as far as it knows.
struct Leftover {
  std::vector<Outgoing> slices;  // to be sent over other lanes, in order
  bool more = false;             // frames that are no slices, of which there are no copies
};

class Lane;

/// The link that a lane belongs to. Called from the loop; `lane_sent` and `lane_next` also inside
/// Lane::send and Lane::flush, so they must not come back to the lane.
class LaneOwner {
 public:
  virtual ~LaneOwner() = default;
  /// The payload of a control frame, or of a relay frame.
  virtual void lane_message(FrameType type, std::span<const std::byte> payload) = 0;
  /// Returns the memory for a segment's payload, or a slice's. A segment that is dropped is
  /// followed by no `lane_segment`, a slice is.
  virtual Placement lane_segment_header(const SegmentHeader& header) = 0;
  /// As LinkEvents::segment_part; of an owner that places segments in parts.
  virtual void lane_part(const SegmentHeader&, const Placement&, std::uint32_t,
                         std::span<const std::byte>) {}
  virtual void lane_segment(const SegmentHeader& header, const Placement& at) = 0;
  /// As LinkEvents::segment_lost; of an owner whose lanes lend.
  virtual void lane_segment_lost(const SegmentHeader&, const Placement&) {}
  /// May other lanes have written to the place of this slice, too?
  [[nodiscard]] virtual bool lane_shares(const SegmentHeader& slice) const {
    static_cast<void>(slice);
    return false;
  }
  /// `data`: has_data (framing.h).
  virtual void lane_received(std::size_t payload_bytes, bool data) = 0;
  /// The lane does not need the memory of this frame any more.
  virtual void lane_sent(const Outgoing& frame) = 0;
  /// The next frame of the queue that several lanes share.
  virtual std::optional<Outgoing> lane_next(const Lane& lane) = 0;
  /// The side that dialled this lane has said that it belongs to the link.
  virtual void lane_joined(Lane& lane) = 0;
  /// The other side has said goodbye, so no more frames will come. Or (`broken`) the peer breaks
  /// the rules of frames, and the lane has ended.
  virtual void lane_over(Lane& lane, const std::string& reason, bool broken) = 0;
  /// The connection is lost, without a goodbye; the lane has ended. In `left` is what this side has
  /// sent; `more` also if a frame was coming that the other side does not send again.
  virtual void lane_lost(Lane& lane, const std::string& reason, Leftover left) = 0;
  /// After close(): the last byte is sent and the other side has closed, or no byte moves any more.
  virtual void lane_closed(Lane& lane) = 0;
};

/// Used on the loop's thread. Delivers whole frames in their order, each once, and none before
/// `start`. A lane must outlive a callback that it makes: the owner ends the lane at once and frees
/// it later.
class Lane {
 public:
  enum class Kind : std::uint8_t { small, bulk };
  virtual ~Lane() = default;

  virtual void start() = 0;
  /// Takes a frame for this lane alone, and sends as much as the stream takes now.
  virtual void send(Outgoing frame) = 0;
  /// Sends the lane's own frames, then frames of the queue that several lanes share.
  virtual void flush() = 0;
  /// Would this lane take a frame of the shared queue at once?
  [[nodiscard]] virtual bool idle() const = 0;
  /// What the lane has sent, as far as it knows.
  struct Sent {
    std::uint64_t bytes = 0;
    std::size_t unacknowledged = 0;  // of them
    Line line;
    bool held = false;        // waits under the rate of the process (rate_queue.h)
    std::uint64_t holds = 0;  // how often it has begun to wait so
  };
  [[nodiscard]] virtual Sent sent() const { return {}; }
  /// Frees the copies of what has arrived at the other side's machine.
  virtual void trim() {}
  /// Hands over all slices that the other side's machine may not have, for other lanes to send too.
  /// The lane goes on with those that have begun.
  [[nodiscard]] virtual std::vector<Outgoing> share() { return {}; }
  /// If this slice is being read, the rest of it is dropped: it has come over another lane.
  virtual void drop_slice(std::uint64_t number, std::uint32_t offset) {
    static_cast<void>(number);
    static_cast<void>(offset);
  }
  /// Goes by a model from now on, where the system lets it, or by losses again.
  virtual void go_by_model(bool by_model) { static_cast<void>(by_model); }
  /// Sends no faster than this from now on; 0: as fast as it can.
  virtual void pace(std::uint64_t bytes_per_second) { static_cast<void>(bytes_per_second); }
  /// Lets the other side read the area of this process, if the lane can pass it.
  virtual void lend(std::shared_ptr<OwnArea> own) { static_cast<void>(own); }
  /// Does the other side read the area of this process, so that segments may go as references?
  [[nodiscard]] virtual bool lends() const { return false; }
  /// Does the lane stay on this machine, without a network?
  [[nodiscard]] virtual bool local() const { return false; }
  /// What the frames go through, for people.
  [[nodiscard]] virtual std::string_view carrier() const { return "memory"; }

  /// After this call no byte is read from or written to memory under `token`: the rest of a
  /// half-sent frame is copied, the rest of a half-received one is dropped. Returns the payload
  /// bytes of the dropped frames.
  [[nodiscard]] virtual std::size_t cancel(MemoryToken token) = 0;

  /// Sends the queued frames and a goodbye; then reads no more frames, and waits until the other
  /// side closes, or until no byte has moved for `quiet_ms`. Called again it changes that time.
  virtual void close(std::uint64_t quiet_ms) = 0;
  /// Has it ended because no byte moved?
  [[nodiscard]] virtual bool gave_up() const { return false; }
  /// Closes at once; no callback comes any more.
  virtual void end() = 0;
  [[nodiscard]] virtual bool open() const = 0;
};

}  // namespace pccl
