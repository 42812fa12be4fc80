// One event loop: sockets, timers, a queue of functions from other threads. A thin layer over
// libuv, which appears in no header outside transport/ (the uv types are forward-declared here).
//
// Life: construct; `run` on one thread, or `run_once` again and again on one thread at a time,
// until `stop`; destroy on any thread when nobody runs it. All members but `post`, `wake` and
// `stop` are called on the thread that runs the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

struct uv_loop_s;

namespace pccl {

class FdRegistry;
class Timer;

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Handles events until stop() is called.
  void run();
  /// Handles what is there, waiting at most until something is if `wait`.
  void run_once(bool wait);
  /// Runs `function` on this thread, which nobody else runs the loop on, after what was posted
  /// before; handles no event.
  void run_now(const std::function<void()>& function);
  /// After what was posted before. Thread-safe.
  void stop();
  /// stop() has had its effect.
  [[nodiscard]] bool stopping() const;
  /// Makes a thread that waits in the loop return from run_once. Thread-safe.
  void wake();
  /// Runs `function` on the loop's thread, after what was posted before. Thread-safe; wakes the
  /// loop.
  void post(std::function<void()> function);
  /// Milliseconds of a monotonic clock, read once per iteration of the loop.
  [[nodiscard]] std::uint64_t now_ms() const;
  /// Calls `function` on the loop's thread, once after `delay_ms`, or (`repeat_ms` > 0) again and
  /// again. Destroying the Timer stops it.
  [[nodiscard]] std::unique_ptr<Timer> timer(std::uint64_t delay_ms, std::uint64_t repeat_ms,
                                             std::function<void()> function);
  /// Runs `function` on this thread before the loop waits again. Not thread-safe, no system call.
  void defer(std::function<void()> function);
  /// Keeps `object` until `release` (a connection that sends its rest); destroyed with the loop at
  /// last.
  void keep(std::shared_ptr<void> object);
  void release(const void* object);
  /// Every descriptor of this loop and of what lives on it, so that a forked child can close them:
  /// `registry().close_in_child()` is all that may be called there on anything of this loop.
  [[nodiscard]] FdRegistry& registry() const;
  [[nodiscard]] uv_loop_s* raw() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// A running timer. Destroyed on the loop's thread (or when nobody runs the loop).
class Timer {
 public:
  struct State;
  explicit Timer(State* state) : state_(state) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  State* state_;
};

}  // namespace pccl
