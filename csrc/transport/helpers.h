// Threads that help the loop's thread with work that takes long and needs no decision: to move and
// encrypt the bytes of many connections, to add up large spans. The loop's thread hands out equal
// pieces, works along, and goes on when all pieces are done: so nothing of the loop runs meanwhile,
// and what the pieces touch needs no locks.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/yield_guard.h"

namespace pccl {

/// Used by one thread at a time, which is the one that asks.
class Helpers {
 public:
  /// `threads`: with the one that asks; 0 counts as 1. The others start when they are first needed;
  /// fewer if the system gives no more.
  explicit Helpers(std::size_t threads);
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  /// With the one that asks.
  [[nodiscard]] std::size_t threads() const { return 1 + wanted_; }
  /// Calls work(0), …, work(count - 1), each once and in any order, on this thread and on the
  /// others, and returns when all have returned. Rethrows one of the exceptions that they threw.
  /// On this thread alone, for a while, after the others have had to wait for a core.
  void each(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  void start();
  void run(std::uint32_t round);
  /// Takes pieces of this round until none is left.
  void work_off(std::uint32_t round);
  void work_on(std::size_t piece);

  std::size_t wanted_;  // threads beside the one that asks
  cpu_set_t cores_;     // of the thread that has made this: the one that asks may be bound to one
  std::vector<std::thread> threads_;
  // The round in the upper half, the pieces that nobody has taken in the lower: so a thread that
  // comes late takes nothing of a round that it does not know.
  std::atomic<std::uint64_t> open_{0};
  std::atomic<std::uint32_t> left_{0};  // pieces that are not done
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::atomic<bool> stops_{false};
  YieldGuard guard_;
  std::mutex thrown_mutex_;
  std::exception_ptr thrown_;
};

}  // namespace pccl
