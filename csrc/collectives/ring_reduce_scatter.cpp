// Reduce-scatter over a ring: the chunk for rank r starts at r + 1 and gathers one contribution at
// each rank until it is at r. Chunks may differ in size, also 0 bytes (sent as an empty segment, so
// that ranks that do not agree on the sizes find out).
//
// Inputs are not written, so partial sums are kept in scratch: two slots of the largest chunk, in
// turn. A slot is taken again when its contents have been sent. Source: as ring_all_reduce.cpp.
// Steps: n - 1; each rank sends S (n - 1) / n.
#include <algorithm>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {

Schedule ring_reduce_scatter(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  const std::uint32_t next = around(args.rank, 1, n);
  const std::uint32_t previous = before(args.rank, 1, n);
  const std::uint64_t slot_bytes =
      *std::max_element(args.input_bytes.begin(), args.input_bytes.end());
  Builder b(args);

  const std::uint32_t first = before(args.rank, 1, n);
  Range sends = input(first, 0, args.input_bytes[first]);
  Order order;
  std::vector<std::uint32_t> sent;  // step of each send, by s
  for (std::uint32_t s = 0; s + 1 < n; ++s) {
    sent.push_back(b.send(next, s, sends, order));
    const std::uint32_t c = before(args.rank, s + 2, n);
    const std::uint64_t bytes = args.input_bytes[c];
    const bool last = s + 2 == n;
    const Range to = last ? output(0, 0, bytes) : scratch((s % 2) * slot_bytes, bytes);
    Order slot_free;
    if (!last && s >= 2) slot_free.after = {sent[s - 1]};  // it has sent the contents of slot s % 2
    order = following(b.recv_reduce(previous, s, input(c, 0, bytes), to,
                                    Builder::Place::received_second, Builder::last_if(last),
                                    slot_free));
    sends = to;
  }
  return b.take(std::min<std::uint64_t>(n - 2, 2) * slot_bytes);
}

}  // namespace pccl
