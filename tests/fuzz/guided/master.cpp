// A walk of the cores' simulator in which one member lies: the input draws what happens and what
// the liar says to the masters. Masters and sound members break at nothing, and when the faults are
// over and the liar is gone, no sound member waits for ever.
#include <cstdlib>

#include "../random/base/random.h"
#include "input.h"
#include "walk.h"

namespace pccl::fuzz {

void master(std::span<const std::byte> input) {
  Input in(input);
  const std::uint64_t seed = in.number<std::uint16_t>();
  drawn = {seed * 0x2545F4914F6CDD1DULL + 1, in.rest()};  // as walk.cpp begins its generator
  const bool trace = std::getenv("PCCL_FUZZ_TRACE") != nullptr;
  const auto walked = sim::walk(seed, PlantedBugs{}, trace, true);
  drawn = {};
  require_none(walked.violation);
}

}  // namespace pccl::fuzz
