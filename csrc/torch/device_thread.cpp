// See device_thread.h.
#include "torch/device_thread.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace pccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Between two looks: a sixteenth of what it has waited, so that long waits cost little and short
// ones are seen at once.
constexpr microseconds kPollUsMin{20};
constexpr microseconds kPollUsMax{500};
constexpr int kPollsPerWait = 16;
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
  const c10::impl::VirtualGuardImpl guard(device.type());
  const Streams made{guard.getStreamFromGlobalPool(device), guard.getStreamFromGlobalPool(device)};
  return streams_.emplace(device, made).first->second;
}

void DeviceThread::add(const std::shared_ptr<DeviceRun>& run, DeviceRun::Part part) {
  const std::lock_guard lock(mutex_);
  run->enter(runs_, std::move(part));
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
    for (const auto& run : gone) std::erase(runs_, run);
    if (runs_.empty()) idle_.notify_all();
    lock.unlock();
    gone.clear();  // what they hold is released without the lock
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
