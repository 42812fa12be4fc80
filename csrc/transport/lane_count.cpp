#include "transport/lane_count.h"

#include <algorithm>
#include <cmath>

namespace pccl {
namespace {

constexpr std::uint64_t kWindowTrips = 8;
constexpr std::uint64_t kWindowUsMin = 800'000;
constexpr std::uint64_t kWindowUsMax = 3'000'000;
constexpr double kFarBetter = 1.3;  // in one window
constexpr double kBetter = 1.1;     // so much faster: more lanes help
constexpr double kAsFast = 0.95;    // so fast still: fewer lanes do
constexpr double kBrokenIn = 0.5;   // so slow: the line is another one
constexpr double kNewest = 0.3;     // weight of a window in the rate of the base
constexpr int kWindowsOfMore = 2;
constexpr int kWindowsOfFewer = 3;
constexpr std::uint64_t kHoldWindows = 8;
constexpr std::uint64_t kHoldDoublings = 3;
// A line that could carry more is tried again so many times sooner, and with more lanes alone.
constexpr std::uint64_t kQuietWeight = 4;
constexpr std::uint64_t kTrustedTrials = 3;
constexpr int kWindowsOfAnother = 4;
// On a line that is full so much of what it holds (rate times the shortest round trip) is enough
// for a lane: one that has few packets under way waits for a time-out when it loses one. Two lanes
// are never too many: where one is dead, the other one brings over what it holds.
constexpr double kLaneBytes = 16 << 10;
// A lane that goes by losses need hold no more of the line than half of what it holds in the mean:
// 1.22 packets by the square root of the part that is lost (Mathis et al. 1997). And no less than
// where one packet of 10,000 is lost: what overfills a queue is counted too.
constexpr double kPacketBytes = 1448;
constexpr double kHeldPackets = 1.22 / 2;
constexpr double kLossyLaneBytesMin = 96 << 10;
constexpr double kOlderLosses = 0.9;  // a window counts so much less than the next one

}  // namespace

std::size_t LaneCount::look(const Look& look) {
  most_ = std::clamp(look.most, least_, limit_);
  if (wanted_ > most_) settle(most_);
  busy_us_ += look.busy_us;
  if (look.crowded) crowded_us_ += look.busy_us;
  if (look.full) full_us_ += look.busy_us;
  bytes_ += look.bytes;
  if (base_rate_ > 0) {  // the first window is a slow start, which says nothing of the line
    sent_ += static_cast<double>(look.sent_bytes);
    resent_ += static_cast<double>(look.resent_bytes);
  }
  const std::uint64_t window =
      std::clamp(kWindowTrips * look.round_trip_us, kWindowUsMin, kWindowUsMax);
  if (busy_us_ < (settling_ ? window / 2 : window)) return wanted_;
  if (bytes_ == 0) {  // the peer takes nothing, which says nothing of the number of lanes
    busy_us_ = crowded_us_ = full_us_ = 0;
    return wanted_;
  }
  const double rate = static_cast<double>(bytes_) / static_cast<double>(busy_us_);
  const bool crowded = 2 * crowded_us_ > busy_us_;
  const bool full = 2 * full_us_ > busy_us_;
  busy_us_ = crowded_us_ = full_us_ = 0;
  bytes_ = 0;
  if (full) {
    const auto enough = static_cast<std::size_t>(line_bytes(rate, look) / kLaneBytes);
    most_ = std::clamp(std::max<std::size_t>(2, enough), least_, most_);
    if (wanted_ > most_) {
      settle(most_);
      return wanted_;
    }
  }
  if (needs_more(rate, look)) return wanted_;
  if (settling_) {
    settling_ = false;
  } else {
    window_over(rate, crowded);
  }
  return wanted_;
}

/// What the line holds without its queue. One slow window may be that of a peer that takes nothing
/// for a while.
double LaneCount::line_bytes(double rate, const Look& look) const {
  return std::max(rate, base_rate_) * static_cast<double>(look.round_trip_us);
}

/// Of lanes that go by losses a trial compares those that have lost a packet with those that have
/// not yet. So there are as many from the beginning as may fill the line after losses. Returns
/// whether the number has changed.
bool LaneCount::needs_more(double rate, const Look& look) {
  needed_ = least_;
  sent_ *= kOlderLosses;
  resent_ *= kOlderLosses;
  if (!look.by_losses || resent_ == 0) return false;
  const double lost = std::min(1.0, resent_ / std::max(1.0, sent_));
  const double lane_bytes =
      std::max(kLossyLaneBytesMin, kHeldPackets * kPacketBytes / std::sqrt(lost));
  const auto enough = static_cast<std::size_t>(line_bytes(rate, look) / lane_bytes);
  needed_ = std::clamp(enough, least_, most_);
  if (wanted_ >= needed_) return false;
  wanted_ = base_ = trial_ == Trial::fewer ? std::max(base_, needed_) : needed_;
  base_rate_ = rate;
  trial_ = Trial::none;
  hold_ = kHoldWindows;
  settling_ = true;
  return true;
}

void LaneCount::window_over(double rate, bool crowded) {
  ++windows_;
  switch (trial_) {
    case Trial::none:
      return goes_on(rate, crowded);
    case Trial::more: {
      trial_rate_ += rate;
      const bool far_better = rate >= kFarBetter * base_rate_;
      // A line that is not full carries more over more lanes, once they have found their rates;
      // unless something else is the limit, as later trials show.
      const bool trusted = !crowded && settled_ < kTrustedTrials;
      const bool helps = far_better || (trusted && rate >= kBrokenIn * base_rate_);
      if (!helps && windows_ < kWindowsOfMore) return;
      if (!helps && trial_rate_ < kBetter * base_rate_ * windows_) return settle(base_);
      base_ = wanted_;
      base_rate_ = far_better ? rate : trial_rate_ / windows_;
      if (base_ >= most_) return settle(base_);
      return begin(Trial::more, more_than(crowded));
    }
    case Trial::fewer: {
      trial_rate_ += rate;
      const bool as_fast = trial_rate_ >= kAsFast * base_rate_ * windows_;
      if (as_fast && windows_ < kWindowsOfFewer) return;
      return settle(as_fast ? wanted_ : base_);
    }
  }
}

void LaneCount::goes_on(double rate, bool crowded) {
  slow_windows_ = rate < kBrokenIn * base_rate_ ? slow_windows_ + 1 : 0;
  const bool another_line = slow_windows_ >= kWindowsOfAnother;
  if (base_rate_ == 0 || another_line) {
    base_rate_ = rate;
    slow_windows_ = 0;
    settled_ = 0;
  } else if (slow_windows_ == 0) {
    base_rate_ += kNewest * (rate - base_rate_);
  }
  if (hold_ > 0 && !another_line) {
    hold_ -= std::min(hold_, crowded || base_ >= most_ ? 1 : kQuietWeight);
    return;
  }
  const bool may_be_fewer = crowded || base_ >= most_ || settled_ >= kTrustedTrials;
  const bool can_be_fewer = base_ > needed_ && !another_line && may_be_fewer;
  if (can_be_fewer && (fewer_next_ || base_ >= most_)) {
    return begin(Trial::fewer, base_ - (base_ + 3) / 4);
  }
  if (base_ < most_) begin(Trial::more, more_than(crowded));
}

/// The first time fast: what is too many goes again.
std::size_t LaneCount::more_than(bool crowded) const {
  return settled_ == 0 && !crowded ? 4 * base_ : 2 * base_;
}

void LaneCount::begin(Trial trial, std::size_t lanes) {
  trial_ = trial;
  windows_ = 0;
  trial_rate_ = 0;
  fewer_next_ = trial == Trial::more;
  wanted_ = std::clamp(lanes, needed_, most_);
  settling_ = true;
}

void LaneCount::settle(std::size_t lanes) {
  settling_ = lanes != wanted_;
  wanted_ = base_ = lanes;
  trial_ = Trial::none;
  hold_ = kHoldWindows << std::min(settled_++, kHoldDoublings);
}

}  // namespace pccl
