// Bytes on their way between two processes: a wire is one connection of several lanes, each with
// two ways. A frame is taken from its sender's memory piece by piece and handed over piece by
// piece; nothing here knows what it means. Order holds within a lane and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "processes.h"
#include "transport/framing.h"
#include "transport/transport.h"

namespace pccl::sim {

struct Frame {
  FrameType type = FrameType::control;
  SegmentHeader header;
  const std::byte* from = nullptr;  // the sender's memory; null: all is in `bytes`
  std::vector<std::byte> bytes;     // what has left that memory
  std::size_t size = 0;
  std::size_t taken = 0;
  MemoryToken token = 0;
  std::uint64_t cookie = 0;
  bool tells = false;

  void take(std::size_t count) {
    if (from != nullptr) bytes.insert(bytes.end(), from + taken, from + taken + count);
    taken += count;
  }
};
using FramePointer = std::shared_ptr<Frame>;

class Wire;

/// Who holds one end of a wire: the links of a process.
class WireEnd {
 public:
  virtual ~WireEnd() = default;
  virtual Process& process() = 0;
  /// Bytes of the frame have arrived: from..to of its payload (both 0: its header).
  virtual Placement header(Wire& wire, const Frame& frame) = 0;
  virtual void bytes(Wire& wire, const Frame& frame, std::size_t count) = 0;
  virtual void whole(Wire& wire, const Frame& frame, const Placement& at) = 0;
  /// The kernel has taken the last byte of it.
  virtual void taken(Wire& wire, const Frame& frame) = 0;
  /// The other end has closed; `broken`: not in good order.
  virtual void over(Wire& wire, const std::string& reason, bool broken) = 0;
};

/// How a wire of this pair behaves, chosen once for each.
struct Weather {
  std::uint64_t delay_us = 100;        // for each piece, up to
  std::uint64_t bulk_delay_us = 100;   // the same on bulk lanes
  std::size_t piece_bytes = 1 << 16;   // handed over at once, up to
  std::size_t window_bytes = 1 << 16;  // taken from the sender and not handed over
};

class Wire : public std::enable_shared_from_this<Wire> {
 public:
  Wire(Time& time, std::size_t lanes, Weather weather);

  void attach(int side, WireEnd* end) { ends_[side] = end; }
  /// The owner has heard of the link: it reads from now on.
  void start(int side);
  void send(int side, FramePointer frame);
  void cancel(int side, MemoryToken token);
  /// Nothing more is sent or read at this side. `broken`: and what is under way may be lost.
  void shut(int side, bool broken);
  /// What is queued still goes, then a goodbye; nothing is read any more.
  void close(int side);
  /// Nothing passes this way any more, and nobody is told.
  void mute(int side_from) { muted_[side_from] = true; }
  [[nodiscard]] bool muted() const { return muted_[0] || muted_[1]; }
  [[nodiscard]] std::size_t queued(int side) const;
  [[nodiscard]] bool flushed(int side) const;
  /// Bytes that this side has sent, as often as they have got on; grows while it sends.
  [[nodiscard]] std::uint64_t moved(int side) const { return moved_[side]; }
  [[nodiscard]] bool is_over(int side) const { return ends_[1 - side] == nullptr; }
  [[nodiscard]] WireEnd* end(int side) const { return ends_[side]; }

 private:
  struct Way {  // of one lane, in one direction
    std::deque<FramePointer> queue;
    std::deque<FramePointer> under_way;  // the last one perhaps not taken as a whole
    std::size_t handed = 0;              // bytes of the first one
    bool header_seen = false;
    Placement at;
    std::size_t in_flight = 0;
    bool take_planned = false;
    bool hand_planned = false;
    bool goodbye = false;  // after what is queued
    bool said_over = false;
  };
  Way& way(int from, std::size_t lane) { return ways_[from][lane]; }
  void plan_take(int from, std::size_t lane);
  void plan_hand(int from, std::size_t lane);
  void take(int from, std::size_t lane);
  void hand(int from, std::size_t lane);
  void over_if_done(int from, std::size_t lane);

  Time& time_;
  Weather weather_;
  std::vector<Way> ways_[2];
  WireEnd* ends_[2] = {nullptr, nullptr};
  bool started_[2] = {false, false};
  bool discards_[2] = {false, false};  // closing: reads into nowhere
  bool broken_[2] = {false, false};    // this side was shut without a goodbye
  bool shut_[2] = {false, false};
  bool muted_[2] = {false, false};
  std::size_t goodbyes_[2] = {0, 0};  // seen at this side
  std::uint64_t moved_[2] = {0, 0};
};

}  // namespace pccl::sim
