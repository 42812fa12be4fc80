#include "transport/model_trial.h"

#include <algorithm>

namespace pccl {
namespace {

constexpr std::uint64_t kTrialWindowUs = 500'000;
constexpr double kNewestRate = 0.3;         // weight of a window in the rate without the trial
constexpr std::uint64_t kTrialWindows = 4;  // the first of which says nothing
// What a model has to bring: it may be slow at first, while it takes a queue of the other direction
// for the line (BBR looks for the shortest round trip every ten seconds).
constexpr double kAsGood = 0.75;
// And what losses have to bring that the model is left for: at first they have lost nothing.
constexpr double kLossesBetter = 1.1;
constexpr std::uint64_t kLossesHold = 64;
constexpr std::uint64_t kModelHold = 256;
constexpr int kTrialDoublings = 4;

}  // namespace

bool ModelTrial::look(const Look& look) {
  busy_us_ += look.busy_us;
  bytes_ += look.bytes;
  if (busy_us_ < kTrialWindowUs) return by_model();
  if (bytes_ == 0) {  // a peer that takes nothing says nothing of the line
    busy_us_ = 0;
    return by_model();
  }
  const double rate = static_cast<double>(bytes_) / static_cast<double>(busy_us_);
  busy_us_ = bytes_ = 0;
  ++windows_;
  if (on_trial_) {
    if (windows_ > 1) trial_rate_ += rate;
    if (windows_ == kTrialWindows) settle(trial_rate_ / (kTrialWindows - 1));
    return by_model();
  }
  rate_ += (rate_ == 0 ? 1 : kNewestRate) * (rate - rate_);
  if (windows_ >= hold_ && (by_model_ || look.losses_limit)) begin();
  return by_model();
}

void ModelTrial::begin() {
  on_trial_ = true;
  windows_ = 0;
  trial_rate_ = 0;
}

void ModelTrial::settle(double rate) {
  if (rate >= (by_model_ ? kLossesBetter : kAsGood) * rate_) {
    by_model_ = !by_model_;
    rate_ = rate;
    failed_ = 0;
  } else {
    failed_ = std::min(failed_ + 1, kTrialDoublings);
  }
  on_trial_ = false;
  windows_ = 0;
  hold_ = (by_model_ ? kModelHold : kLossesHold) << failed_;
}

}  // namespace pccl
