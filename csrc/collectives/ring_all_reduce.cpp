// All-reduce over a ring: a reduce-scatter, then an all-gather, over n chunks of whole elements.
// Every link carries the same bytes, which is optimal for large buffers.
//
// Nothing is in `after`: a chunk is overwritten (first by its own partial sum, then by the result)
// only by data made from what this rank has sent of it, so it has been sent, segment by segment.
// That holds in place and out of place: partial sums are kept in the output. A chunk is finished at
// one rank and then copied, hence the same bits everywhere. Source: Patarasuk, Yuan, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations" (2009). Steps: 2 (n - 1); each rank
// sends 2 S (n - 1) / n.
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/ring.h"

namespace pccl {

Schedule ring_all_reduce(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  RingOfParts ring;
  ring.next = around(args.rank, 1, n);
  ring.previous = before(args.rank, 1, n);
  for (std::uint32_t i = 0; i < n; ++i) {
    ring.parts.push_back(part_of(args.input_bytes.at(0), args.element_bytes, n, i));
  }
  ring.own = ring.next;  // so that the first part that a rank sends is that of its number
  Builder b(args);
  const auto summed = reduce_half(b, ring, {0, 1}, Builder::Last::yes);
  gather_half(b, ring, {n - 1, n}, summed ? following(*summed) : Order{});
  return b.take();
}

}  // namespace pccl
