#include "transport/line_pace.h"

#include <algorithm>

#include "transport/line.h"

namespace pccl {
namespace {

constexpr std::uint64_t kPaceTrips = 4;
constexpr std::uint64_t kPaceUsMin = 100'000;
// More than one byte of so many: the line's queue is full.
constexpr std::uint64_t kResentShare = 32;
// While a line is crowded the limit is so many times what arrives, and in one window of kWindows
// more, and what is lost on top: if more arrives then, the line carries it, whoever makes its
// losses and queues. The window after that lets the queue go.
constexpr double kCrowded = 1.02;
constexpr double kProbe = 1.08;
constexpr double kAfterProbe = 0.95;
constexpr double kLostMost = 0.25;
constexpr double kQuiet = 1.05;  // times the limit, from window to window
constexpr double kLongQuiet = 1.25;
constexpr std::uint64_t kLongQuietWindows = 4;
constexpr double kFree = 2;  // a limit of so many times what arrives is none
// Of connections that go by losses: so much of a limit is used where the line may carry more. Else
// losses keep some of them below their shares, and what they leave goes to all, slowly: the queue
// takes some round trips to fill.
constexpr double kUsed = 0.95;
constexpr double kQuietLossy = 1.01;
constexpr double kFreeLossy = 1.5;
constexpr std::size_t kSlowStartWindows = 3;

// A limit that is far below what the line has carried grows fast.
constexpr double kFarBelow = 0.9;
constexpr double kOlderRates = 0.99;  // from window to window

/// Is the queue of the line long, or full? Connections that go by losses have losses anyway.
bool crowds(const LinePace::Look& window) {
  if (!window.by_losses && window.resent_bytes > window.sent_bytes / kResentShare) return true;
  return queues(window.least_trip_us, window.trip_us);
}

}  // namespace

std::uint64_t LinePace::look(const Look& look) {
  // Of what is sent after a pause nothing arrives for a round trip: that is no rate of the line.
  if (look.begun_us < look.busy_us + look.least_trip_us) {
    crowded_ = crowds(look);
    return limit_;
  }
  window_.busy_us += look.busy_us;
  window_.arrived_bytes += look.arrived_bytes;
  window_.sent_bytes += look.sent_bytes;
  window_.resent_bytes += look.resent_bytes;
  window_.least_trip_us = look.least_trip_us;
  window_.trip_us += look.trip_us * look.busy_us;
  window_.by_losses = look.by_losses;
  if (window_.busy_us < std::max(kPaceTrips * look.least_trip_us, kPaceUsMin)) return limit_;
  window_.trip_us /= window_.busy_us;
  const Look window = window_;
  window_ = {};
  if (window.arrived_bytes == 0) return limit_;  // the peer takes nothing
  rates_[next_] = window.arrived_bytes * 1'000'000 / window.busy_us;
  const auto arrived = static_cast<double>(rates_[next_]);
  next_ = (next_ + 1) % kWindows;
  seen_ = std::min(seen_ + 1, kWindows);
  const auto best = static_cast<double>(*std::max_element(rates_.begin(), rates_.end()));
  known_ = std::max(kOlderRates * known_, best);
  crowded_ = crowds(window);
  // The first slow start overfills a queue long before all connections are there.
  if (window.by_losses && limit_ == 0 && seen_ < kSlowStartWindows) return limit_;
  if (crowded_) {
    quiet_windows_ = 0;
    turn_ = (turn_ + 1) % kWindows;
    const double lost = static_cast<double>(window.resent_bytes) /
                        static_cast<double>(std::max<std::uint64_t>(1, window.sent_bytes));
    const double probe = kProbe / (1 - std::min(lost, kLostMost));
    const double times = turn_ == 0 ? probe : turn_ == 1 ? kAfterProbe : kCrowded;
    limit_ = static_cast<std::uint64_t>(times * best);
  } else if (limit_ > 0) {
    ++quiet_windows_;
    const auto limit = static_cast<double>(limit_);
    if (window.by_losses) {  // what arrives may be little for another reason, so it lowers nothing
      const double times = limit < kFarBelow * known_ ? kLongQuiet : kQuiet;
      const bool used = arrived >= kUsed * limit;
      const double higher = std::min((used ? times : kQuietLossy) * limit, kFreeLossy * best);
      limit_ = std::max(limit_, static_cast<std::uint64_t>(higher));
    } else {
      const double higher = (quiet_windows_ > kLongQuietWindows ? kLongQuiet : kQuiet) * limit;
      limit_ = higher > kFree * best ? 0 : static_cast<std::uint64_t>(higher);
    }
  }
  return limit_;
}

}  // namespace pccl
