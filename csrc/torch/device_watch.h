// Ends holds of streams that no other thread can end: if a device, or its driver, does not answer,
// the device thread is stuck in a call. The thread of this file makes no call to a device.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pccl {

class DeviceRun;

/// Thread-safe. Never destroyed: a hold may be open while the process ends.
class DeviceWatch {
 public:
  static DeviceWatch& instance();

  /// The run holds a stream. Starts the thread, which looks once a second while there are holds.
  void add(const std::shared_ptr<DeviceRun>& run);

  /// Around what the device thread does: its calls to devices may not return.
  class Calls {
   public:
    Calls() { ++instance().calls_; }
    ~Calls() { ++instance().calls_; }
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;
  };

 private:
  void loop();

  std::atomic<std::uint64_t> calls_{0};  // odd: the device thread may be in a call
  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<std::weak_ptr<DeviceRun>> runs_;
  bool running_ = false;
};

}  // namespace pccl
