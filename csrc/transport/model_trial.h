// Whether the connections of a link over a short line go by a model (BBR) or by losses, as those of
// its host do: found out by a trial. Pure: a function of what the link has carried.
//
// Over a long line one lost packet costs so much that BBR is taken at once (kLongLineUs). Over a
// short one losses may be no limit (LossLimit): there BBR is a little slower, and its timer takes
// CPU.
#pragma once

#include <cstdint>

namespace pccl {

class ModelTrial {
 public:
  /// What a link that always had something to send has carried since the last call.
  struct Look {
    std::uint64_t busy_us = 0;
    std::uint64_t bytes = 0;    // that have arrived
    bool losses_limit = false;  // LossLimit
  };
  /// Returns `by_model`.
  bool look(const Look& look);
  /// Do the connections go by a model from now on?
  [[nodiscard]] bool by_model() const { return by_model_ != on_trial_; }
  [[nodiscard]] bool on_trial() const { return on_trial_; }

 private:
  void begin();
  void settle(double rate);

  bool by_model_ = false;      // apart from the trial
  bool on_trial_ = false;      // of the other way
  double rate_ = 0;            // bytes a microsecond without the trial; older windows count less
  double trial_rate_ = 0;      // the sum of its windows
  int failed_ = 0;             // trials, one after the other
  std::uint64_t windows_ = 0;  // of the trial, or since the last one
  std::uint64_t hold_ = 0;     // of them, until the next trial
  std::uint64_t busy_us_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace pccl
