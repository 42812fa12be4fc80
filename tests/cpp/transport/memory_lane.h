// Two lanes on one loop that are no stream: a frame goes from one to the other in one piece, its
// payload straight from the sender's memory to its place. A stand-in for shared memory.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/lane.h"
#include "transport/loop.h"

namespace pccl::test {

class MemoryLane final : public Lane {
 public:
  /// Ends that belong to `a` and to `b`.
  static std::pair<std::unique_ptr<MemoryLane>, std::unique_ptr<MemoryLane>> pair(Loop& loop,
                                                                                  LaneOwner& a,
                                                                                  LaneOwner& b) {
    auto near = std::unique_ptr<MemoryLane>(new MemoryLane(loop, a));
    auto far = std::unique_ptr<MemoryLane>(new MemoryLane(loop, b));
    near->other_ = far.get();
    far->other_ = near.get();
    return {std::move(near), std::move(far)};
  }
  ~MemoryLane() override { end(); }

  void start() override {
    started_ = true;
    if (other_ != nullptr) other_->move_later();
  }
  void send(Outgoing frame) override {
    if (!open_) return;
    queue_.push_back(std::move(frame));
    move_later();
  }
  void flush() override {
    if (buffers == 0) return move_later();
    while (buffered < buffers) {  // and brings nothing over
      const auto next = owner_.lane_next(*this);
      if (!next) return;
      ++buffered;
      owner_.lane_sent(*next);
    }
  }
  [[nodiscard]] bool idle() const override {
    return open_ && queue_.empty() && (buffers == 0 || buffered < buffers);
  }
  [[nodiscard]] std::size_t cancel(MemoryToken token) override {
    for (Outgoing& frame : queue_) {
      if (frame.token == token && !frame.tells) own_payload(frame);
    }
    std::size_t dropped = 0;
    std::erase_if(queue_, [&](const Outgoing& frame) {
      const bool hit = frame.token == token;
      if (hit) dropped += frame.payload_bytes();
      return hit;
    });
    return dropped;
  }
  void close(std::uint64_t) override {
    closing_ = true;
    move_later();
  }
  void end() override {
    open_ = false;
    queue_.clear();
    if (other_ != nullptr) {
      other_->other_ = nullptr;
      other_->move_later();
    }
    other_ = nullptr;
  }
  [[nodiscard]] bool open() const override { return open_; }
  [[nodiscard]] Sent sent() const override {
    std::size_t waits = 0;
    for (const Outgoing& frame : queue_) waits += frame.payload_bytes();
    return {moved_ + waits, waits, line};
  }
  [[nodiscard]] std::vector<Outgoing> share() override {
    std::vector<Outgoing> slices;
    for (Outgoing& frame : queue_) {
      if (frame.frame.type == FrameType::slice) slices.push_back(std::move(frame));
    }
    std::erase_if(queue_,
                  [](const Outgoing& frame) { return frame.frame.type == FrameType::slice; });
    return slices;
  }
  void go_by_model(bool yes) override { line.by_model = yes; }
  void pace(std::uint64_t bytes_per_second) override { paces.push_back(bytes_per_second); }
  Line line;                         // as the lane tells it
  std::vector<std::uint64_t> paces;  // that it was given
  std::size_t buffers = 0;  // frames that it takes at once, as a kernel does; 0: it moves them
  std::size_t buffered = 0;
  /// Takes one more frame and moves nothing any more, or (false) goes on.
  void stick(bool sticks) {
    sticks_ = sticks;
    move_later();
  }
  /// Both ends are lost, with all that is under way.
  void cut() {
    MemoryLane* other = std::exchange(other_, nullptr);
    other->other_ = nullptr;
    move_later();
    other->move_later();
  }

 private:
  MemoryLane(Loop& loop, LaneOwner& owner) : loop_(loop), owner_(owner) {}

  /// One frame in each round of the loop.
  void move_later() {
    if (std::exchange(moves_, true)) return;
    loop_.defer([this, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      moves_ = false;
      move();
    });
  }
  void move() {
    if (!open_) return;
    if (other_ == nullptr) return ended();
    if (!other_->started_) return;
    if (queue_.empty()) {
      if (auto next = owner_.lane_next(*this)) queue_.push_back(std::move(*next));
    }
    if (!queue_.empty() && !sticks_) {
      const Outgoing frame = std::move(queue_.front());
      queue_.pop_front();
      move_later();
      other_->take(frame);
      moved_ += frame.payload_bytes();
      owner_.lane_sent(frame);
    } else if (closing_ && !std::exchange(goodbye_sent_, true)) {
      other_->take_goodbye();
    }
  }
  void take(const Outgoing& frame) {
    if (closing_) return;
    if (frame.frame.type == FrameType::joined) return owner_.lane_joined(*this);
    owner_.lane_received(frame.payload_bytes(), has_data(frame.frame));
    if (!has_segment(frame.frame.type)) {
      return owner_.lane_message(frame.frame.type, {frame.payload, frame.payload_bytes()});
    }
    const Placement at = owner_.lane_segment_header(frame.frame.segment);
    if (!open_) return;
    if (at.to != nullptr) std::memcpy(at.to, frame.payload, frame.payload_bytes());
    if (at.to == nullptr && !frame.frame.segment.slice.is_one()) return;
    owner_.lane_segment(frame.frame.segment, at);
  }
  void take_goodbye() {
    goodbye_seen_ = true;
    if (!closing_) return owner_.lane_over(*this, "the peer has closed the link", false);
    end();
    owner_.lane_closed(*this);
  }
  /// The other end is gone.
  void ended() {
    open_ = false;
    Leftover left;
    left.slices = share();
    left.more = !queue_.empty();
    if (closing_) return owner_.lane_closed(*this);
    if (!goodbye_seen_) owner_.lane_lost(*this, "the other end is gone", std::move(left));
  }

  Loop& loop_;
  LaneOwner& owner_;
  MemoryLane* other_ = nullptr;
  std::deque<Outgoing> queue_;
  bool started_ = false;
  bool open_ = true;
  bool closing_ = false;
  bool goodbye_sent_ = false;
  bool goodbye_seen_ = false;
  bool moves_ = false;
  bool sticks_ = false;
  std::uint64_t moved_ = 0;  // bytes
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace pccl::test
