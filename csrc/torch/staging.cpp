// See staging.h.
#include "torch/staging.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>

#include "base/log.h"
#include "python/gil.h"
#include "torch/device_calls.h"
#include "torch/device_thread.h"
#include "torch/device_watch.h"
#include "torch/errors.h"
#include "torch/work.h"

namespace pccl {
namespace {

// One copy, after which the engine may send: large enough for the full rate of a bus, small enough
// that sending begins early.
constexpr std::uint64_t kCopyBytes = 8U << 20;

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// DeviceWatch ends a hold with an error when it is older than its operation may become; later the
// hold's kernel ends by itself.
constexpr std::uint64_t kHoldGraceS = 30;
constexpr std::uint64_t kHoldSecondsMax = 365ULL * 24 * 3600;

// A query may fail for a moment (another thread captures a graph). If it fails for longer, the
// device is broken.
constexpr std::chrono::seconds kQueriesFailMax{10};

constexpr milliseconds kSlice{100};               // between two looks at signals
constexpr std::chrono::seconds kRoomPatience{5};  // nothing has ended: go on

std::atomic<bool> holds_asked_for{false};
std::atomic<bool> launches_wait{false};

/// "CUDA"; for a device that registered itself under a name, that name in capitals.
std::string registered_name(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/false);
}

std::uint64_t hold_limit_s(std::uint64_t timeout_ms) {
  return std::min(timeout_ms / 1000, kHoldSecondsMax) + kHoldGraceS;
}

}  // namespace

void set_stream_wait(bool wait, bool launches_block) {
  holds_asked_for = wait;
  launches_wait = launches_block;
}
bool stream_wait() { return holds_asked_for; }

void refuse_capture(c10::Device device, std::string_view what) {
  TORCH_CHECK(!is_capturing(device), "pccl ", what,
              ": cannot be captured in a graph (the current stream of ", device,
              " is being captured); call it outside of the capture");
}

Staged stage(const at::Tensor& tensor, bool input, bool output) {
  const c10::DeviceGuard guard(tensor.device());  // memory is pinned for the current one
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(true);
  return {tensor.view({-1}), at::empty({tensor.numel()}, options), input, output};
}

/// From torch 2.13 on, whoever leaves the object as the last owner of such a storage takes the GIL.
bool has_object(const c10::StorageImpl& storage) {
  const auto& slot = *storage.pyobj_slot();
  if constexpr (requires { slot.load_pyobj(); }) return slot.load_pyobj() != nullptr;
  return false;
}

bool is_plain(const c10::Storage& storage) {
  if (has_object(*storage.unsafeGetStorageImpl())) return false;
  const c10::Allocator* allocator = c10::GetAllocator(storage.device_type());
  return allocator != nullptr && storage.data_ptr().get_deleter() == allocator->raw_deleter();
}

void wait_for_room(c10::Device device, const std::vector<Staged>& tensors) {
  std::uint64_t bytes = 0;
  for (const Staged& staged : tensors) bytes += staged.host.nbytes();
  DeviceThread& thread = DeviceThread::instance();
  if (thread.has_room(device, bytes, milliseconds(0))) return;
  const GilReleaseIfHeld release;
  auto since = Clock::now();
  std::uint64_t ended = thread.ended();
  while (!thread.has_room(device, bytes, kSlice)) {
    check_signals();
    if (const std::uint64_t now = thread.ended(); now != ended) {
      ended = now;
      since = Clock::now();
    } else if (Clock::now() - since >= kRoomPatience) {
      log_debug("no operation on " + device.str() + " has ended for 5 s: one more is begun");
      return;
    }
  }
}

void wait_until(DeviceRun& run, bool (DeviceRun::*reached)(std::uint64_t timeout_ms)) {
  const GilReleaseIfHeld release;
  while (!(run.*reached)(static_cast<std::uint64_t>(kSlice.count()))) check_signals();
}

