// The thread that drives an engine's loop; with transport/loop the only place that starts one.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "transport/loop.h"

namespace pccl {

/// Runs `loop` until it is stopped. A broken invariant (PCCL_ASSERT) stops it for good: `broken` is
/// called on the thread, once, and nothing else runs on the loop any more.
class EngineThread {
 public:
  EngineThread(Loop& loop, std::function<void(const std::string&)> broken);
  ~EngineThread() { join(); }
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  void join();
  /// In a forked child the thread does not exist: forget it.
  void forget();
  [[nodiscard]] bool is_current() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  std::thread thread_;
};

}  // namespace pccl
