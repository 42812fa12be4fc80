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

namespace pccl {

Schedule ring_all_reduce(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  const std::uint32_t next = around(args.rank, 1, n);
  const std::uint32_t previous = around(args.rank, -1, n);
  const auto chunk = [&](std::int64_t distance) {
    return part_of(args.input_bytes.at(0), args.element_bytes, n, around(args.rank, distance, n));
  };
  Builder b(args);

  // The first send is our own input of our own chunk; each later one is the received chunk, segment
  // by segment as it comes.
  const Part mine = chunk(0);
  Range sends = input(0, mine.offset, mine.bytes);
  Order order;
  for (std::uint32_t s = 0; s + 1 < n; ++s) {
    if (sends.bytes > 0) b.send(next, s, sends, order);
    const Part c = chunk(-static_cast<std::int64_t>(s) - 1);
    sends = output(0, c.offset, c.bytes);
    if (c.bytes == 0) continue;
    order = following(b.recv_reduce(previous, s, input(0, c.offset, c.bytes), sends,
                                    Builder::Place::received_second,
                                    s + 2 == n ? Builder::Last::yes : Builder::Last::no));
  }
  for (std::uint32_t s = 0; s + 1 < n; ++s) {
    const std::uint32_t channel = n - 1 + s;
    if (sends.bytes > 0) b.send(next, channel, sends, order);
    const Part c = chunk(-static_cast<std::int64_t>(s));
    sends = output(0, c.offset, c.bytes);
    if (c.bytes == 0) continue;
    order = following(b.recv(previous, channel, sends));
  }
  return b.take();
}

}  // namespace pccl
