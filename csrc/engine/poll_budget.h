// How often a caller that waits may poll and find nothing. Polls make small operations fast (to be
// woken takes longer than they do). Over a slow line something comes each 100 us all the time, and
// a caller that polled in between would use a fifth of a core for as long as it waits. So after a
// few milliseconds of polls in vain it sleeps instead, but for a poll now and then. Pure.
#pragma once

#include <chrono>
#include <cstdint>

namespace pccl {

class PollBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::int64_t kFreeMisses = 1000;  // two to three milliseconds
  static constexpr std::chrono::microseconds kEachUs{1000};

  /// Of one wait, which begins now.
  explicit PollBudget(Time now) : began_(now) {}

  void missed() { ++missed_; }
  /// May it poll?
  [[nodiscard]] bool left(Time now) const {
    return missed_ < kFreeMisses + (now - began_) / kEachUs;
  }

 private:
  Time began_;
  std::int64_t missed_ = 0;
};

}  // namespace pccl
