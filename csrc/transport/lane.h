// One lane: a proven byte stream of a link, its frames in both directions. Reads payloads
// straight to where they belong and writes them straight from where they are; knows exactly what is
// half done, so that memory can be taken away from it at any moment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/framing.h"
#include "transport/loop.h"
#include "transport/stream.h"
#include "transport/transport.h"

namespace pccl {

/// A frame on its way out. `payload` is `owned` or the caller's.
struct Outgoing {
  FrameHeader frame;
  const std::byte* payload = nullptr;
  std::vector<std::byte> owned;
  MemoryToken token = 0;
  std::uint64_t cookie = 0;
  bool tells = false;  // its owner is told when the kernel has it

  // By the lane, once it has taken the frame.
  bool encoded = false;
  HeaderBytes header{};
  std::size_t header_size = 0;
  std::size_t sent = 0;  // of header and payload

  [[nodiscard]] std::size_t payload_bytes() const { return frame.payload_bytes; }
};

class Lane;

/// The link that a lane belongs to. Called from the loop; `lane_sent` and `lane_next` also inside
/// Lane::flush, so they must not come back to the lane.
class LaneOwner {
 public:
  virtual ~LaneOwner() = default;
  /// Of a control frame, or of a relay frame.
  virtual void lane_message(FrameType type, std::span<const std::byte> payload) = 0;
  virtual Placement lane_segment_header(const SegmentHeader& header) = 0;
  virtual void lane_segment(const SegmentHeader& header, const Placement& at) = 0;
  virtual void lane_received(std::size_t payload_bytes, FrameType of) = 0;
  virtual void lane_sent(const Outgoing& frame) = 0;
  /// The next frame of the queue that several lanes share.
  virtual std::optional<Outgoing> lane_next(const Lane& lane) = 0;
  /// Nothing more will come: the other side has said goodbye, or (`broken`) it is lost.
  virtual void lane_over(Lane& lane, const std::string& reason, bool broken) = 0;
  /// After close(): the last byte is out and the other side has closed, or nothing moves any more.
  virtual void lane_closed(Lane& lane) = 0;
};

/// On the loop's thread. Reads nothing before `start`. Must outlive the callback it is in: the
/// owner ends it at once and frees it later.
class Lane {
 public:
  enum class Kind : std::uint8_t { small, bulk };
  Lane(Loop& loop, LaneOwner& owner, Kind kind, std::unique_ptr<Stream> stream, bool payload_crc);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void start();
  /// Takes a frame of its own and sends what the kernel takes now.
  void send(Outgoing frame);
  /// Sends what there is, taking from the shared queue when it has nothing of its own.
  void flush();
  [[nodiscard]] bool idle() const { return queue_.empty() && open() && !write_failed_; }

  /// Calls `dropped` for each frame of the token that it will not send. The rest of a half-sent one
  /// is copied, the rest of a half-received one goes nowhere.
  template <typename Dropped>
  void cancel(MemoryToken token, Dropped&& dropped);

  /// Sends what is there and a goodbye, reads no frame any more but waits for the other side's end.
  void close();
  /// Closes at once; no callback comes any more.
  void end();
  [[nodiscard]] bool open() const { return stream_->open(); }

 private:
  void ready(bool readable, bool writable);
  void watch();
  void read();
  void parse();
  bool begin_frame(std::span<const std::byte> header_bytes);
  void begin_payload();
  std::span<std::byte> payload_room();
  void payload_read(std::span<const std::byte> bytes);
  void finish_payload();
  void broken(const std::string& reason);
  void ended(const std::string& reason);
  void refill();
  void encode(Outgoing& frame);
  void taken(std::size_t bytes);
  void watch_progress();

  Loop& loop_;
  LaneOwner& owner_;
  Kind kind_;
  std::unique_ptr<Stream> stream_;
  bool payload_crc_;
  bool started_ = false;

  // Reading. `buffer_` holds what follows the payload that is being read.
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool in_payload_ = false;
  FrameHeader frame_;
  Placement placement_;
  std::vector<std::byte> message_;  // payload of a message that did not fit into the buffer
  std::size_t payload_done_ = 0;
  std::uint32_t payload_crc_seen_ = 0;
  bool goodbye_seen_ = false;

  // Writing.
  std::deque<Outgoing> queue_;
  bool write_failed_ = false;
  std::string write_error_;
  bool closing_ = false;
  bool goodbye_sent_ = false;
  bool shut_ = false;
  std::unique_ptr<Timer> progress_;
  std::uint64_t moved_ = 0;  // bytes, either way
  std::uint64_t moved_before_ = 0;
};

template <typename Dropped>
void Lane::cancel(MemoryToken token, Dropped&& dropped) {
  if (!queue_.empty() && queue_.front().token == token && queue_.front().sent > 0) {
    Outgoing& half = queue_.front();
    const std::size_t done = half.sent > half.header_size ? half.sent - half.header_size : 0;
    half.owned.resize(half.payload_bytes());
    std::copy(half.payload + done, half.payload + half.payload_bytes(),
              half.owned.begin() + static_cast<std::ptrdiff_t>(done));
    half.payload = half.owned.data();
    half.token = 0;
    half.tells = false;
  }
  std::erase_if(queue_, [&](const Outgoing& frame) {
    const bool hit = frame.token == token && frame.tells;
    if (hit) dropped(frame);
    return hit;
  });
  if (in_payload_ && has_segment(frame_.type) && placement_.token == token) {
    placement_ = {};
  }
  watch();
}

}  // namespace pccl