bool wait_for_devices(std::optional<milliseconds> timeout) {
  const GilReleaseIfHeld release;
  const auto start = Clock::now();
  const auto runs = DeviceThread::instance().runs();
  for (const auto& run : runs) {
    while (!run->wait_settled(static_cast<std::uint64_t>(kSlice.count()))) {
      if (timeout && Clock::now() - start >= *timeout) return false;
      check_signals();
    }
  }
  LateFailure::raise_any();
  // A failed run stays in the list while the device is at its copies.
  for (const auto& run : runs) check(run->take_error());
  return true;
}

// ------------------------------------------------------------------------------- caller's side

DeviceRun::DeviceRun(std::shared_ptr<GroupContext> context, c10::Device device,
                     std::uint64_t timeout_ms, bool collective)
    : context_(std::move(context)),
      device_(device),
      timeout_ms_(timeout_ms),
      collective_(collective),
      in_(DeviceThread::instance().streams(device).in),
      back_(DeviceThread::instance().streams(device).back),
      own_streams_(DeviceThread::instance().streams(device).own) {}

std::shared_ptr<const InputGate> DeviceRun::add(std::vector<Staged> tensors,
                                                const std::vector<CopyBack>& copies,
                                                std::vector<Buffer> sources) {
  // c10's events switch back to the device that was current before, which makes the process use
  // that device too.
  const c10::DeviceGuard guard(device_);
  Part part(device_.type());
  part.tensors = std::move(tensors);
  part.writes = results_of(copies);
  part.reads = std::move(sources);
  for (const Staged& staged : part.tensors) {
    if (staged.input) part.reads.push_back(extent_of(staged.device));
    if (staged.output) part.writes.push_back(extent_of(staged.device));
  }
  if (!copies.empty()) {
    const std::lock_guard lock(mutex_);
    with_kernels_ = true;
  }
  part.ready.record(current_stream(device_));
  const auto gate = part.gate;
  DeviceThread::instance().add(shared_from_this(), std::move(part));
  return gate;
}

void DeviceRun::enter(const std::vector<std::shared_ptr<DeviceRun>>& earlier, Part part) {
  for (const auto& run : earlier) {
    if (run.get() == this) continue;
    bool copies_back = false;
    bool reads = false;
    {
      const std::lock_guard lock(run->mutex_);
      for (const Part& other : run->parts_) {
        copies_back =
            copies_back || touch(other.writes, part.reads) || touch(other.writes, part.writes);
        reads = reads || touch(other.reads, part.writes);
      }
    }
    const std::lock_guard lock(mutex_);
    if (copies_back) after_copy_back_.push_back(run);
    if (reads) after_read_.push_back(run);
  }
  const std::lock_guard lock(mutex_);
  parts_.push_back(std::move(part));
}

void DeviceRun::seal(std::vector<std::shared_ptr<Ticket>> tickets,
                     const std::vector<CopyBack>& copies) {
  {
    const at::NoGradGuard no_grad;  // an alias that is recorded would keep a Python object
    const at::AutoDispatchBelowADInplaceOrView plain;
    const std::lock_guard lock(mutex_);
    tickets_ = tickets;
    for (const CopyBack& copy : copies) copies_.push_back({copy.to.alias(), copy.from});
    sealed_ = true;
  }
  for (const auto& ticket : tickets) {
    ticket->on_done([] { DeviceThread::instance().wake(); });
  }
}

bool DeviceRun::settled() const {
  const std::lock_guard lock(mutex_);
  return state_ != State::running;
}

bool DeviceRun::over() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::over;
}

Error DeviceRun::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

Error DeviceRun::take_error() {
  const std::lock_guard lock(mutex_);
  if (waited_ || taken_) return {};
  taken_ = error_.failed();
  return error_;
}

bool DeviceRun::wait_settled(std::uint64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return state_ != State::running; });
}

bool DeviceRun::wait_over(std::uint64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return state_ == State::over; });
}

bool DeviceRun::sealed() const {
  const std::lock_guard lock(mutex_);
  return sealed_;
}

bool DeviceRun::has_outcome() const {
  const std::lock_guard lock(mutex_);
  if (state_ != State::running) return true;
  return sealed_ && std::all_of(tickets_.begin(), tickets_.end(),
                                [](const auto& ticket) { return ticket->done(); });
}

