// The lines of a peer group, by which its members choose how data go (collectives/cost.h): each
// member says the round trips of its own links, the master has measured rates, and all members take
// the same lines from it. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/lines.h"
#include "base/trips.h"

namespace pccl {

/// Longer trips count as this one.
inline constexpr std::uint32_t kTripUsMax = 1'000'000;

/// Of a link of this process.
struct Trip {
  std::uint64_t us = 0;  // there and back; 0: not known
  bool local = false;
};

/// What `self` says: the longest round trip of its links to the others of `ring`, that of its link
/// to the next one there, whether all of them are local, and who is the first of its machine there.
[[nodiscard]] Trips own_trips(PeerId self, const std::vector<PeerId>& ring,
                              const std::function<Trip(PeerId)>& trip_to);

/// What holds for a group whose members have said these, in the order of the ring, and whose
/// slowest link carries `mbit` a second. One member that says too much changes little: each trip
/// has two ends, so the farthest one is said twice; and the mean of the neighbours' trips counts
/// none as longer than the farthest one. Where the farthest trip is short (below kFarUs), machines
/// are the sites. Elsewhere neighbours are of two sites if an eighth of the farthest trip (kFarUs
/// at least) lies between them; the first of the two says so. A member that lies is at another
/// site or at that of others, adds a border or takes one away, for all alike. The lines are local
/// if all members say so.
[[nodiscard]] Lines lines_of_all(const std::vector<Trips>& said, std::uint32_t mbit);

/// For the log: "2 sites: ranks 0, 1 | 2, 3". `ranks`: in the order of the ring.
[[nodiscard]] std::string sites_text(const Sites& sites, const std::vector<std::uint32_t>& ranks);

}  // namespace pccl
