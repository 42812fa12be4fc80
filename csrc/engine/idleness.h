// For how long the program of a member has called nothing: no operation of the run waits for its
// outcome, and the program stands at no boundary. Heartbeats say whether that is longer than the
// member's own time-outs, so that the master does not take the word of one other member for it
// (membership/lateness.cpp). No clock: ticks. Engine's thread only.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace pccl {

class Idleness {
 public:
  /// `next`: one past the newest operation. `busy`: something that the program has called is on its
  /// way. `runs`: an epoch is in force; else the time stands still.
  void tick(std::uint64_t elapsed_ms, OpKey next, bool busy, bool runs) {
    busy_ = busy;
    if (busy || next != next_) {
      idle_ms_ = 0;
    } else if (runs) {
      idle_ms_ += elapsed_ms;
    }
    next_ = next;
  }
  /// The time-out of the newest boundary; 0: none.
  void at_boundary(std::uint64_t timeout_ms) { step_timeout_ms_ = timeout_ms; }

  /// `timeout_ms`: of the group. Without one a member that waits for nothing says that it may be
  /// late.
  [[nodiscard]] bool op_overdue(std::uint64_t timeout_ms) const {
    return !busy_ && idle_ms_ >= timeout_ms;
  }
  [[nodiscard]] bool step_overdue(std::uint64_t timeout_ms) const {
    return !busy_ && idle_ms_ >= (step_timeout_ms_ > 0 ? step_timeout_ms_ : timeout_ms);
  }

 private:
  bool busy_ = false;
  OpKey next_;
  std::uint64_t idle_ms_ = 0;
  std::uint64_t step_timeout_ms_ = 0;
};

}  // namespace pccl