bool DeviceRun::writes_into(GroupId group, const Extents& memory) const {
  if (!collective_ || group != context_->group) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return Extents(part.writes).touches(memory); });
}

void DeviceRun::let_stream_follow() {
  const c10::DeviceGuard guard(device_);
  std::shared_ptr<c10::Event> copied_back;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::copying_back) copied_back = copied_back_;
  }
  if (copied_back) copied_back->block(current_stream(device_));
}

void DeviceRun::when_settled(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::running) {
      when_settled_.push_back(std::move(function));
      return;
    }
  }
  function();
}

bool DeviceRun::can_hold() const {
  const bool known = c10d::cuda::StreamBlockRegistry()->Has(registered_name(device_.type()));
  const std::lock_guard lock(mutex_);
  return known && own_streams_ && !launches_wait && !with_kernels_;
}

/// Calls to the device are made without the lock: they may take as long as the device does.
bool DeviceRun::hold_stream() {
  const c10::DeviceGuard guard(device_);
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    running = state_ == State::running;
    if (running) waited_ = true;
  }
  if (!running) {
    let_stream_follow();
    return false;
  }
  const std::chrono::seconds limit(hold_limit_s(timeout_ms_) + kHoldGraceS);
  auto block = c10d::cuda::StreamBlockRegistry()->Create(registered_name(device_.type()), limit);
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::over) {
      block->abort();
      return true;
    }
    first = holds_.empty();
    holds_.push_back({std::move(block)});
  }
  if (first) DeviceWatch::instance().add(shared_from_this());
  return true;
}

bool DeviceRun::holds_on(const std::string& why) {
  std::string text = why;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::over || holds_.empty()) return false;
    for (Hold& hold : holds_) {
      const bool ended = hold.block->status() == c10d::cuda::StreamBlockStatus::TIMED_OUT;
      if (++hold.looks <= hold_limit_s(timeout_ms_) && !ended) continue;
      text = "an operation with a time-out of " + std::to_string(timeout_ms_ / 1000) +
             " s has held a stream for " + std::to_string(hold.looks) + " s";
    }
  }
  if (text.empty()) return true;
  text = device_.str() + " does not answer: " + text + "; its tensors may be written in part";
  settle(State::over, {ErrorCode::closed, text});  // first: the stream goes on whatever comes
  context_->engine->abort(context_->group, text);
  DeviceThread::instance().wake();
  return false;
}

// ------------------------------------------------------------------------------- device thread

DeviceRun::Next DeviceRun::step() {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain;
  try {
    // Sets the device for good, without a guard: switching back to a device that this process does
    // not use would make the process use it.
    c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
    allow_during_captures(device_.type());
    return try_step();
  } catch (const std::exception& error) {
    broken(error);
    return Next::gone;
  }
}

/// The tensors stay for good: the device may still be at copies to them.
void DeviceRun::broken(const std::exception& error) {
  const std::string text = "a copy between " + device_.str() +
                           " and the memory of the host has failed: " + one_line(error);
  context_->engine->abort(context_->group, text);
  settle(State::over, {ErrorCode::closed, text});
  std::vector<Hold> holds;
  const std::lock_guard lock(mutex_);
  holds.swap(ended_holds_);
  new auto(std::move(parts_));   // NOLINT
  new auto(std::move(copies_));  // NOLINT
  parts_.clear();
  copies_.clear();
}

/// A query that fails is asked again for a while.
bool DeviceRun::passed(const c10::Event& event) {
  try {
    const bool yes = event.query();
    failing_since_.reset();
    return yes;
  } catch (const std::exception&) {
    if (!failing_since_) failing_since_ = Clock::now();
    if (Clock::now() - *failing_since_ > kQueriesFailMax) throw;
    return false;
  }
}

