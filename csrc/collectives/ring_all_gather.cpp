// All-gather over a ring: each rank hands on the parts that it has received, segment by segment, so
// that every rank's part passes every link but one. Parts may differ in size, also 0 bytes (sent as
// an empty segment, so that ranks that do not agree on the sizes find out).
//
// The first send leaves from the input: it need not wait for the copy.
// Source: as ring_all_reduce.cpp. Steps: n - 1; each rank sends all parts but the next rank's.
#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {

Schedule ring_all_gather(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  const std::uint32_t next = around(args.rank, 1, n);
  const std::uint32_t previous = before(args.rank, 1, n);
  Builder b(args);

  Range sends = input(0, 0, args.output_bytes[args.rank]);
  Order order;
  b.copy(sends, output(args.rank, 0, sends.bytes));
  for (std::uint32_t s = 0; s + 1 < n; ++s) {
    b.send(next, s, sends, order);
    const std::uint32_t part = before(args.rank, s + 1, n);
    sends = output(part, 0, args.output_bytes[part]);
    order = following(b.recv(previous, s, sends));
  }
  return b.take();
}

}  // namespace pccl
