// The inside of a Loop, for the few files that attach libuv handles to it (loop, poll, connector,
// background).
#pragma once

#include <uv.h>

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/fd_registry.h"
#include "transport/helpers.h"
#include "transport/loop.h"
#include "transport/turns.h"

namespace pccl {

struct Loop::State {
  explicit State(std::size_t threads) : helpers(threads) {}

  uv_loop_t uv{};
  uv_async_t wake{};
  uv_prepare_t before_wait{};
  uv_check_t after_wait{};
  uv_idle_t busy{};  // active while deferred functions are left: the loop does not wait then
  FdRegistry fds;
  bool stop_asked = false;
  std::mutex posted_mutex;
  struct Posted {
    std::function<void()> function;
    bool runs_long = false;
  };
  std::deque<Posted> posted;    // under posted_mutex
  std::function<void()> broke;  // the posted function in which `broken` came
  bool refuses = false;         // under posted_mutex
  std::vector<std::function<void()>> deferred;
  std::vector<Loop::Watched*> watched;  // null: its watch has ended, in this round
  bool may_wait = true;                 // in this round
  bool sleeps = false;
  bool handled = false;  // something, in this round
  std::unordered_map<const void*, std::shared_ptr<void>> kept;
  Turns turns;
  Helpers helpers;
  std::exception_ptr broken;  // thrown by a callback: leaves through run or run_once

  /// Calls `function` on behalf of libuv, whose C frames an exception must not pass.
  template <typename Function>
  void guard(Function&& function) noexcept {
    if (broken) return;
    handled = true;
    try {
      function();
    } catch (...) {
      broken = std::current_exception();
      uv_stop(&uv);
    }
  }
  enum class Which : std::uint8_t { all, to_a_long_one };
  /// Runs the functions that were posted, for a turn; wakes the loop for those that are left.
  void run_posted(Which which);
  /// False: it was refused, and is left to the caller.
  bool add(std::function<void()>&& function, Place place);
  void run_deferred();
  void before_waiting();
  void after_waiting();
  void rethrow();

  static State& of(const Loop& loop) { return *loop.state_; }
  static State& of(const uv_handle_t* handle) { return *static_cast<State*>(handle->loop->data); }
};

}  // namespace pccl
