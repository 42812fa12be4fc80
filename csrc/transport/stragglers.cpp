#include "transport/stragglers.h"

#include <algorithm>
#include <utility>

namespace pccl {
namespace {

// A lane is stuck from here on: longer than a packet that is lost twice takes.
constexpr std::uint64_t kStuckMs = 2000;
constexpr std::uint64_t kStuckTrips = 8;
// At the end of an operation, when the others have nothing to do.
constexpr std::uint64_t kLateMs = 200;
constexpr std::uint64_t kLateTrips = 3;
constexpr std::uint64_t kNeeded = 5;  // quarters of what the line needs
// A time in which nothing arrives counts once something does: so nothing is learnt of a dead line.
constexpr std::uint64_t kEmptyMsMax = 1000;
constexpr std::uint64_t kIdleMs = 10'000;
constexpr double kAfterIdle = 0.1;
constexpr double kOlder = 0.95;  // a look counts so much less than the next one: a second at 50 ms

}  // namespace

std::uint64_t TimeNeeded::look(const Look& look) {
  if (look.ends) {
    under_way_bytes_ = look.under_way_bytes;
    at_the_end_ = look.sending;
  }
  if (look.since_ms > kIdleMs) {
    bytes_ *= kAfterIdle;
    ms_ *= kAfterIdle;
  }
  // Once a lane waits for others, what arrives is not what the line carries.
  const bool all_send = look.waits ? 2 * look.sending >= look.used : look.sending >= at_the_end_;
  if (!all_send || look.since_ms > kLookMsMax) {
    empty_ms_ = 0;
  } else if (look.arrived_bytes == 0) {
    empty_ms_ = std::min(empty_ms_ + look.since_ms, kEmptyMsMax);
  } else {
    bytes_ = kOlder * bytes_ + static_cast<double>(look.arrived_bytes);
    ms_ = kOlder * ms_ + static_cast<double>(std::exchange(empty_ms_, 0) + look.since_ms);
  }
  const double ms = static_cast<double>(under_way_bytes_) * ms_ / std::max(1.0, bytes_);
  return static_cast<std::uint64_t>(std::min(ms, static_cast<double>(kNeedsMsMax)));
}

std::vector<std::size_t> stragglers(std::span<const LaneProgress> lanes, const LinkProgress& link) {
  std::size_t used = 0;
  std::size_t waiting = 0;  // of the used ones, for the others
  bool held = false;
  for (const LaneProgress& lane : lanes) {
    held = held || lane.held;
    if (!lane.used) continue;
    ++used;
    if (lane.drained) ++waiting;
  }
  const std::uint64_t stuck_ms = std::max(kStuckMs, kStuckTrips * link.trip_us / 1000);
  // Half of the lanes may be stuck at once: then the others wait for longer, to be sure.
  const std::uint64_t wait_ms =
      2 * waiting >= used ? std::max(kLateMs, kLateTrips * link.trip_us / 1000) : stuck_ms;
  // A slow line needs its time, and what goes twice takes more of it.
  const std::uint64_t late_ms = std::max(wait_ms, kNeeded * link.needs_ms / 4);
  const bool at_the_end = !held && waiting > 0 && link.nothing_waits_ms >= late_ms;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (!lanes[i].drained && (at_the_end || lanes[i].stuck_ms >= stuck_ms)) places.push_back(i);
  }
  return places;
}

}  // namespace pccl
