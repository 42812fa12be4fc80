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

}  // namespace

std::vector<std::size_t> stragglers(std::span<const LaneProgress> lanes, std::uint64_t now_ms,
                                    std::uint64_t trip_us, std::uint64_t nothing_waits_since_ms) {
  const auto drained = static_cast<std::size_t>(std::count_if(
      lanes.begin(), lanes.end(), [](const LaneProgress& lane) { return lane.drained; }));
  const std::uint64_t late_ms = std::max(kLateMs, kLateTrips * trip_us / 1000);
  const bool at_the_end = nothing_waits_since_ms > 0 && 2 * drained >= lanes.size() &&
                          now_ms - nothing_waits_since_ms >= late_ms;
  const std::uint64_t stuck_ms = std::max(kStuckMs, kStuckTrips * trip_us / 1000);
  const bool others_go = std::any_of(lanes.begin(), lanes.end(), [&](const LaneProgress& lane) {
    return lane.drained || now_ms - lane.moved_at_ms < stuck_ms / 2;
  });
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].drained) continue;
    const bool stuck = others_go && now_ms - lanes[i].moved_at_ms >= stuck_ms;
    if (stuck || at_the_end) places.push_back(i);
  }
  return places;
}

}  // namespace pccl
