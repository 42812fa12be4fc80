// Time, and functions that run later on the same thread. The Loop (loop.h) is a clock; a simulated
// world has a clock of virtual time for each process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace pccl {

/// A running timer. Destroying it stops it, on the clock's thread (or when nobody runs the loop).
class Timer {
 public:
  Timer() = default;
  virtual ~Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
};

class Clock {
 public:
  virtual ~Clock() = default;
  /// Milliseconds of a monotonic clock, read once per iteration of the loop.
  [[nodiscard]] virtual std::uint64_t now_ms() const = 0;
  /// Milliseconds of a monotonic clock that also counts while the machine is suspended.
  [[nodiscard]] virtual std::uint64_t boot_ms() const = 0;
  /// Calls `function` on this thread, once after `delay_ms`, or (`repeat_ms` > 0) again and again.
  [[nodiscard]] virtual std::unique_ptr<Timer> timer(std::uint64_t delay_ms,
                                                     std::uint64_t repeat_ms,
                                                     std::function<void()> function) = 0;
  /// Runs `function` on this thread before the loop waits again. Not thread-safe, no system call.
  virtual void defer(std::function<void()> function) = 0;
  /// Runs `function` on the loop's thread, after what was posted before. Thread-safe; wakes the
  /// loop.
  virtual void post(std::function<void()> function) = 0;
};

}  // namespace pccl
