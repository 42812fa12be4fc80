#include "transport/loss_limit.h"

#include <algorithm>
#include <cmath>

namespace pccl {
namespace {

constexpr std::uint64_t kLossWindowUs = 500'000;
constexpr std::uint64_t kKnownWindows = 6;  // no judgement before
constexpr double kNewestWindow = 0.3;       // weight of a window in the rate
constexpr double kOlderWindow = 0.8;  // a window's losses count so much less than the next one's
constexpr double kPacketsUnderWay = 1.22;  // by the square root of the lost part
// Losses are the limit where so much arrives of what the formula lets a connection have: its round
// trip is the shortest one, and acknowledgements wait behind what goes the other way.
constexpr double kOfFormula = 0.2;
// Bytes a microsecond: above 2.4 Gbit/s neither the timer of BBR nor many lanes are worth a trial.
constexpr double kFastest = 300;

}  // namespace

bool LossLimit::look(const Look& look) {
  busy_us_ += look.busy_us;
  bytes_ += look.bytes;
  sent_ += static_cast<double>(look.sent_bytes);
  resent_ += static_cast<double>(look.resent_bytes);
  if (busy_us_ < kLossWindowUs) return limits_;
  if (bytes_ == 0) {  // a peer that takes nothing says nothing of the line
    busy_us_ = 0;
    return limits_;
  }
  const double rate = static_cast<double>(bytes_) / static_cast<double>(busy_us_);
  busy_us_ = bytes_ = 0;
  rate_ += (windows_ == 0 ? 1 : kNewestWindow) * (rate - rate_);
  const double lost = resent_ / std::max(1.0, sent_);
  const double under_way = rate_ * static_cast<double>(look.least_trip_us) /
                           static_cast<double>(std::max<std::uint64_t>(1, look.lanes));
  const double formula = kPacketsUnderWay * static_cast<double>(look.packet_bytes);
  sent_ *= kOlderWindow;
  resent_ *= kOlderWindow;
  limits_ = ++windows_ >= kKnownWindows && lost > 0 && rate_ <= kFastest &&
            under_way * std::sqrt(lost) >= kOfFormula * formula;
  return limits_;
}

}  // namespace pccl
