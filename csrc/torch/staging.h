// Device tensors: an operation on them works on pinned host memory. Its inputs are copied there
// segment by segment, behind an InputGate, while the engine sends what has come; its outputs are
// copied back after success, so that a failed operation leaves the device as it was.
//
// Knows devices by c10's generic interface (streams, events, guards) and device_calls.h, so one
// build serves all. Nothing here waits for a device: device_thread.h polls events. Copies are
// issued on streams of our own, and only when nothing on the device holds them back: a stream of
// ours never waits for the program's kernels, so no order of calls can block one operation behind
// another.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
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
#include <string_view>
#include <torch/csrc/distributed/c10d/cuda/StreamBlock.hpp>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "torch/copy_back.h"
#include "torch/group_context.h"

namespace pccl {

class DeviceRun;

/// A device tensor and the host memory that stands in for it.
struct Staged {
  at::Tensor device;  // flat and contiguous; a view, so that no Python object hangs on it
  at::Tensor host;    // pinned, of the same type and length
  bool input = false;
  bool output = false;
};

/// Stand-in for `tensor`, which is contiguous; its contents are not copied yet.
[[nodiscard]] Staged stage(const at::Tensor& tensor, bool input, bool output);

/// Is this memory of torch's allocator for its device, that no object of Python stands for
/// (`Tensor.untyped_storage()`)? The release of other memory may need the GIL.
[[nodiscard]] bool is_plain(const c10::Storage& storage);

/// PCCL_STREAM_WAIT: wait() holds the stream of the caller. Otherwise wait() holds the CPU, as
/// gloo's does. `launches_block`: a launch returns when the kernel has ended
/// (CUDA_LAUNCH_BLOCKING), so no stream can be held.
void set_stream_wait(bool wait, bool launches_block);
[[nodiscard]] bool stream_wait();

/// Throws if the caller's current stream is being captured into a graph, which cannot contain
/// `what`.
void refuse_capture(c10::Device device, std::string_view what);

/// Waits until a collective's tensors have room beside those of the collectives on their device
/// (`DeviceThread`). Goes on without room if no operation has ended for a while: the operations in
/// flight may wait for a call that this thread makes later.
void wait_for_room(c10::Device device, const std::vector<Staged>& tensors);

/// Waits for a run, as by &DeviceRun::wait_settled or wait_over; on Python's main thread handlers
/// of signals run meanwhile.
void wait_until(DeviceRun& run, bool (DeviceRun::*reached)(std::uint64_t timeout_ms));

/// Waits until the operations in flight on devices have their outcomes. Throws the first failure of
/// these operations, or of earlier ones whose wait() had returned. False: they have not ended in
/// time.
[[nodiscard]] bool wait_for_devices(std::optional<std::chrono::milliseconds> timeout);

/// The device's side of one operation: copies in, outcome, copies back. Made and sealed by the
/// caller's thread, then advanced by the device thread alone; other members are thread-safe.
class DeviceRun : public std::enable_shared_from_this<DeviceRun> {
 public:
  /// `timeout_ms`: time-out of the operation. `collective`: has waited for room, and takes some.
  DeviceRun(std::shared_ptr<GroupContext> context, c10::Device device, std::uint64_t timeout_ms,
            bool collective);

  /// Adds the tensors of one call of the operation, inputs in the order of the request, and the
  /// copies that are made on the device afterwards. The inputs are read when the work that is now
  /// on the caller's current stream is done, and earlier operations on the same memory are over.
  /// `sources`: the memory that this work reads into temporaries.
  [[nodiscard]] std::shared_ptr<const InputGate> add(std::vector<Staged> tensors,
                                                     const std::vector<CopyBack>& copies,
                                                     std::vector<Buffer> sources);
  /// All calls are posted: their outcome is that of the operation. Without this call no output is
  /// copied back.
  void seal(std::vector<std::shared_ptr<Ticket>> tickets, const std::vector<CopyBack>& copies);

  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] bool collective() const { return collective_; }
  /// Is the outcome there, and after success the copy back on its stream?
  [[nodiscard]] bool settled() const;
  /// Is the copy back done, or has the operation failed?
  [[nodiscard]] bool over() const;
  [[nodiscard]] Error error() const;  // after settled()
  /// A failure that the group's LateFailure has not been told; at one call only.
  [[nodiscard]] Error take_error();
  bool wait_settled(std::uint64_t timeout_ms);
  bool wait_over(std::uint64_t timeout_ms);
  /// Are all its calls posted? A call that has failed half way never is.
  [[nodiscard]] bool sealed() const;
  /// Have all its calls their outcome? Then it is settled in a moment.
  [[nodiscard]] bool has_outcome() const;
  /// Is this a collective of `group` that writes into this memory?
  [[nodiscard]] bool writes_into(GroupId group, const Extents& memory) const;
  [[nodiscard]] GroupId group() const { return context_->group; }
  /// Once settled: lets the caller's current stream wait until the copies back are done.
  void let_stream_follow();
  /// Calls `function` once the operation is settled, on the device thread or at once. `function`
  /// must not block.
  void when_settled(std::function<void()> function);