DeviceRun::Next DeviceRun::try_step() {
  std::vector<Part*> parts;
  std::vector<std::shared_ptr<Ticket>> tickets;
  bool sealed = false;
  State state = State::running;
  {
    const std::lock_guard lock(mutex_);
    for (Part& part : parts_) parts.push_back(&part);
    tickets = tickets_;
    sealed = sealed_;
    state = state_;
  }
  bool poll = false;
  for (Part* part : parts) {
    if (part->begun || state == State::running) poll = copy_in(*part) || poll;
  }
  const Next later = poll ? Next::poll : Next::wake;
  if (state == State::running) {
    if (!sealed) {
      if (poll || !abandoned()) return Next::poll;
      let_go();  // its inputs have been copied for the others
      return Next::gone;
    }
    Error failed;
    for (const auto& ticket : tickets) {
      if (!ticket->done()) return later;
      if (!failed.failed()) failed = ticket->error();
    }
    if (failed.failed()) {
      settle(State::over, std::move(failed));
    } else if (handed_over_) {
      if (!settled()) return Next::wake;
    } else if (copied_in() && earlier(after_copy_back_).empty() && earlier(after_read_).empty()) {
      copy_back();
      if (!settled()) return Next::wake;
    } else {
      return later;
    }
  }
  if (!over() && passed(*copied_back_)) settle(State::over, {});
  if (!over()) return Next::poll;
  // Of a failed operation: memory stays until its copies end.
  if (poll) return later;
  if (state == State::over && copied_back_ && !passed(*copied_back_)) return Next::poll;
  let_go();
  return Next::gone;
}

/// The call has failed half way: no caller can seal the run any more if only the device thread
/// holds it (in its list, and in the copy that it walks). Only then is it asked whether the run has
/// been sealed.
bool DeviceRun::abandoned() const {
  if (weak_from_this().use_count() > 2) return false;
  const std::lock_guard lock(mutex_);
  return !sealed_;
}

/// The runs for whose progress this one still has to wait.
DeviceRun::Earlier DeviceRun::earlier(const Earlier& which) const {
  Earlier runs;
  {
    const std::lock_guard lock(mutex_);
    runs = which;
  }
  const bool reads = &which == &after_read_;
  std::erase_if(runs, [&](const std::weak_ptr<DeviceRun>& weak) {
    const auto run = weak.lock();
    return !run || run->settled() || (reads && run->copied_in());
  });
  return runs;
}

bool DeviceRun::copied_in() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.begun && part.marks.empty(); });
}

/// True: the device has work to do first.
bool DeviceRun::copy_in(Part& part) {
  if (!part.begun) {
    if (!passed(part.ready)) return true;
    if (!earlier(after_copy_back_).empty()) return false;
    issue(part);
  }
  bool came = false;
  while (!part.marks.empty() && passed(part.marks.front().event)) {
    part.gate->bytes.store(part.marks.front().bytes, std::memory_order_release);
    part.marks.pop_front();
    came = true;
  }
  moved_ = moved_ || came;
  if (came) context_->engine->inputs_came(context_->group, part.gate);
  if (part.marks.empty() && std::exchange(part.inputs_kept, false)) give_inputs_up(part);
  return !part.marks.empty();
}

/// Inputs that are copied are not needed any more, however long the operation takes.
void DeviceRun::give_inputs_up(Part& part) {
  std::vector<at::Tensor> tensors;
  for (Staged& staged : part.tensors) {
    if (!staged.output) tensors.push_back(std::exchange(staged.device, {}));
  }
  release(std::move(tensors));
}

void DeviceRun::issue(Part& part) {
  const c10::StreamGuard guard(in_);
  Earlier before;
  {
    const std::lock_guard lock(mutex_);
    before = after_copy_back_;
  }
  for (const auto& weak : before) {
    const auto run = weak.lock();
    if (run && run->copied_back_) run->copied_back_->block(in_);
  }
  std::uint64_t bytes = 0;
  std::uint64_t marked = 0;
  const auto mark = [&] {
    part.marks.push_back({c10::Event(device_.type()), bytes});
    part.marks.back().event.record(in_);
    marked = bytes;
  };
  for (const Staged& staged : part.tensors) {
    if (!staged.input) continue;
    const auto element = static_cast<std::int64_t>(staged.device.element_size());
    const std::int64_t piece = static_cast<std::int64_t>(kCopyBytes) / element;
    for (std::int64_t begin = 0; begin < staged.device.numel(); begin += piece) {
      const std::int64_t count = std::min(piece, staged.device.numel() - begin);
      staged.host.narrow(0, begin, count)
          .copy_(staged.device.narrow(0, begin, count), /*non_blocking=*/true);
      bytes += static_cast<std::uint64_t>(count * element);
      if (bytes - marked >= kCopyBytes) mark();
    }
  }
  if (bytes > marked) mark();
  part.begun = true;
  moved_ = true;
}

