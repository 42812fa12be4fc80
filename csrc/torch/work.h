// A c10d Work over the engine's tickets. Decides nothing about an operation: a Work waits for
// outcomes, copies temporaries back and tells torch.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine/engine.h"
#include "torch/copy_back.h"
#include "torch/group_context.h"

namespace pccl {

class DeviceRun;

/// A longer time-out is as long: beyond some 300 years the clock overflows.
inline constexpr std::chrono::milliseconds kLongest{1'000'000'000'000};

/// Thread-safe. The engine keeps the memory of its operations alive by itself: a Work may be
/// dropped.
///
/// On device tensors wait() holds the CPU until the outcome, or, where PCCL_STREAM_WAIT asks for it
/// and the device can do it, the caller's current stream; then wait() returns at once (staging.h).
class PcclWork final : public c10d::Work {
 public:
  struct Parts {
    std::shared_ptr<GroupContext> context;         // of the first part
    std::vector<std::shared_ptr<Ticket>> tickets;  // the operation is complete when all are
    std::vector<at::Tensor> outputs;               // value of the future
    std::vector<CopyBack> copies;
    std::shared_ptr<DeviceRun>
        device;                   // for device tensors: copies them, and knows when that is done
    std::function<void()> after;  // after success, once, then released; empty: nothing
    /// Of a barrier: operations on devices before it. Those that have their outcome when it has its
    /// own are over before it is.
    std::vector<std::shared_ptr<DeviceRun>> before;
    std::vector<at::Tensor> temporaries;
    std::uint64_t sequence_number = 0;
    bool collective = true;
  };

  PcclWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& profiled,
           Parts parts);

  /// Sees to it that copies and hooks follow the outcome, even if no thread waits. Called once,
  /// before all else.
  void follow_up();

  /// Copies back what is left, if the operation has its outcome.
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

  /// Waits for the outcome as wait() does, and copies back; throws no failure of the operation.
  void settle();
  /// The memory to which its results are copied.
  [[nodiscard]] const Extents& results() const { return results_; }
  [[nodiscard]] const std::vector<at::Tensor>& outputs() const { return parts_.outputs; }
  /// For device tensors: the stream of the copies back.
  [[nodiscard]] std::optional<c10::Stream> copies_back_on() const;

 private:
  [[nodiscard]] bool done() const;     // with a device: the copies back are done too
  [[nodiscard]] bool settled() const;  // with a device: the copies back are on their stream
  [[nodiscard]] bool outcome_at_wait() const;
  void follow_those_before() const;  // after wait_settled(): the caller's current stream
  void wait_settled(std::chrono::milliseconds timeout);
  void wait_for(const Tickets& tickets, std::chrono::milliseconds timeout,
                std::chrono::steady_clock::time_point start) const;
  [[nodiscard]] Error error() const;  // after done()
  void finish();                      // after done(): copies back, once; keeps what that throws
  [[nodiscard]] std::exception_ptr failure() const;  // after finish()
  void raise_failure() const;                        // after finish()
  /// After done(). In a run without boundaries rank and size may change where a wait returns: it
  /// returns when these are over.
  [[nodiscard]] Tickets returns();
  c10::intrusive_ptr<PcclWork> self();
  template <typename Function>
  std::function<void()> on_completion_thread(Function function);
  template <typename Function>
  void when_done(Function function);  // on the completion thread
  void complete_future_in_turn();     // after done(): when the returns are over
  void complete_future();             // after that; once it returns, the future is complete

  const std::shared_ptr<GroupContext> context_;
  const bool writes_later_;  // by a copy, or by `after`
  const Extents results_;
  std::function<void()> after_;  // of the parts; under finish_mutex_
  const Parts parts_;
  mutable std::atomic<bool> those_before_are_over_ =
      false;                         // `before` of the parts, at the outcome
  mutable std::mutex finish_mutex_;  // not std::call_once: that makes a system call each time
  bool finished_ = false;            // under finish_mutex_
  std::exception_ptr not_copied_;    // under finish_mutex_: why the results are not in the tensors
  std::mutex returns_mutex_;
  std::optional<Tickets> returns_;                  // under returns_mutex_; none: not asked for yet
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
