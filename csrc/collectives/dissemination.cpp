// Barrier by dissemination: in round k every rank tells the rank 2^k after it that it has come, and
// so have all ranks of which it has heard. No rank leaves before it has heard of all. Messages are
// empty.
//
// A message of round k speaks for all messages that arrived in the rounds before, so it waits for
// these. Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988).
// Steps: ceil(log2 n), 0 bytes.
#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {

Schedule dissemination_barrier(const CollectiveArgs& args) {
  const Range nothing = scratch(0, 0);  // a barrier has no buffers
  Builder b(args);
  std::vector<std::uint32_t> heard;
  std::uint32_t round = 0;
  for (std::uint64_t distance = 1; distance < args.size; distance *= 2, ++round) {
    const std::uint32_t to = around(args.rank, static_cast<std::int64_t>(distance), args.size);
    b.send(to, round, nothing, {heard, -1});
    heard.push_back(b.recv(before(args.rank, distance, args.size), round, nothing));
  }
  return b.take();
}

}  // namespace pccl
