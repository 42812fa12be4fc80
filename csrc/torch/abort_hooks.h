// The functions that a program wants called when a group has failed or is aborted (c10d, from torch
// 2.14 on). Each may take its time, so on the engine's thread none is called.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "engine/ticket.h"
#include "python/completions.h"

namespace pccl {

/// Of one group; outlives its Backend, since an operation may end later. Thread-safe.
class AbortHooks : public std::enable_shared_from_this<AbortHooks> {
 public:
  using Hook = std::function<void()>;

  /// False: there is one of this id.
  [[nodiscard]] bool add(std::int64_t id, Hook hook);
  /// False: there is none of this id.
  [[nodiscard]] bool remove(std::int64_t id);
  /// Calls all of them. What a hook throws goes to the log.
  void call();
  /// Calls all of them, on a thread of `completions`, if the operation fails by a lost rank or a
  /// time-out. An operation posted before the first hook was added is not watched.
  void watch(const std::shared_ptr<Ticket>& ticket,
             const std::shared_ptr<Completions>& completions);

 private:
  std::mutex mutex_;
  std::map<std::int64_t, Hook> hooks_;
};

}  // namespace pccl
