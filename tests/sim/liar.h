// A member that lies: what it tells a master is changed at random, within what the wire takes. The
// master must go on whatever it hears, and so must the members that do not lie once it has gone.
#pragma once

#include <vector>

#include "base/random.h"
#include "wire/messages.h"

namespace pccl::sim {

/// What the liar knows and may use.
struct Known {
  EpochId epoch;  // the newest that it has heard of
  OpKey next;
  std::vector<PeerId> peers;
};

/// `said`, or something else of the same kind.
[[nodiscard]] PeerToMaster spoiled(PeerToMaster said, const Known& known, Random& random);
/// Something that nobody has asked for.
[[nodiscard]] PeerToMaster invented(const Known& known, Random& random);

}  // namespace pccl::sim
