// See work.h.
#include "torch/work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/log.h"
#include "python/gil.h"
#include "torch/device_calls.h"
#include "torch/errors.h"
#include "torch/staging.h"

namespace pccl {
namespace {

namespace py = pybind11;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint64_t kSignalSliceMs = 100;

/// Locks a mutex under which Python may be called: no thread may wait for it with the GIL.
std::unique_lock<std::mutex> lock_without_gil(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  if (lock) return lock;
  const GilReleaseIfHeld release;
  lock.lock();
  return lock;
}

}  // namespace

// ------------------------------------------------------------------------------- waiting

void check_signals() {
  if (!is_main_thread() || Py_IsInitialized() == 0) return;
  const GilAcquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

bool wait_interruptibly(Engine& engine, Ticket& ticket, std::optional<std::uint64_t> timeout_ms) {
  if (ticket.done()) return true;
  const GilReleaseIfHeld release;
  const auto start = steady_clock::now();
  for (;;) {
    std::uint64_t slice = kSignalSliceMs;
    if (timeout_ms) {
      const auto passed = static_cast<std::uint64_t>(
          std::chrono::duration_cast<milliseconds>(steady_clock::now() - start).count());
      if (passed >= *timeout_ms) return ticket.done();
      slice = std::min(slice, *timeout_ms - passed);
    }
    const bool done = engine.wait(ticket, slice);
    stay_if_ends_elsewhere(Completions::inside());
    if (done) return true;
    check_signals();
  }
}

// ------------------------------------------------------------------------------- PcclWork

PcclWork::PcclWork(int rank, c10d::OpType type, const char* title,
                   const std::vector<at::Tensor>& profiled, Parts parts)
    : c10d::Work(rank, type, title, profiled),
      context_(std::move(parts.context)),
      writes_later_(!parts.copies.empty() || parts.after),
      results_(results_of(parts.copies)),
      after_(std::exchange(parts.after, nullptr)),
      parts_(std::move(parts)) {}

bool PcclWork::done() const {
  if (parts_.device) return parts_.device->over();
  if (those_before_are_over_) return true;
  const bool over = std::all_of(parts_.tickets.begin(), parts_.tickets.end(),
                                [](const auto& ticket) { return ticket->done(); }) &&
                    std::all_of(parts_.before.begin(), parts_.before.end(),
                                [](const auto& run) { return run->over() || !run->has_outcome(); });
  // A message that arrives later undoes it no more.
  if (over && !parts_.before.empty()) those_before_are_over_ = true;
  return over;
}

bool PcclWork::settled() const { return parts_.device ? parts_.device->settled() : done(); }

Error PcclWork::error() const {
  if (parts_.device) return parts_.device->error();
  for (const auto& ticket : parts_.tickets) {
    Error error = ticket->error();
    if (error.failed()) return error;
  }
  return {};
}

c10::intrusive_ptr<PcclWork> PcclWork::self() {
  return c10::intrusive_ptr<PcclWork>::unsafe_reclaim_from_nonowning(this);
}

template <typename Function>
std::function<void()> PcclWork::on_completion_thread(Function function) {
  // The last ticket hands over to another thread. The Work is never released on the engine's
  // thread: that could release tensors of Python objects, and wait for the GIL.
  struct Pending {
    c10::intrusive_ptr<PcclWork> work;
    Function function;
  };
  auto pending = std::make_shared<Pending>(Pending{self(), std::move(function)});
  // A callback may ask for a future and wait for it: the callback's own thread cannot complete that
  // one.
  return [pending, completions = context_->completions, apart = Completions::inside()] {
    completions->run(
        [work = std::move(pending->work), f = std::move(pending->function)] { f(*work); }, apart);
  };
}

template <typename Function>
void PcclWork::when_done(Function function) {
  auto hand_over = on_completion_thread(std::move(function));
  if (parts_.device) {
    parts_.device->when_settled(std::move(hand_over));
  } else {
    on_all_done(parts_.tickets, std::move(hand_over));
  }
}

void PcclWork::follow_up() {
  if (parts_.device) {
    parts_.device->seal(parts_.tickets, parts_.copies);
    if (!recordFunctionEndCallback_) return;
  } else if (!writes_later_ && !recordFunctionEndCallback_) {
    return;
  }
  when_done([](PcclWork& work) { work.finish(); });
}

void PcclWork::finish() {
  std::function<void()> after;                        // what it holds is released without the lock
  const auto lock = lock_without_gil(finish_mutex_);  // a copy may be one of a subclass in Python
  if (std::exchange(finished_, true)) return;
  after = std::exchange(after_, nullptr);
  if (!parts_.device && !error().failed()) {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView plain;
    try {
      for (const CopyBack& copy : parts_.copies) at::Tensor(copy.to).copy_(copy.from);
      if (after) after();
    } catch (const std::exception& thrown) {
      log_error(std::string("the result of ") + c10d::opTypeToString(opType_) +
                " could not be copied into its tensors: " + thrown.what());
      not_copied_ = std::current_exception();
    }
  }
  context_->uncopied->remove(this);
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

void PcclWork::settle() {
  wait_settled(kNoTimeout);
  finish();
}

std::exception_ptr PcclWork::failure() const {
  const Error failed = error();
  if (failed.failed()) return to_exception(failed);
  const auto lock = lock_without_gil(finish_mutex_);
  return not_copied_;
}

void PcclWork::raise_failure() const {
  if (const std::exception_ptr thrown = failure()) std::rethrow_exception(thrown);
}

Tickets PcclWork::returns() {
  if (!parts_.collective || context_->group != kElasticGroup) return {};
  const std::lock_guard lock(returns_mutex_);
  if (!returns_) {
    returns_.emplace();
    for (const auto& ticket : parts_.tickets) {
      if (auto over = context_->engine->run().returned(*ticket)) {
        returns_->push_back(std::move(over));
      }
    }
  }
  return *returns_;
}

bool PcclWork::isCompleted() {
  refuse_fork();
  if (!done()) return false;
  finish();
  return true;
}

bool PcclWork::isSuccess() const {
  refuse_fork();
  return !done() || failure() == nullptr;
}

std::exception_ptr PcclWork::exception() const {
  refuse_fork();
  return done() ? failure() : nullptr;
}

int PcclWork::sourceRank() const {
  refuse_fork();
  TORCH_CHECK(opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE,
              "sourceRank() may only be called on work objects of a recv");
  TORCH_CHECK(parts_.tickets.front()->done(), "sourceRank() may only be called after wait()");
  return parts_.tickets.front()->seen<ReceiveResult>().source;
}

std::vector<at::Tensor> PcclWork::result() {
  TORCH_CHECK(parts_.device || isCompleted(), "result() may only be called after wait()");
  return parts_.outputs;
}

void PcclWork::synchronize() {
  refuse_fork();
  if (parts_.device) {
    refuse_capture(parts_.device->device(), "synchronize");
    if (outcome_at_wait()) wait_settled(kNoTimeout);
    parts_.device->hold_stream();
    if (parts_.device->over()) check(error());
  } else if (done()) {
    finish();
  }
  follow_those_before();
}

void PcclWork::blockCurrentStream() {
  refuse_fork();
  if (!parts_.device) return c10d::Work::blockCurrentStream();
  refuse_capture(parts_.device->device(), "block_current_stream");
  if (!parts_.device->can_hold()) wait_settled(kNoTimeout);
  parts_.device->hold_stream();
  if (parts_.device->over()) check(error());
}

/// Does wait() have to know the outcome? In a run without boundaries rank and size may change when
/// wait() returns.
bool PcclWork::outcome_at_wait() const {
  if (!parts_.device || !stream_wait() || opType_ == c10d::OpType::RECVANYSOURCE) return true;
  if (!parts_.device->can_hold()) return true;
  const bool failed = std::any_of(parts_.tickets.begin(), parts_.tickets.end(),
                                  [](const auto& t) { return t->done() && t->error().failed(); });
  const GroupView view = context_->engine->view(context_->group);
  return failed || view.failure.failed() || (view.elastic && view.step == 0);
}

bool PcclWork::wait(milliseconds timeout) {
  refuse_fork();
  stay_if_ends_elsewhere(Completions::inside());
  if (parts_.device) refuse_capture(parts_.device->device(), "wait");
  const bool at_once = timeout == kNoTimeout && !outcome_at_wait();
  const auto start = steady_clock::now();
  if (!at_once) wait_settled(timeout);
  if (parts_.device && parts_.device->hold_stream()) return true;
  follow_those_before();
  finish();
  if (!at_once) wait_for(returns(), timeout, start);
  complete_future();
  stay_if_ends_elsewhere(Completions::inside());
  raise_failure();
  return true;
}

void PcclWork::wait_for(const Tickets& tickets, milliseconds timeout,
                        steady_clock::time_point start) const {
  const bool limited = timeout != kNoTimeout;  // below zero: over at once
  for (const auto& ticket : tickets) {
    std::optional<std::uint64_t> left_ms;
    if (limited) {
      const auto passed =
          std::chrono::duration_cast<milliseconds>(steady_clock::now() - start).count();
      left_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(timeout.count() - passed, 0));
    }
    if (wait_interruptibly(*context_->engine, *ticket, left_ms)) continue;
    raise({ErrorCode::timed_out, "wait() has timed out after " + std::to_string(timeout.count()) +
                                     " ms; the operation itself goes on"});
  }
}

void PcclWork::wait_settled(milliseconds timeout) {
  wait_for(parts_.tickets, timeout, steady_clock::now());
  if (parts_.device) wait_until(*parts_.device, &DeviceRun::wait_settled);  // a moment later
  for (const auto& run : parts_.before) {
    if (run->has_outcome()) wait_until(*run, &DeviceRun::wait_settled);
  }
}

void PcclWork::follow_those_before() const {
  for (const auto& run : parts_.before) {
    if (!run->settled()) continue;
    if (is_capturing(run->device())) {
      // A captured stream can wait for nothing outside of its graph.
      wait_until(*run, &DeviceRun::wait_over);
    } else {
      run->let_stream_follow();
    }
  }
}

void PcclWork::abort() { context_->engine->abort(context_->group, "abort() of an operation"); }

c10::intrusive_ptr<c10::ivalue::Future> PcclWork::getFuture() {
  refuse_fork();
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    if (parts_.device) devices.push_back(parts_.device->device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::move(devices));
  }
  // DDP asks for the value of a future as soon as wait() has returned.
  if (settled()) {
    complete_future_in_turn();
  } else {
    when_done([](PcclWork& work) { work.complete_future_in_turn(); });
  }
  return future_;
}

void PcclWork::complete_future_in_turn() {
  const Tickets open = returns();
  if (std::all_of(open.begin(), open.end(), [](const auto& ticket) { return ticket->done(); })) {
    complete_future();
  } else {
    on_all_done(open, on_completion_thread([](PcclWork& work) { work.complete_future(); }));
  }
}

void PcclWork::complete_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
  }
  if (!future) return;
  std::optional<c10::DeviceGuard> there;  // see DeviceRun::add
  if (parts_.device) there.emplace(parts_.device->device());
  if (future_taken_.exchange(true)) {
    const GilReleaseIfHeld release;
    future->wait();  // another thread does it
    return;
  }
  try {
    for (const auto& run : parts_.before) {  // a barrier's future has no tensors, so no streams
      if (run->has_outcome()) wait_until(*run, &DeviceRun::wait_over);
    }
    finish();
    raise_failure();
  } catch (...) {
    future->setErrorIfNeeded(std::current_exception());
    return;
  }
  std::optional<c10::StreamGuard> guard;  // callbacks of the future run after this stream
  if (parts_.device) guard.emplace(parts_.device->stream());
  future->markCompleted(c10::IValue(parts_.outputs));
}

