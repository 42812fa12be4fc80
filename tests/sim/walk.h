// One walk through a simulated world, decided by a seed: its shape, which faults, when, and how
// fast everything is (swarm testing). Phase 1 has faults, phase 2 heals and must come to an end.
#pragma once

#include <cstdint>
#include <string>

#include "planted.h"

namespace pccl::sim {

struct WalkResult {
  std::string violation;  // empty: none
  std::uint64_t steps = 0;
};

/// `liar`: one peer lies. The cores must bear it, the invariants hold among all others
/// (docs/architecture/invariants.md), and these go on once it has gone.
[[nodiscard]] WalkResult walk(std::uint64_t seed, const PlantedBugs& planted, bool trace,
                              bool liar = false);

}  // namespace pccl::sim
