// See device_thread.h.
#include "torch/device_thread.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "torch/device_calls.h"
#include "torch/device_watch.h"
#include "torch/errors.h"

namespace pccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// The time between two looks: a sixteenth of the wait so far, so that long waits cost little and
// short ones are seen at once.
constexpr microseconds kPollUsMin{20};
constexpr microseconds kPollUsMax{500};
constexpr int kPollsPerWait = 16;
// Device tensors and their host memory stay until their operation is over: beyond this a call
// waits.
constexpr std::uint64_t kOperationsInFlight = 4;  // of the largest size so far
constexpr std::uint64_t kInFlightBytesMin = 64ULL << 20;
constexpr std::uint64_t kInFlightBytesMax = 1ULL << 30;
constexpr unsigned long kTimerSlackNs = 1000;  // the kernel's default, 50 us, is more than a look

}  // namespace

DeviceThread& DeviceThread::instance() {
  static auto* thread = new DeviceThread;
  return *thread;
}

DeviceThread::Streams DeviceThread::streams(c10::Device device) {
  const std::lock_guard lock(streams_mutex_);
  const auto it = streams_.find(device);
  if (it != streams_.end()) return it->second;
  const auto in = new_stream(device);
  const auto back = new_stream(device);
  if (in && back) return streams_.emplace(device, Streams{*in, *back, true}).first->second;
  try {
    const c10::impl::VirtualGuardImpl guard(device.type());
    const Streams made{guard.getStreamFromGlobalPool(device), guard.getStreamFromGlobalPool(device),
                       false};
    return streams_.emplace(device, made).first->second;
  } catch (const std::exception& error) {
    raise(
        {ErrorCode::invalid, "tensors on " + device.str() + " cannot be used: " + one_line(error)});
  }
}

std::vector<std::shared_ptr<DeviceRun>> DeviceThread::runs() {
  std::vector<std::shared_ptr<DeviceRun>> posted;
  const std::lock_guard lock(mutex_);
  std::copy_if(runs_.begin(), runs_.end(), std::back_inserter(posted),
               [](const auto& run) { return run->sealed(); });
  return posted;
}

bool DeviceThread::has_room(c10::Device device, std::uint64_t bytes,
                            std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return room_.wait_for(lock, timeout, [&] {
    const Load& load = loads_[device];
    const std::uint64_t operations = kOperationsInFlight * std::max(load.largest, bytes);
    const std::uint64_t limit = std::clamp(operations, kInFlightBytesMin, kInFlightBytesMax);
    return load.bytes == 0 || load.bytes + bytes <= limit;
  });
}

std::uint64_t DeviceThread::ended() {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void DeviceThread::add(const std::shared_ptr<DeviceRun>& run, DeviceRun::Part part) {
  std::uint64_t bytes = 0;  // messages take no room: a receive may be posted long before its sender
  for (const Staged& staged : part.tensors) {
    if (run->collective()) bytes += staged.host.nbytes();
  }
  const std::lock_guard lock(mutex_);
  run->enter(runs_, std::move(part));
  Load& load = loads_[run->device()];
  load.bytes += bytes;
  load.largest = std::max(load.largest, bytes);
  bytes_[run.get()] += bytes;
  if (std::find(runs_.begin(), runs_.end(), run) == runs_.end()) runs_.push_back(run);
  if (!running_) {
    std::thread([this] {
      pthread_setname_np(pthread_self(), "pccl-device");
      prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
      loop();
    }).detach();
    running_ = true;
  }
  signalled_ = true;
  signal_.notify_one();
}

void DeviceThread::wake() {
  const std::lock_guard lock(mutex_);
  signalled_ = true;
  signal_.notify_one();
}

bool DeviceThread::drain(std::uint64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return runs_.empty(); });
}

void DeviceThread::loop() {
  auto since = Clock::now();  // nothing has moved
  std::unique_lock lock(mutex_);
  for (;;) {
    bool moved = std::exchange(signalled_, false);
    std::vector<std::shared_ptr<DeviceRun>> runs = runs_;
    lock.unlock();
    std::optional<DeviceWatch::Calls> calls(std::in_place);
    bool poll = false;
    std::vector<std::shared_ptr<DeviceRun>> gone;
    for (std::shared_ptr<DeviceRun>& run : runs) {
      const DeviceRun::Next next = run->step();
      poll = poll || next == DeviceRun::Next::poll;
      moved = run->has_moved() || moved;
      if (next == DeviceRun::Next::gone) gone.push_back(run);
    }
    runs.clear();
    lock.lock();
    for (const auto& run : gone) {
      std::erase(runs_, run);
      loads_[run->device()].bytes -= bytes_[run.get()];
      bytes_.erase(run.get());
      ++ended_;
    }
    if (!gone.empty()) room_.notify_all();
    if (runs_.empty()) idle_.notify_all();
    lock.unlock();
    gone.clear();  // their contents are released without the lock
    calls.reset();
    lock.lock();
    const auto signalled = [&] { return signalled_; };
    if (moved) since = Clock::now();
    if (poll) {
      const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - since);
      signal_.wait_for(lock, std::clamp(waited / kPollsPerWait, kPollUsMin, kPollUsMax), signalled);
    } else {
      signal_.wait(lock, signalled);
    }
  }
}

}  // namespace pccl
