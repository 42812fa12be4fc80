#include "transport/rate_fall.h"

#include <algorithm>
#include <utility>

namespace pccl {
namespace {

constexpr std::uint64_t kSecondMs = 1000;
constexpr std::uint64_t kPauseMs = 500;   // without a look: the link was idle
constexpr std::uint64_t kForgets = 256;   // seconds in which the rate of before falls to a third
constexpr std::uint64_t kElsewhere = 10;  // this part of it over all links: they share a line

}  // namespace

void RateFall::begin(const Look& look) {
  begin_ = look;
  held_ = look.held;
}

void RateFall::forget_slow() { slow_ms_ = slow_bytes_ = still_ms_ = 0; }

std::optional<RateFall::Fall> RateFall::look(const Look& look) {
  const Look last = std::exchange(last_, look);
  const bool first = !std::exchange(looks_, true) || look.now_ms - last.now_ms > kPauseMs;
  if (first || look.arrived_bytes < last.arrived_bytes) {
    begin(look);
    return {};
  }
  held_ = held_ || look.held;
  const std::uint64_t passed_ms = look.now_ms - begin_.now_ms;
  if (passed_ms < kSecondMs) return {};
  const Look from = begin_;
  const bool held = held_;
  begin(look);
  if (held) return {};
  const std::uint64_t arrived = look.arrived_bytes - from.arrived_bytes;
  const std::uint64_t rate = arrived * 1000 / passed_ms;
  const std::uint64_t process = (look.process_bytes - from.process_bytes) * 1000 / passed_ms;
  before_ = std::max(rate, before_ - before_ / kForgets);
  if (look.waits_since_ms > from.now_ms) return {};  // it had nothing to send for a moment
  if (rate > before_ / kThirtieth || process > before_ / kElsewhere) {
    forget_slow();
    return {};
  }
  still_ms_ = arrived > 0 ? 0 : still_ms_ + passed_ms;
  if (still_ms_ >= kStillMs) {
    forget_slow();
    return {};
  }
  slow_ms_ += passed_ms;
  slow_bytes_ += arrived;
  if (slow_ms_ < kSlowMs || slow_bytes_ == 0) return {};
  const Fall fall{before_, slow_bytes_ * 1000 / slow_ms_, slow_ms_};
  forget_slow();
  if (said_ms_ && look.now_ms - *said_ms_ < kAgainMs) return {};
  said_ms_ = look.now_ms;
  return fall;
}

}  // namespace pccl
