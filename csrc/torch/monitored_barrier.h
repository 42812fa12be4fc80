// torch.distributed's monitored_barrier: a barrier that names the ranks that do not come. It waits
// on the caller's thread, as c10d wants it. It consists of messages of its group, and the engine
// knows nothing of it (PROTOCOL.md has their tags).
//
// Rank 0 asks all ranks, hears from them, then lets them go on. Each barrier has a number, of rank
// 0's calls: no other rank need have counted as many, since a rank may have joined later, or missed
// a barrier. What is left of a barrier that has failed has an older number, and is no answer in a
// later one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torch/group_context.h"

namespace pccl {

class PcclBackend;

/// Of one group. Thread-safe: a second thread waits until the first one is through.
class MonitoredBarrier {
 public:
  using Millis = std::chrono::milliseconds;

  /// `group` owns the barrier.
  explicit MonitoredBarrier(PcclBackend& group) : group_(group) {}

  /// Returns when all ranks have called it. Throws if not all have within `timeout`; at rank 0 the
  /// error names the first rank that has not, with `wait_all_ranks` all of them.
  void pass(Millis timeout, bool wait_all_ranks);

 private:
  using Clock = std::chrono::steady_clock;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  at::Tensor word_of_root(Clock::time_point deadline);
  void report_to_root(Clock::time_point deadline);
  void collect_at_root(Clock::time_point deadline, Millis timeout, bool wait_all_ranks);

  PcclBackend& group_;
  std::timed_mutex mutex_;      // held during a barrier: the words of two have no names
  std::uint64_t barriers_ = 0;  // of rank 0; under mutex_
  struct Asked {
    std::shared_ptr<GroupContext> context;
    WorkPtr work;
    at::Tensor word;
  };
  std::optional<Asked> asked_;  // the receive of rank 0's next word; under mutex_
};

}  // namespace pccl
