#include "transport/stragglers.h"

#include <algorithm>

namespace pccl {
namespace {

// A lane is stuck from here on: longer than a packet that is lost twice takes.
constexpr std::uint64_t kStuckMs = 2000;
constexpr std::uint64_t kStuckTrips = 8;
// At the end of an operation, when the others have nothing to do.
constexpr std::uint64_t kLateMs = 200;
constexpr std::uint64_t kLateTrips = 3;
constexpr std::uint64_t kNeeded = 5;  // quarters of what the line needs
constexpr double kOlder = 0.95;  // a look counts so much less than the next one: a second at 50 ms

}  // namespace

std::uint64_t TimeNeeded::look(const Look& look) {
  // Where most lanes wait for others, or nothing arrives, this is not what the line carries.
  const bool most_send = 2 * look.sending >= look.used;
  if (most_send && look.arrived_bytes > 0 && look.since_ms <= kLookMsMax) {
    bytes_ = kOlder * bytes_ + static_cast<double>(look.arrived_bytes);
    ms_ = kOlder * ms_ + static_cast<double>(look.since_ms);
  }
  if (look.ends) under_way_bytes_ = look.under_way_bytes;
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
