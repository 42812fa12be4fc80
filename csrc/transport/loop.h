// One event loop: sockets, timers, a queue of functions from other threads. A thin layer over
// libuv, which appears in no header outside transport/ (the uv types are forward-declared here).
//
// Life: construct; `run` on one thread, or `run_once` again and again on one thread at a time,
// until `stop`; destroy on any thread when no thread runs the loop. All members but `post`, `wake`
// and `stop` are called on the thread that runs the loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "transport/clock.h"

struct uv_loop_s;

namespace pccl {

class FdRegistry;
class Helpers;
class Turns;

class Loop final : public Clock {
 public:
  /// `threads`: with the one that runs the loop; the others help it (helpers.h).
  explicit Loop(std::size_t threads = 1);
  ~Loop() override;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Handles events until stop() is called.
  void run();
  /// Handles the events that have come; `wait`: waits for one if there is none. Returns whether
  /// there was one.
  bool run_once(bool wait);
  /// Among the functions that were posted and have not run. A `last_and_long` one takes its time:
  /// run_now leaves it, and what comes after it, to the thread that runs the loop.
  enum class Place : std::uint8_t { first, last, last_and_long };
  /// Posts `function`, and runs what is posted once on this thread; handles no event. No
  /// other thread may run the loop meanwhile.
  void run_now(std::function<void()> function, Place place = Place::last);
  /// Ends `run` after the functions posted before. Thread-safe.
  void stop();
  /// Has stop() had its effect?
  [[nodiscard]] bool stopping() const;
  /// Makes a thread that waits in the loop return from run_once. Thread-safe.
  void wake();
  void post(std::function<void()> function) override;
  void post(std::function<void()> function, Place place);
  /// The loop will not run any more: functions that have not run are destroyed, now and when they
  /// are posted. Thread-safe.
  void refuse_posts();
  [[nodiscard]] std::uint64_t now_ms() const override;
  [[nodiscard]] std::uint64_t boot_ms() const override;
  [[nodiscard]] std::unique_ptr<Timer> timer(std::uint64_t delay_ms, std::uint64_t repeat_ms,
                                             std::function<void()> function) override;
  void defer(std::function<void()> function) override;
  /// Keeps `object` (a connection that still sends its queue) until `release`, or until the loop is
  /// destroyed.
  void keep(std::shared_ptr<void> object);
  void release(const void* object);
  /// All descriptors of this loop and of the objects on it. A forked child closes them by
  /// `registry().close_in_child()`, and may call nothing else of this loop.
  [[nodiscard]] FdRegistry& registry() const;

  /// Something that no descriptor announces, so that the loop looks at it in each of its rounds.
  class Watched {
   public:
    virtual ~Watched() = default;
    /// Handles what has come, and says whether anything had. May end its own watch, and others.
    [[nodiscard]] virtual bool look() = 0;
    /// The loop is about to wait: from now on a descriptor has to announce what comes. False:
    /// something has come meanwhile.
    [[nodiscard]] virtual bool sleep() = 0;
    /// The loop has waited: it looks by itself again.
    virtual void wake() = 0;
  };
  /// Of what moves much, in each round after the sockets have said what is ready.
  [[nodiscard]] Turns& turns() const;
  [[nodiscard]] Helpers& helpers() const;
  /// Until `unwatch`, which comes before the object goes.
  void watch(Watched& watched);
  void unwatch(Watched& watched);

  [[nodiscard]] uv_loop_s* raw() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace pccl
