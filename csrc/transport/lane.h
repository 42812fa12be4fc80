// The seam between a link and what carries its frames: a lane moves frames to one peer and back. A
// link knows lanes by this interface alone, so what is no byte stream (memory that two processes
// share) is one file beside stream_lane.h, and what is another byte stream (TLS) one below it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/framing.h"
#include "transport/transport.h"

namespace pccl {

/// A frame on its way out. `payload` is `owned` or the caller's.
struct Outgoing {
  FrameHeader frame;
  const std::byte* payload = nullptr;
  std::vector<std::byte> owned;
  MemoryToken token = 0;
  std::uint64_t cookie = 0;
  bool tells = false;  // its owner is told when the lane has it

  // By the lane, once it has taken the frame.
  bool encoded = false;
  HeaderBytes header{};
  std::size_t header_size = 0;
  std::size_t sent = 0;  // of header and payload

  [[nodiscard]] std::size_t payload_bytes() const { return frame.payload_bytes; }
};

class Lane;

/// The link that a lane belongs to. Called from the loop; `lane_sent` and `lane_next` also inside
/// Lane::send and Lane::flush, so they must not come back to the lane.
class LaneOwner {
 public:
  virtual ~LaneOwner() = default;
  /// Of a control frame, or of a relay frame.
  virtual void lane_message(FrameType type, std::span<const std::byte> payload) = 0;
  /// Says where a segment's payload goes. Nowhere: it is dropped, and `lane_segment` does not come.
  virtual Placement lane_segment_header(const SegmentHeader& header) = 0;
  virtual void lane_segment(const SegmentHeader& header, const Placement& at) = 0;
  virtual void lane_received(std::size_t payload_bytes, FrameType of) = 0;
  /// The lane needs the memory of this frame no more.
  virtual void lane_sent(const Outgoing& frame) = 0;
  /// The next frame of the queue that several lanes share.
  virtual std::optional<Outgoing> lane_next(const Lane& lane) = 0;
  /// The side that dialled this lane has said that it belongs to the link.
  virtual void lane_joined(Lane& lane) = 0;
  /// Nothing more will come: the other side has said goodbye, or (`broken`) it is lost.
  virtual void lane_over(Lane& lane, const std::string& reason, bool broken) = 0;
  /// After close(): the last byte is out and the other side has closed, or nothing moves any more.
  virtual void lane_closed(Lane& lane) = 0;
};

/// On the loop's thread. Delivers frames whole, in their order, each once. Delivers nothing before
/// `start`. Must outlive the callback it is in: the owner ends it at once and frees it later.
class Lane {
 public:
  enum class Kind : std::uint8_t { small, bulk };
  virtual ~Lane() = default;

  virtual void start() = 0;
  /// Takes a frame of its own and sends what goes now.
  virtual void send(Outgoing frame) = 0;
  /// Sends what there is, taking from the shared queue when it has nothing of its own.
  virtual void flush() = 0;
  /// It would take from the shared queue at once.
  [[nodiscard]] virtual bool idle() const = 0;

  /// After it returns nothing is read from or written to memory under `token`: the rest of a
  /// half-sent frame is copied, the rest of a half-received one goes nowhere. Returns the payload
  /// bytes of the frames that it dropped.
  [[nodiscard]] virtual std::size_t cancel(MemoryToken token) = 0;

  /// Sends what is there and a goodbye, reads no frame any more but waits for the other side's end.
  virtual void close() = 0;
  /// Closes at once; no callback comes any more.
  virtual void end() = 0;
  [[nodiscard]] virtual bool open() const = 0;
};

}  // namespace pccl
