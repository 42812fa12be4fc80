// A walk of the engines' simulator in which one member lies: the input draws its lies to the master
// and to the other members (tests/sim/engine/liar.h). Nothing breaks at a master or at a member,
// sound members keep their promises (tests/sim/engine/book.h), and each wait ends.
#include <cstdlib>

#include "../random/base/random.h"
#include "input.h"
#include "liar.h"
#include "walk.h"

namespace pccl::fuzz {

void engine(std::span<const std::byte> input) {
  Input in(input);
  const std::uint64_t seed = in.number<std::uint16_t>();
  drawn = {sim::Liar::lies_from(seed), in.rest()};
  sim::Wishes wishes;
  wishes.trace = std::getenv("PCCL_FUZZ_TRACE") != nullptr;
  wishes.liars = true;
  const auto walked = sim::walk_engines(seed, wishes);
  drawn = {};
  require_none(walked.violation);
}

}  // namespace pccl::fuzz
