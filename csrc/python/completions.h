// The thread on which a group's futures complete and callbacks of users run.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace pccl {

/// A thread for callbacks of users, which may take the GIL and may be slow: one thread for each
/// group, so that a slow callback delays no other group. Starts when it is needed, ends after a
/// while without tasks. The queue is bounded by the number of operations in flight. Thread-safe;
/// outlives its last task.
class Completions : public std::enable_shared_from_this<Completions> {
 public:
  /// `stays`: the thread does not end when it has no tasks.
  /// The threads have the signal mask that the calling thread, one of the program, has now: a
  /// process that a callback starts inherits it.
  explicit Completions(const char* thread_name, bool stays = false)
      : thread_name_(thread_name), stays_(stays) {
    pthread_sigmask(SIG_SETMASK, nullptr, &signals_);
  }
  /// Queues `task`; never blocks and never runs it on the calling thread. `apart`: runs it on a
  /// thread of its own, because a callback may wait for it.
  void run(std::function<void()> task, bool apart = false);
  /// Starts the one reserve thread, which is used when no thread can be started any more; false:
  /// not even this one can be started.
  [[nodiscard]] static bool keep_spare();
  /// Is the calling thread one that runs callbacks?
  [[nodiscard]] static bool inside();
  /// Waits until all tasks have run and what they held is released; false if that is not so after
  /// `timeout_ms`.
  bool drain(std::uint64_t timeout_ms);

 private:
  static const std::shared_ptr<Completions>& spare();
  void loop();
  void run_apart(std::function<void()> task);
  bool start(std::function<void()> body);
  static void run_task(std::function<void()> task);

  const char* thread_name_;  // 15 characters at most
  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable added_, idle_;
  std::deque<std::function<void()>> tasks_;
  std::size_t apart_ = 0;  // tasks on threads of their own
  bool running_ = false;   // the thread is there
  bool busy_ = false;      // a task is being run
  const bool stays_;
};

}  // namespace pccl
