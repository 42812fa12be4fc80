// Which lanes of a link hold an operation up: their slices go over other lanes as well. Connections
// of one line differ. One that has lost the same packet twice waits for seconds; one whose way has
// gone (a middlebox has forgotten it) waits until its time-out; and where only the last slices are
// still to come, the slowest connection is waited for. Pure: a function of what was seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pccl {

/// A lane that carries slices.
struct LaneProgress {
  bool drained = false;           // all that it has taken has arrived
  std::uint64_t moved_at_ms = 0;  // when something of it was last seen to arrive, or it was drained
};

/// Places in `lanes`. `trip_us`: the mean round trip of now. `nothing_waits_since_ms`: since when
/// no slice waits for a lane; 0: some do.
[[nodiscard]] std::vector<std::size_t> stragglers(std::span<const LaneProgress> lanes,
                                                  std::uint64_t now_ms, std::uint64_t trip_us,
                                                  std::uint64_t nothing_waits_since_ms);

}  // namespace pccl
