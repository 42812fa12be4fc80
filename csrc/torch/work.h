// A c10d Work over the engine's tickets, and the thread on which a group's futures complete.
// Nothing here decides about an operation: it waits for outcomes, copies temporaries back and tells
// torch.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
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

/// A thread for callbacks of users, which may take the GIL and take their time: one for each group,
/// so that a slow one delays no other group. Started when it is needed, ends when it has nothing to
/// do for a while. Bounded by the number of operations in flight. Thread-safe; outlives its last
/// task.
class Completions : public std::enable_shared_from_this<Completions> {
 public:
  /// `stays`: the thread does not end when it has nothing to do.
  explicit Completions(const char* thread_name, bool stays = false)
      : thread_name_(thread_name), stays_(stays) {}
  /// Never blocks and never runs `task` itself. `apart`: on a thread of its own, for what a
  /// callback waits for.
  void run(std::function<void()> task, bool apart = false);
  /// Starts the one thread that takes over where no other can be started; false: it cannot be.
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
  std::mutex mutex_;
  std::condition_variable added_, idle_;
  std::deque<std::function<void()>> tasks_;
  std::size_t apart_ = 0;  // tasks on threads of their own
  bool running_ = false;   // the thread is there
  bool busy_ = false;      // a task is being run
  bool stays_ = false;
};

/// The failure of an operation whose wait() has returned before: the next call says it, once.
/// Thread-safe.
class LateFailure {
 public:
  /// That of a group of this process; the same one as long as somebody holds it.
  static std::shared_ptr<LateFailure> of(GroupId group);
  void set(const Error& error);
  void raise_once();
  /// Of all groups of the process: the first that has one.
  static void raise_any();

 private:
  std::mutex mutex_;
  Error error_;
};

/// What the Works of a group share; outlives the Backend.
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
    std::vector<std::shared_ptr<Ticket>> tickets;  // all of them make up the operation
    std::vector<at::Tensor> outputs;               // value of the future
    std::vector<CopyBack> copies;
    std::shared_ptr<DeviceRun> device;  // of device tensors: it copies, and says when it is done
    std::function<void()> after;        // after success, once; empty: nothing
    std::vector<at::Tensor> temporaries;
    std::uint64_t sequence_number = 0;
    bool collective = true;
  };

  PcclWork(std::shared_ptr<GroupContext> context, int rank, c10d::OpType type, const char* title,
           const std::vector<at::Tensor>& profiled, Parts parts);

  /// Sees to it that what has to follow the outcome does, also if nobody waits. Called once, first.
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

  /// Of a call on device tensors: the stream of its copies back.
  [[nodiscard]] std::optional<c10::Stream> copies_back_on() const;

 private:
  [[nodiscard]] bool done() const;     // with a device: also there
  [[nodiscard]] bool settled() const;  // with a device: the rest is in the order of its streams
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
  std::atomic<bool> future_taken_ = false;          // by who completes it
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
  /// Waits for all of them, also when one has failed; then throws the first failure.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

/// Waits for the outcome, at most `timeout_ms`. On Python's main thread signals are looked at
/// meanwhile, and what their handlers raise (KeyboardInterrupt) is thrown; the operation goes on.
/// False: not yet.
bool wait_interruptibly(Engine& engine, Ticket& ticket, std::optional<std::uint64_t> timeout_ms);

/// One look at the signals, on Python's main thread; throws what a handler raised.
void check_signals();

}  // namespace pccl
