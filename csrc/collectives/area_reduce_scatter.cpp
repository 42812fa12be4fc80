// Reduce-scatter of ranks that read each other's memory (transport/area.h): of one machine, of
// parts of one size.
//
// Each rank copies what it has of every other rank's part into its own area, and each adds up its
// part at one go: its own values first, then those of the ranks after it, where they lie.
//
// A segment for other ranks is published when the one kAreaDepth before it is added up here. For
// that those of all others had to come, each of which says that its sender has added what this rank
// had published kAreaDepth before it. So the slot of the segment 2 kAreaDepth before is free. After
// the last segments nothing follows: there each rank sends an empty one.
//
// Without an area the same segments carry their bytes.
//
// Steps: 1. Published: S (n - 1) / n. Memory moved, in units of S / n: 2 (n - 1) to publish, n + 1
// to add, where a ring moves 5 (n - 1).
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/areas.h"
#include "collectives/builder.h"

namespace pccl {

Schedule area_reduce_scatter(const CollectiveArgs& args, std::uint64_t segment_bytes) {
  const std::uint32_t n = args.size;
  const std::uint64_t bytes = args.input_bytes.at(args.rank);
  Builder b(args);

  // Row d - 1 holds what goes to the rank d places before this one, which needs it first where d is
  // 1.
  std::vector<std::uint32_t> copied;
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = before(args.rank, d, n);
    const Range published{Space::area, d - 1, 0, bytes};
    copied.push_back(b.add_copy(input(peer, 0, bytes), published));
    b.send(peer, 0, published, following(copied.back()));
  }
  std::vector<std::uint32_t> borrowed;
  for (std::uint32_t d = 1; d < n; ++d) {
    borrowed.push_back(b.borrow(around(args.rank, d, n), 0, bytes));
    b.set_turn(borrowed.back(), 1, 1);
  }
  const std::uint32_t added =
      b.add_borrowed(input(args.rank, 0, bytes), output(0, 0, bytes), borrowed);
  for (const std::uint32_t copy : copied) b.lag(copy, added, kAreaDepth);
  tell_all_read(b, args, 1, {added}, last_turn(bytes, segment_bytes));
  return in_areas(b.take(), n - 1, 2 * kAreaDepth, segment_bytes);
}

}  // namespace pccl
