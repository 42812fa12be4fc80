// A c10d Work over the engine's tickets, and the thread on which a group's futures complete.
// Decides nothing about an operation: a Work waits for outcomes, copies temporaries back and tells
// torch.
#pragma once

#include <c10/core/Stream.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine/engine.h"

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
  /// Waits until all tasks have run; false if they have not after `timeout_ms`.
  bool drain(std::uint64_t timeout_ms);

 private:
  static const std::shared_ptr<Completions>& spare();
  void loop();
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
  bool stays_ = false;
};

/// The failure of an operation whose wait() had returned before: the next call throws it, once.
/// Thread-safe.
class LateFailure {
 public:
  /// The object of a group of this process; the same one as long as it is referenced.
  static std::shared_ptr<LateFailure> of(GroupId group);
  void set(const Error& error);
  void raise_once();
  /// Takes the failure of the first group of the process that has one.
  static void raise_any();

 private:
  std::mutex mutex_;
  Error error_;
};

/// State that the Works of a group share; outlives the Backend.
struct GroupContext {
  std::shared_ptr<Engine> engine;
  GroupId group;
  std::shared_ptr<Completions> completions;
  std::shared_ptr<LateFailure> late_failure = LateFailure::of(group);
};

class DeviceRun;

/// A result that was received into a temporary: `from` is copied to `to` when the operation
/// succeeds.
struct CopyBack {
  at::Tensor to;
  at::Tensor from;
};

/// Thread-safe. The engine keeps the memory of its operations alive by itself: a Work may be
/// dropped.
///
/// On device tensors wait() holds the CPU until the outcome, or, where PCCL_STREAM_WAIT asks for it
/// and the device can do it, the caller's current stream; then wait() returns at once (staging.h).
class PcclWork final : public c10d::Work {
 public:
  struct Parts {
    std::vector<std::shared_ptr<Ticket>> tickets;  // the operation is complete when all are
    std::vector<at::Tensor> outputs;               // value of the future
    std::vector<CopyBack> copies;
    std::shared_ptr<DeviceRun>
        device;                   // for device tensors: copies them, and knows when that is done
    std::function<void()> after;  // after success, once; empty: nothing
    std::vector<at::Tensor> temporaries;
    std::uint64_t sequence_number = 0;
    bool collective = true;
  };

  PcclWork(std::shared_ptr<GroupContext> context, int rank, c10d::OpType type, const char* title,
           const std::vector<at::Tensor>& profiled, Parts parts);

  /// Sees to it that copies and hooks follow the outcome, even if no thread waits. Called once,
  /// before all else.
  void follow_up();

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

  /// For device tensors: the stream of the copies back.
  [[nodiscard]] std::optional<c10::Stream> copies_back_on() const;

 private:
  [[nodiscard]] bool done() const;     // with a device: the copies back are done too
  [[nodiscard]] bool settled() const;  // with a device: the copies back are on their stream
  [[nodiscard]] bool outcome_at_wait() const;
  void wait_settled(std::chrono::milliseconds timeout);
  [[nodiscard]] Error error() const;  // after done()
  void finish();                      // after done(): copies back, once
  void say_returned();                // after done(): once
  c10::intrusive_ptr<PcclWork> self();
  template <typename Function>
  void when_done(Function function);  // on the completion thread
  void complete_future();             // after done(); once it returns, the future is complete

  const std::shared_ptr<GroupContext> context_;
  const Parts parts_;
  std::mutex finish_mutex_;  // not std::call_once: that makes a system call each time
  bool finished_ = false;    // under finish_mutex_
  std::atomic<bool> returned_ = false;
  std::atomic<bool> future_taken_ = false;          // set by the thread that completes it
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // under mutex_
};

/// Several Works as one, for endCoalescing: complete when all are, failed when one has.
/// Thread-safe.
class CoalescedWork final : public c10d::Work {
 public:
  explicit CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Waits for all Works, even if one has failed; then throws the first failure.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

/// Waits for the outcome, at most `timeout_ms`. On Python's main thread handlers of signals run
/// meanwhile, and an exception that they raise (KeyboardInterrupt) is thrown; the operation goes
/// on. False: there is no outcome yet.
bool wait_interruptibly(Engine& engine, Ticket& ticket, std::optional<std::uint64_t> timeout_ms);

/// Runs the handlers of pending signals, on Python's main thread; throws what a handler raises.
void check_signals();

}  // namespace pccl
