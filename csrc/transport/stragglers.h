// Which lanes of a link hold an operation up: their slices go over other lanes as well. Connections
// of one line differ. One that has lost the same packet several times waits for seconds; one whose
// way has gone (a middlebox has forgotten it) waits until its time-out; and where only the last
// slices are still to come, the slowest connection is waited for. Pure: a function of what was
// seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pccl {

/// A lane that can carry slices.
struct LaneProgress {
  bool used = false;           // takes slices
  bool drained = true;         // all that it has taken has arrived
  bool held = false;           // waits under the rate of the process
  std::uint64_t stuck_ms = 0;  // for so long others have moved, and nothing of it has arrived
};

/// What holds for all lanes of the link.
struct LinkProgress {
  std::uint64_t trip_us = 0;           // the mean round trip of now
  std::uint64_t nothing_waits_ms = 0;  // for so long no slice has waited for a lane; 0: some do
  std::uint64_t needs_ms = 0;          // TimeNeeded
};

/// How long a link needs for what is under way when the last slices have been taken: at the rate at
/// which bytes have lately arrived while no lane waited for others.
class TimeNeeded {
 public:
  static constexpr std::uint64_t kLookMsMax = 100;  // a longer one counts what came before it
  static constexpr std::uint64_t kNeedsMsMax = 8000;
  struct Look {
    std::uint64_t since_ms = 0;         // the last look
    std::uint64_t arrived_bytes = 0;    // since then
    std::uint64_t under_way_bytes = 0;  // taken by lanes, and not arrived
    bool waits = false;                 // a slice waits for a lane
    bool ends = false;                  // since the last look none waits any more
    std::size_t used = 0;               // lanes that take slices
    std::size_t sending = 0;            // those of them that have something
  };
  /// Returns milliseconds, counted from the last look that `ends`.
  std::uint64_t look(const Look& look);

 private:
  double bytes_ = 0;  // the older they are the less they count
  double ms_ = 0;
  std::uint64_t empty_ms_ = 0;         // since something has arrived
  std::uint64_t under_way_bytes_ = 0;  // when the last slice was taken
  std::size_t at_the_end_ = 0;         // lanes that had something then
};

/// Places in `lanes`.
[[nodiscard]] std::vector<std::size_t> stragglers(std::span<const LaneProgress> lanes,
                                                  const LinkProgress& link);

}  // namespace pccl
