// See staging.h.
#include "torch/staging.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "torch/device_thread.h"

namespace pccl {
namespace {

// One copy, after which the engine may send: large enough for the full rate of a bus, small enough
// that sending begins early.
constexpr std::uint64_t kCopyBytes = 8U << 20;

std::atomic<bool> holds_asked_for{false};

/// "CUDA"; for a device that registered itself under a name, that name in capitals.
std::string registered_name(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/false);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

DeviceRun::Extent extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;  // element
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());  // NOLINT
  return {begin, begin + static_cast<std::uintptr_t>(last + 1) * tensor.element_size()};
}

bool touch(const std::vector<DeviceRun::Extent>& as, const std::vector<DeviceRun::Extent>& bs) {
  return std::any_of(as.begin(), as.end(), [&](const auto& a) {
    return std::any_of(bs.begin(), bs.end(), [&](const auto& b) {
      return std::max(a.begin, b.begin) < std::min(a.end, b.end);
    });
  });
}

}  // namespace

void set_stream_wait(bool wait) { holds_asked_for = wait; }
bool stream_wait() { return holds_asked_for; }

bool can_hold_streams(c10::DeviceType type) {
  return c10d::cuda::StreamBlockRegistry()->Has(registered_name(type));
}

Staged stage(const at::Tensor& tensor, bool input, bool output) {
  const c10::DeviceGuard guard(tensor.device());  // memory is pinned for the current one
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(true);
  return {tensor.view({-1}), at::empty({tensor.numel()}, options), input, output};
}

// ------------------------------------------------------------------------------- caller's side

DeviceRun::DeviceRun(std::shared_ptr<GroupContext> context, c10::Device device)
    : context_(std::move(context)),
      device_(device),
      in_(DeviceThread::instance().streams(device).in),
      back_(DeviceThread::instance().streams(device).back) {}

std::shared_ptr<const InputGate> DeviceRun::add(std::vector<Staged> tensors,
                                                const std::vector<CopyBack>& copies) {
  Part part(device_.type());
  part.tensors = std::move(tensors);
  for (const Staged& staged : part.tensors) {
    if (staged.input) part.reads.push_back(extent_of(staged.device));
    if (staged.output) part.writes.push_back(extent_of(staged.device));
  }
  for (const CopyBack& copy : copies) part.writes.push_back(extent_of(copy.to));
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

bool DeviceRun::wait_settled(std::uint64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return state_ != State::running; });
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

bool DeviceRun::on_own_stream() const {
  const c10::Stream current = current_stream(device_);
  return current == in_ || current == back_;
}

/// What is done on the device is done without the lock: it may take as long as the device does.
bool DeviceRun::hold_stream() {
  const c10::Stream current = current_stream(device_);
  State state = State::running;
  std::shared_ptr<c10::Event> copied_back;
  {
    const std::lock_guard lock(mutex_);
    state = state_;
    copied_back = copied_back_;
    if (state == State::running) waited_ = true;
  }
  if (state == State::copying_back) copied_back->block(current);
  if (state != State::running) return false;
  const c10::DeviceGuard guard(device_);
  auto block = c10d::cuda::StreamBlockRegistry()->Create(registered_name(device_.type()),
                                                         std::chrono::milliseconds(0));
  const std::lock_guard lock(mutex_);
  if (state_ == State::over) {
    block->abort();
  } else {
    blocks_.push_back(std::move(block));
  }
  return true;
}

// ------------------------------------------------------------------------------- device thread

DeviceRun::Next DeviceRun::step() {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain;
  try {
    // For good, not with a guard: going back to a device that this process does not use would
    // begin to use it.
    c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
    return try_step();
  } catch (const std::exception& error) {
    const std::string text = "a copy between " + device_.str() +
                             " and the memory of the host has failed: " + error.what();
    context_->engine->abort(context_->group, text);
    settle(State::over, {ErrorCode::closed, text});
    let_go();
    return Next::gone;
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
      let_go();  // what others need of it has been copied in
      return Next::gone;
    }
    Error failed;
    for (const auto& ticket : tickets) {
      if (!ticket->done()) return later;
      if (!failed.failed()) failed = ticket->error();
    }
    if (failed.failed()) {
      settle(State::over, std::move(failed));
    } else if (copied_in() && earlier(after_copy_back_).empty() && earlier(after_read_).empty()) {
      copy_back();
    } else {
      return later;
    }
  }
  if (!over() && copied_back_->query()) settle(State::over, {});
  if (!over()) return Next::poll;
  if (poll) return later;  // copies in of a failed operation: their memory stays until they end
  let_go();
  return Next::gone;
}

/// The call has failed half way: nobody can seal the run any more, since only the thread has it
/// (its list, and the copy that it goes through). Whether it has been sealed is asked after that.
bool DeviceRun::abandoned() const {
  if (weak_from_this().use_count() > 2) return false;
  const std::lock_guard lock(mutex_);
  return !sealed_;
}

/// Those of the runs that have not come so far that this one may go on.
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

/// True: the device has to do something first.
bool DeviceRun::copy_in(Part& part) {
  if (!part.begun) {
    if (!part.ready.query()) return true;
    if (!earlier(after_copy_back_).empty()) return false;
    issue(part);
  }
  bool came = false;
  while (!part.marks.empty() && part.marks.front().event.query()) {
    part.gate->bytes.store(part.marks.front().bytes, std::memory_order_release);
    part.marks.pop_front();
    came = true;
  }
  moved_ = moved_ || came;
  if (came) context_->engine->inputs_came(context_->group, part.gate);
  return !part.marks.empty();
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

void DeviceRun::copy_back() {
  const c10::StreamGuard guard(back_);
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
  for (const Staged& staged : tensors) staged.device.copy_(staged.host, /*non_blocking=*/true);
  for (const CopyBack& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
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
  std::vector<std::unique_ptr<StreamBlock>> blocks;
  bool late = false;
  moved_ = true;
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    error_ = std::move(error);
    functions.swap(when_settled_);
    if (state == State::over) blocks.swap(blocks_);
    late = error_.failed() && waited_;
    changed_.notify_all();
  }
  if (late) context_->late_failure->set(error_);
  for (const auto& block : blocks) block->abort();
  for (const auto& function : functions) function();
}

/// Events go on this thread, which has the device set. Tensors whose last holder this is may be
/// slow to go, or need the GIL.
void DeviceRun::let_go() {
  std::deque<Part> parts;
  std::vector<CopyBack> copies;
  std::shared_ptr<c10::Event> copied_back;
  {
    const std::lock_guard lock(mutex_);
    parts.swap(parts_);
    copies.swap(copies_);
    copied_back.swap(copied_back_);
    tickets_.clear();
    after_copy_back_.clear();
    after_read_.clear();
  }
  auto tensors = std::make_shared<std::vector<at::Tensor>>();
  for (Part& part : parts) {
    for (Staged& staged : part.tensors) tensors->push_back(std::move(staged.device));
  }
  for (CopyBack& copy : copies) {
    tensors->push_back(std::move(copy.to));
    tensors->push_back(std::move(copy.from));
  }
  const bool last = std::any_of(tensors->begin(), tensors->end(), [](const at::Tensor& tensor) {
    return tensor.storage().use_count() == 1;
  });
  if (last) context_->completions->run([tensors = std::move(tensors)] {});
}

}  // namespace pccl
