// All-gather in two levels, where ranks stand at sites: a part crosses once to each other site.
//
// Each rank sends its part to its partners at all other sites (partners.h); within a site the own
// parts and those from far go round as in a ring (ring_all_gather.cpp). Parts may differ in size,
// also 0 bytes (sent as an empty segment, as in a ring). Steps: 1 far, m - 1 near. Sent by each
// rank of k equal sites of m ranks: S (m - 1) / m near, and (k - 1) S / n far.
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/own_site.h"
#include "collectives/partners.h"

namespace pccl {

Schedule two_level_all_gather(const CollectiveArgs& args) {
  const OwnSite own(args);
  const Partners partners(own);
  const auto part = [&](std::uint32_t rank) { return output(rank, 0, args.output_bytes[rank]); };
  const Range mine = input(0, 0, args.output_bytes[args.rank]);
  Builder b(args);
  b.copy(mine, part(args.rank));
  for (std::uint32_t d = 1; d < own.count(); ++d) {
    b.send(partner(own, own.site_after(d)), args.rank, mine);
  }
  std::vector<Order> here(args.size);  // by rank: when its part is here
  for (const std::uint32_t rank : partners.of(own.place)) {
    if (rank == args.rank) continue;
    const std::uint32_t received = b.recv(rank, rank, part(rank));
    b.set_turn(received, 1);
    here[rank] = following(received);
  }
  for (std::uint32_t s = 0; s + 1 < own.size(); ++s) {
    for (const std::uint32_t rank : partners.of(own.place_before(s))) {
      b.send(own.mate(1), rank, rank == args.rank ? mine : part(rank), here[rank]);
    }
    for (const std::uint32_t rank : partners.of(own.place_before(s + 1))) {
      const std::uint32_t received = b.recv(own.mate(-1), rank, part(rank));
      b.set_turn(received, s + 2);
      here[rank] = following(received);
    }
  }
  return b.take();
}

}  // namespace pccl
