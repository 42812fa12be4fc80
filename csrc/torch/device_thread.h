// The thread that watches devices for all groups of the process: it asks events whether they are
// done, opens gates, and issues the copies back. It never waits for a device and never takes the
// GIL; while no operation is in flight it sleeps.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch/staging.h"

namespace pccl {

/// Thread-safe. Never destroyed: the last run may end while the process does. Its state is under a
/// mutex that is never held during a call to a device.
class DeviceThread {
 public:
  static DeviceThread& instance();

  /// Gives a run one more part; runs are ordered by their first part. Starts the thread.
  void add(const std::shared_ptr<DeviceRun>& run, DeviceRun::Part part);
  /// Wakes the thread: an event that a run waits for has happened.
  void wake();
  /// Waits until no run is left; false if there are still runs after `timeout_ms`.
  bool drain(std::uint64_t timeout_ms);
  /// Those of which all calls are posted.
  [[nodiscard]] std::vector<std::shared_ptr<DeviceRun>> runs();

  /// Waits until so many bytes have room beside those in flight on the device; false: they have
  /// not.
  [[nodiscard]] bool has_room(c10::Device device, std::uint64_t bytes,
                              std::chrono::milliseconds timeout);
  /// How many runs have ended.
  [[nodiscard]] std::uint64_t ended();

  struct Streams {
    c10::Stream in;    // from the device
    c10::Stream back;  // to it
    bool own;          // no program can get these streams
  };
  /// The streams of a device, the same for all operations.
  [[nodiscard]] Streams streams(c10::Device device);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable signal_, idle_, room_;
  std::vector<std::shared_ptr<DeviceRun>> runs_;
  struct Load {
    std::uint64_t bytes = 0;    // of collectives in flight
    std::uint64_t largest = 0;  // of any operation so far
  };
  std::unordered_map<c10::Device, Load> loads_;
  std::unordered_map<const DeviceRun*, std::uint64_t> bytes_;
  std::uint64_t ended_ = 0;
  bool running_ = false;
  bool signalled_ = false;
  std::mutex streams_mutex_;
  std::unordered_map<c10::Device, Streams> streams_;
};

}  // namespace pccl