uint64_t PcclWork::getSequencenumber() const { return parts_.sequence_number; }

std::optional<c10::Stream> PcclWork::copies_back_on() const {
  if (!parts_.device) return std::nullopt;
  return parts_.device->stream();
}

// ------------------------------------------------------------------------------- CoalescedWork

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (const std::exception_ptr thrown = work->exception()) return thrown;
  }
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
  }
  return all;
}

void CoalescedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

bool CoalescedWork::wait(milliseconds timeout) {
  const bool limited = timeout != kNoTimeout;  // below zero: over at once
  const auto deadline = steady_clock::now() + std::min(timeout, kLongest);
  std::exception_ptr first;
  for (const auto& work : works_) {
    milliseconds left = timeout;
    if (limited) {
      left = std::max(std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()),
                      milliseconds(1));
    }
    try {
      work->wait(left);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  return true;
}

void CoalescedWork::abort() {
  for (const auto& work : works_) work->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  const auto value_type = c10::ListType::create(c10::TensorType::get());
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(value_type));
  std::vector<c10::Stream> streams;
  std::vector<c10::Device> devices;
  for (const auto& work : works_) {
    futures.push_back(work->getFuture());
    const auto* own = dynamic_cast<const PcclWork*>(work.get());
    const auto stream = own == nullptr ? std::nullopt : own->copies_back_on();
    if (!stream || std::find(streams.begin(), streams.end(), *stream) != streams.end()) continue;
    streams.push_back(*stream);
    devices.push_back(stream->device());
  }
  // A future of our own: collectAll's knows no devices, so its callbacks would not wait for the
  // copies back. Its value is the list of all tensors, as with a single operation.
  auto future = c10::make_intrusive<c10::ivalue::Future>(value_type, std::move(devices));
  c10::collectAll(futures)->addCallback([future, streams](c10::ivalue::Future& all) {
    try {
      std::vector<at::Tensor> tensors;
      for (const c10::IValue& one : all.value().toListRef()) {
        for (at::Tensor& tensor : one.toFuture()->value().toTensorVector()) {
          tensors.push_back(std::move(tensor));
        }
      }
      std::optional<c10::MultiStreamGuard> guard;
      if (!streams.empty()) guard.emplace(streams);
      future->markCompleted(c10::IValue(std::move(tensors)));
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
    }
  });
  return future;
}

}  // namespace pccl
