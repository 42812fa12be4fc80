// All-gather of ranks that read each other's memory (transport/area.h): of one machine, of parts of
// one size.
//
// Each rank copies its own part into its area once, and all others copy it from there.
//
// A segment is published when those of all others that come kAreaDepth before it have been read. So
// a segment of another rank says that its sender has read what this rank had published so many
// segments before, and the slot of the segment 2 kAreaDepth before is free. After the last segments
// nothing follows: there each rank sends an empty one.
//
// Without an area the same segments carry their bytes.
//
// Steps: 1. Published: S / n. Memory moved, in units of S / n: 2 to publish, 2 (n - 1) to take,
// where a ring moves 4 (n - 1).
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/areas.h"
#include "collectives/builder.h"

namespace pccl {

Schedule area_all_gather(const CollectiveArgs& args, std::uint64_t segment_bytes) {
  const std::uint32_t n = args.size;
  const std::uint64_t bytes = args.output_bytes.at(args.rank);
  const Range published{Space::area, 0, 0, bytes};
  Builder b(args);

  const std::uint32_t copied = b.add_copy(input(0, 0, bytes), published);
  for (std::uint32_t d = 1; d < n; ++d) {
    b.send(before(args.rank, d, n), 0, published, following(copied));
  }
  b.copy(input(0, 0, bytes), output(args.rank, 0, bytes));
  std::vector<std::uint32_t> taken;
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = around(args.rank, d, n);
    taken.push_back(b.recv(peer, 0, output(peer, 0, bytes)));
    b.set_turn(taken.back(), 1, 1);
    b.lag(copied, taken.back(), kAreaDepth);
  }
  tell_all_read(b, args, 1, taken, last_turn(bytes, segment_bytes));
  return in_areas(b.take(), 1, 2 * kAreaDepth, segment_bytes);
}

}  // namespace pccl