  /// Lets the caller's current stream wait until the operation is over; the caller does not wait.
  /// True: the outcome is still open; if it is a failure, the group's next call throws it.
  bool hold_stream();
  /// Can a stream of the caller be held until this operation is over? No if a kernel has to be
  /// launched meanwhile (the driver may let it wait for all streams), or if the copies are on
  /// streams that the program uses too.
  [[nodiscard]] bool can_hold() const;
  /// Called once a second by DeviceWatch: ends the holds with an error if they are too old, or with
  /// the error `why` if that is not empty. Makes no call to the device. False: the operation holds
  /// no stream.
  bool holds_on(const std::string& why);
  /// The stream of the copies back.
  [[nodiscard]] c10::Stream stream() const { return back_; }

  enum class Next : std::uint8_t {
    poll,  // waits for the device: look again soon
    wake,  // waits for another thread, which calls DeviceThread::wake()
    gone   // the run is over
  };
  /// Advances the operation as far as it can go now; on the device thread.
  [[nodiscard]] Next step();
  /// Has the operation advanced since the last call of this function? On the device thread.
  [[nodiscard]] bool has_moved() { return moved_.exchange(false); }

  struct Mark {  // an event behind a copy in, and how far the gate opens then
    c10::Event event;
    std::uint64_t bytes;
  };
  struct Part {  // the tensors of one call
    explicit Part(c10::DeviceType type) : ready(type) {}
    std::vector<Staged> tensors;
    std::shared_ptr<InputGate> gate = std::make_shared<InputGate>();
    c10::Event ready;  // behind the work that the caller's stream had at the call
    std::deque<Mark> marks;
    bool begun = false;
    bool inputs_kept = true;
    std::vector<Buffer> reads;  // device memory
    std::vector<Buffer> writes;
  };
  /// Takes a part, and waits for those of the `earlier` runs that touch the same memory. Called by
  /// DeviceThread::add, one run at a time.
  void enter(const std::vector<std::shared_ptr<DeviceRun>>& earlier, Part part);

 private:
  using StreamBlock = c10d::cuda::StreamBlock;
  enum class State : std::uint8_t { running, copying_back, over };
  struct Hold {
    std::unique_ptr<StreamBlock> block;
    std::uint64_t looks = 0;  // of DeviceWatch
  };

  [[nodiscard]] Next try_step();
  [[nodiscard]] bool copy_in(Part& part);
  void issue(Part& part);
  void copy_back();
  void issue_copies_back();
  void copy_back_apart();
  void settle(State state, Error error);
  void broken(const std::exception& error);
  void give_inputs_up(Part& part);
  void release(std::vector<at::Tensor> tensors);
  void let_go();
  [[nodiscard]] bool passed(const c10::Event& event);
  using Earlier = std::vector<std::weak_ptr<DeviceRun>>;
  [[nodiscard]] Earlier earlier(const Earlier& which) const;
  [[nodiscard]] bool copied_in() const;
  [[nodiscard]] bool abandoned() const;

  const std::shared_ptr<GroupContext> context_;
  const c10::Device device_;
  const std::uint64_t timeout_ms_;
  const bool collective_;
  const c10::Stream in_;
  const c10::Stream back_;
  const bool own_streams_;
  std::atomic<bool> moved_ = false;
  bool handed_over_ = false;  // another thread makes the copies back; used by the device thread
  std::optional<std::chrono::steady_clock::time_point> failing_since_;  // queries; the same

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> parts_;   // grows at the end until sealed; the device thread alone changes them
  Earlier after_copy_back_;  // earlier runs that write memory which this run uses
  Earlier after_read_;       // earlier runs that read memory which this run writes
  std::vector<std::shared_ptr<Ticket>> tickets_;
  std::vector<CopyBack> copies_;
  std::shared_ptr<c10::Event> copied_back_;  // once it is settled
  bool sealed_ = false;
  State state_ = State::running;
  Error error_;
  bool taken_ = false;         // whether take_error() has returned the failure
  bool waited_ = false;        // whether a wait() has returned before the outcome
  bool with_kernels_ = false;  // the copies back are not plain ones
  std::vector<Hold> holds_;
  std::vector<Hold> ended_holds_;  // released where the device may be called
  std::vector<std::function<void()>> when_settled_;
};

}  // namespace pccl