/// Copies within the device are kernels, whose first launch may wait for all streams: a separate
/// thread launches them.
void DeviceRun::copy_back() {
  bool apart = false;
  {
    const std::lock_guard lock(mutex_);
    apart = with_kernels_;
  }
  if (!apart) return issue_copies_back();
  static auto* launches = new auto(std::make_shared<Completions>("pccl-copies"));
  handed_over_ = true;
  (*launches)->run([self = shared_from_this()] { self->copy_back_apart(); });
}

void DeviceRun::copy_back_apart() {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain;
  try {
    issue_copies_back();
  } catch (const std::exception& error) {
    broken(error);
  }
  DeviceThread::instance().wake();
}

void DeviceRun::issue_copies_back() {
  const c10::StreamGuard guard(back_);
  allow_during_captures(device_.type());
  std::vector<Staged> tensors;
  std::vector<CopyBack> copies;
  {
    const std::lock_guard lock(mutex_);
    for (const Part& part : parts_) {
      std::copy_if(part.tensors.begin(), part.tensors.end(), std::back_inserter(tensors),
                   [](const Staged& staged) { return staged.output; });
    }
    copies = copies_;
  }
  for (const Staged& staged : tensors) {
    if (over()) break;  // given up meanwhile
    staged.device.copy_(staged.host, /*non_blocking=*/true);
  }
  if (!over()) {
    for (const CopyBack& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
  }
  auto copied_back = std::make_shared<c10::Event>(device_.type());
  copied_back->record(back_);
  {
    const std::lock_guard lock(mutex_);
    copied_back_ = std::move(copied_back);
  }
  settle(State::copying_back, {});
}

void DeviceRun::settle(State state, Error error) {
  std::vector<std::function<void()>> functions;
  moved_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::over) return;  // given up before
    state_ = state;
    error_ = std::move(error);
    functions.swap(when_settled_);
    if (error_.failed() && waited_) context_->late_failure->set(error_);
    if (state == State::over) {
      for (const Hold& hold : holds_) hold.block->abort();  // a word of the host's memory
      ended_holds_.swap(holds_);
    }
    changed_.notify_all();
  }
  for (const auto& function : functions) function();
}

/// Events and holds are destroyed on this thread, which has the device set. Tensors may be slow to
/// destroy, or need the GIL, if this is their last holder.
void DeviceRun::let_go() {
  std::deque<Part> parts;
  std::vector<CopyBack> copies;
  std::shared_ptr<c10::Event> copied_back;
  std::vector<Hold> holds;
  {
    const std::lock_guard lock(mutex_);
    parts.swap(parts_);
    copies.swap(copies_);
    copied_back.swap(copied_back_);
    holds.swap(ended_holds_);
    tickets_.clear();
    after_copy_back_.clear();
    after_read_.clear();
  }
  std::vector<at::Tensor> tensors;
  for (Part& part : parts) {
    for (Staged& staged : part.tensors) tensors.push_back(std::move(staged.device));
  }
  for (CopyBack& copy : copies) {
    tensors.push_back(std::move(copy.to));
    tensors.push_back(std::move(copy.from));
  }
  release(std::move(tensors));
}

void DeviceRun::release(std::vector<at::Tensor> tensors) {
  const bool here = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    if (!tensor.defined()) return true;
    return is_plain(tensor.storage()) && tensor.storage().use_count() > 1;
  });
  if (here) return;
  auto held = std::make_shared<std::vector<at::Tensor>>(std::move(tensors));
  context_->completions->run([held = std::move(held)] {});
}

}  // namespace pccl
