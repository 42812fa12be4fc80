// See device_watch.h. Time is counted in looks: a process that was stopped has not looked.
#include "torch/device_watch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <pthread.h>

#include <chrono>
#include <string>
#include <thread>

#include "torch/staging.h"

namespace pccl {
namespace {

constexpr std::chrono::seconds kLookEvery{1};
constexpr int kStuckLooks = 10;

}  // namespace

DeviceWatch& DeviceWatch::instance() {
  static auto* watch = new DeviceWatch;
  return *watch;
}

void DeviceWatch::add(const std::shared_ptr<DeviceRun>& run) {
  const std::lock_guard lock(mutex_);
  runs_.push_back(run);
  if (running_) {
    added_.notify_one();
    return;
  }
  std::thread([this] {
    pthread_setname_np(pthread_self(), "pccl-watch");
    loop();
  }).detach();
  running_ = true;
}

void DeviceWatch::loop() {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain;
  std::uint64_t call = 0;
  int stuck = 0;
  for (;;) {
    std::vector<std::weak_ptr<DeviceRun>> runs;
    {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [&] { return !runs_.empty(); });
      lock.unlock();
      std::this_thread::sleep_for(kLookEvery);
      lock.lock();
      runs.swap(runs_);
    }
    const std::uint64_t now = calls_;
    stuck = now % 2 == 1 && now == call ? stuck + 1 : 0;
    call = now;
    std::string why;
    if (stuck >= kStuckLooks) {
      why = "the device thread has not returned from a call for " + std::to_string(stuck) + " s";
    }
    std::erase_if(runs, [&](const std::weak_ptr<DeviceRun>& weak) {
      const auto run = weak.lock();
      return !run || !run->holds_on(why);
    });
    const std::lock_guard lock(mutex_);
    runs_.insert(runs_.end(), runs.begin(), runs.end());
  }
}

}  // namespace pccl
