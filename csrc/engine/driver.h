// The thread that runs the loop of an engine: the engine's own thread, or a thread of the program
// that waits for an outcome. To hand a result from one thread to another costs more than a small
// message on the network (ARCHITECTURE.md, "Threads"). So a waiting caller drives the loop, and the
// engine's own thread takes over when no caller has driven for a millisecond. The only place that
// starts a thread for a loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/ticket.h"
#include "transport/loop.h"
#include "transport/yield_guard.h"

namespace pccl {

/// Runs `loop` until it is stopped. A broken invariant (PCCL_ASSERT) stops it for good: `broken` is
/// called once, on the driving thread, and nothing else runs on the loop any more. A posted
/// function that has not run by then is destroyed without having run. Thread-safe but for the
/// constructor and `forget`.
class Driver {
 public:
  enum class Cost : std::uint8_t {
    small,
    large,
    look,  // small, and changes nothing
  };

  Driver(Loop& loop, std::function<void(const std::string&)> broken);
  ~Driver() { join(); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Runs `function` on the loop, after the functions posted before; a `look` overtakes them. A
  /// `small` function and a `look` may run on the calling thread, before the call returns; a
  /// `large` one never does, nor on the thread of another caller that posts.
  void post(std::function<void()> function, Cost cost);
  /// Waits for the outcome as Ticket::wait does, and drives the loop meanwhile if no other caller
  /// does. The time-out is exact to the loop's tick. False if the loop has ended and the ticket has
  /// no outcome: then none will come.
  bool wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms);

  /// Has the loop ended, so that no thread will drive it any more?
  [[nodiscard]] bool ended() const;
  /// Waits until the loop has been stopped and the engine's thread has ended. Several threads may.
  void join();
  /// In a forked child: forgets the thread, which does not exist there, and the mutex, which
  /// another thread may have held.
  void forget();
  /// Is the loop driven by this very thread?
  [[nodiscard]] bool is_current() const {
    return current_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  enum class User : std::uint8_t { none, engine, waiter, poster };
  struct State {
    std::mutex mutex;
    std::condition_variable freed;     // callers that want to drive
    std::condition_variable stand_by;  // the engine's thread
    User user = User::none;
    std::uint32_t wanted = 0;   // callers that ask the engine's thread for the loop
    std::uint32_t waiting = 0;  // callers that wait while another one drives
    bool used = false;          // by a caller that waited, since the engine's thread last looked
    bool called = false;        // the engine's thread is needed now
    bool asleep = false;        // it sleeps until the caller that drives leaves
    bool ended = false;
    YieldGuard yields;   // of the caller that drives
    std::mutex joining;  // held while a caller waits for the end of `thread`, by nobody else
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;

  void run();
  void stand_by(Lock& lock);
  template <typename Condition>
  void sleep_until(Lock& lock, Condition condition);
  void enter(Lock& lock, User user);
  void leave(Lock& lock);
  void guard(const std::function<void()>& body);
  void say_broken(const char* what) noexcept;
  void drive_until(const Ticket& ticket, std::optional<Clock::time_point> deadline);

  Loop& loop_;
  std::function<void(const std::string&)> broken_;
  std::atomic<std::thread::id> current_{};
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

}  // namespace pccl
