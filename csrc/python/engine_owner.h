// The one owner of the process's engine: made with the first group, shared by all, ended by
// shutdown(). The only global of csrc/, because torch's creator functions are global too. Knows no
// torch. After a fork the child's copy closes the inherited descriptors, and every use of it
// raises.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace pccl {

/// For functions of users, at the end of the process.
inline constexpr std::uint64_t kDrainMs = 5000;

/// Thread-safe. Never destroyed: the engine's thread may outlive `main`.
class EngineOwner {
 public:
  static EngineOwner& instance();

  /// Sets the options of the next engine; `invalid` if there is an engine already.
  [[nodiscard]] Error configure(const EngineOptions& options);
  /// The engine, made if there is none.
  [[nodiscard]] Result<std::shared_ptr<Engine>> engine();
  /// The engine if there is one, else null; null too in a forked child.
  [[nodiscard]] std::shared_ptr<Engine> existing();

  /// Sets the function that gets the group events of the present engine and of later ones; empty:
  /// none.
  void set_event_sink(std::function<void(const GroupEvent&)> sink);
  /// Called at the end of shutdown(), when no operation is left without an outcome, if `owner` is
  /// still there.
  void at_shutdown(std::weak_ptr<void> owner, std::function<void()> function);

  /// Ends the engine in good order. A later engine() makes another one.
  /// `failure`, `gives_up`: as Engine::shutdown.
  void shutdown(const std::string& failure = {}, const std::function<bool()>& gives_up = nullptr);

  /// Called in a forked child, which must not use the engine.
  [[nodiscard]] bool forked() const { return forked_.load(std::memory_order_relaxed); }

 private:
  EngineOwner();
  void in_child();

  std::atomic<bool> forked_{false};
  std::atomic<Engine*> current_{nullptr};  // for in_child(), which takes no lock
  std::mutex mutex_;
  EngineOptions options_;
  std::shared_ptr<Engine> engine_;
  std::function<void(const GroupEvent&)> sink_;
  struct AtShutdown {
    std::weak_ptr<void> owner;
    std::function<void()> function;
  };
  std::vector<AtShutdown> at_shutdown_;
};

/// The error of every use in a forked child.
[[nodiscard]] Error forked_error();

}  // namespace pccl
