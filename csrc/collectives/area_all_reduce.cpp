// All-reduce of ranks that read each other's memory (transport/area.h): of one machine.
//
// Rank j adds up the j-th part. In each of its segments every other rank copies its values into its
// own area, and rank j adds its own and all of those at one go, where they lie, into its area; all
// others copy the sum from there. So a sum is written once for all readers, and no partial sum is
// written at all. A result takes the contributions in a fixed order: the rank's own first, then
// those of the ranks after it.
//
// At most kAreaDepth segments of each part are under way. A slot is free when the data that follow
// say so: once the sum of rank j is here, j has added what this rank had published; and rank j
// sends its values of a later segment only when it has copied this rank's sum. After the last sums
// nothing follows: there each rank sends an empty segment.
//
// Without an area the same segments carry their bytes, and the algorithm is the direct one with a
// copy more.
//
// Steps: 2. Published: S (n - 1) / n + S / n. Memory moved, in units of S / n: 2 (n - 1) to
// publish, n + 1 to add, 2 to keep, 2 (n - 1) to take the sums, where a ring moves about 9 (n - 1).
#include "collectives/algorithms.h"
#include "collectives/areas.h"
#include "collectives/builder.h"

namespace pccl {

Schedule area_all_reduce(const CollectiveArgs& args, std::uint64_t segment_bytes) {
  const std::uint32_t n = args.size;
  const auto part = [&](std::uint32_t rank) {
    return part_of(args.input_bytes.at(0), args.element_bytes, n, rank);
  };
  const auto in_area = [](std::uint32_t row, Part of) {
    return Range{Space::area, row, 0, of.bytes};
  };
  const Part mine = part(args.rank);
  Builder b(args);

  // The slots of row 0 hold sums, those of row d what goes to the rank d places before this one,
  // which needs it first where d is 1.
  struct Published {
    std::uint32_t copied = 0;
    std::uint32_t sent = 0;
  };
  std::vector<Published> published(n);
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = before(args.rank, d, n);
    const Part theirs = part(peer);
    if (theirs.bytes == 0) continue;
    published[d].copied = b.add_copy(input(theirs), in_area(d, theirs));
    published[d].sent = b.send(peer, 0, in_area(d, theirs), following(published[d].copied));
    b.lag(published[d].copied, published[d].sent, kAreaDepth);
  }

  std::vector<std::uint32_t> last;
  if (mine.bytes > 0) {
    std::vector<std::uint32_t> borrowed;
    for (std::uint32_t d = 1; d < n; ++d) {
      borrowed.push_back(b.borrow(around(args.rank, d, n), 0, mine.bytes));
      b.set_turn(borrowed.back(), 1, 2);
    }
    const Range sum = in_area(0, mine);
    const std::uint32_t added = b.add_borrowed(input(mine), sum, std::move(borrowed));
    const std::uint32_t kept = b.add_copy(sum, output(mine), following(added));
    b.lag(added, kept, kAreaDepth);
    for (std::uint32_t d = 1; d < n; ++d) {
      b.lag(added, b.send(around(args.rank, d, n), 1, sum, following(added)), kAreaDepth);
    }
  }
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = before(args.rank, d, n);
    const Part theirs = part(peer);
    if (theirs.bytes == 0) continue;
    last.push_back(b.recv(peer, 1, output(theirs), following(published[d].copied)));
    b.set_turn(last.back(), 2, 2);
    b.lag(published[d].copied, last.back(), kAreaDepth);
  }

  tell_all_read(b, args, 2, last, 2 * divide_up(part(0).bytes, segment_bytes) + 1);
  return in_areas(b.take(), n, kAreaDepth, segment_bytes);
}

}  // namespace pccl
