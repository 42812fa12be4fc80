// Decides whether a waiting thread polls for a moment before it sleeps. Being woken costs two to
// five times what a small message does (docs/architecture/costs.md, "Measurements"), so a waiting
// thread looks again and again, and yields its core in between. If a yield takes long, another
// thread (of a data loader, of another job) needs the core: then polling pauses, for longer each
// time. In the same way a thread that others help (helpers.h) goes on alone for a while where the
// others do not get their cores. Used by one thread at a time.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace pccl {

class YieldGuard {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLongYieldMs{1};
  static constexpr std::chrono::milliseconds kPauseMsMin{50};
  static constexpr std::chrono::milliseconds kPauseMsMax{1600};

  [[nodiscard]] bool open(Clock::time_point now) const { return now >= closed_until_; }

  void yield() {
    const auto before = Clock::now();
    ::sched_yield();
    took(before, Clock::now());
  }

  /// Reports a yield, or a wait for a helper, that lasted from `before` to `after`.
  void took(Clock::time_point before, Clock::time_point after) {
    if (after - before > kLongYieldMs) {
      pause_ = std::clamp(2 * pause_, kPauseMsMin, kPauseMsMax);
      closed_until_ = after + pause_;
    } else if (after - closed_until_ > pause_) {
      pause_ = {};  // it went well for as long as the pause was
    }
  }

 private:
  Clock::time_point closed_until_{};
  std::chrono::milliseconds pause_{};
};

}  // namespace pccl
