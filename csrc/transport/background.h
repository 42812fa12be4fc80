// Two services of a loop beside its sockets: signals as events, and work that may block (a disk) on
// a thread of libuv's pool, so that the loop goes on meanwhile. Only the master uses this file.
#pragma once

#include <functional>
#include <memory>

#include "transport/loop.h"

namespace pccl {

/// Calls `function` on the loop's thread whenever the process gets the signal; its default action
/// does not happen while this object lives. Destroyed on the loop's thread (or when nobody runs the
/// loop).
class SignalWatch {
 public:
  SignalWatch(Loop& loop, int signal, std::function<void()> function);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  struct State;
  State* state_;
};

/// Runs `work` on another thread, then `done` on the loop's. An exception of `work` leaves through
/// the loop's run. The work cannot be cancelled; `done` must not assume that the object which asked
/// for it still lives.
void run_in_background(Loop& loop, std::function<void()> work, std::function<void()> done);

}  // namespace pccl
