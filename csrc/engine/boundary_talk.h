// The engine's events to the user's thread while the program stands at a boundary, in a bounded
// queue. The answers of the user's thread go through the engine's queue.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "engine/boundary.h"

namespace pccl {

class BoundaryTalk {
 public:
  /// Engine's thread. Only the newest question counts, so the queue holds one entry.
  void say(BoundaryEvent event) { put(Result<BoundaryEvent>(std::move(event))); }
  void fail(Error error) { put(Result<BoundaryEvent>(std::move(error))); }

  /// User's thread.
  std::optional<Result<BoundaryEvent>> next(std::uint64_t timeout_ms) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                      [&] { return next_.has_value(); });
    return std::exchange(next_, std::nullopt);
  }

 private:
  void put(Result<BoundaryEvent> event) {
    const std::lock_guard lock(mutex_);
    next_ = std::move(event);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<BoundaryEvent>> next_;
};

}  // namespace pccl
