// The thread that watches devices for all groups of the process: it asks events whether they are
// done, opens gates, and issues the copies back. It never waits for a device and never takes the
// GIL; where nothing is in flight it sleeps.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch/staging.h"

namespace pccl {

/// Thread-safe. Never destroyed: the last run may end while the process does.
class DeviceThread {
 public:
  static DeviceThread& instance();

  /// Gives a run one more part; runs are ordered by their first one. Starts the thread.
  void add(const std::shared_ptr<DeviceRun>& run, DeviceRun::Part part);
  /// Something has happened that a run waits for.
  void wake();
  /// Waits until no run is left; false if some are after `timeout_ms`.
  bool drain(std::uint64_t timeout_ms);

  struct Streams {
    c10::Stream in;    // from the device
    c10::Stream back;  // to it
  };
  /// Of our own, the same ones for all operations on a device.
  [[nodiscard]] Streams streams(c10::Device device);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable signal_, idle_;
  std::vector<std::shared_ptr<DeviceRun>> runs_;
  bool running_ = false;
  bool signalled_ = false;
  std::mutex streams_mutex_;
  std::unordered_map<c10::Device, Streams> streams_;
};

}  // namespace pccl
