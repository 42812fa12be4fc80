// All-reduce by recursive doubling: for small buffers, where latency is all that counts. Partners
// at distance 1, 2, 4 … exchange what they have and reduce it.
//
// Where n is not a power of two, n - p extra ranks (p: the largest one below) fold their input into
// a neighbour first and get the result from it last. Every rank evaluates the same tree: the
// operand of the lower ranks is the first one at all of them. So even min(+0, -0) comes out as the
// same bits everywhere. Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective
// Communication Operations in MPICH" (2005), section 4.5. Steps: log2(p), and 2 for the extra
// ranks; each sends S.
#include <bit>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {

Schedule recursive_doubling_all_reduce(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.input_bytes.at(0);
  const std::uint32_t p = std::bit_floor(args.size);
  const std::uint32_t extra = args.size - p;
  const auto rounds = static_cast<std::uint32_t>(std::bit_width(p) - 1);
  const std::uint32_t fold_in = 0;  // channels: fold in, one per round, fold out
  const std::uint32_t fold_out = rounds + 1;
  const Range in = input(0, 0, bytes);
  const Range out = output(0, 0, bytes);
  Builder b(args);

  const bool paired = args.rank < 2 * extra;
  if (paired && args.rank % 2 == 1) {
    const std::uint32_t sent = b.send(args.rank - 1, fold_in, in);
    b.recv(args.rank - 1, fold_out, out, {{sent}, -1});
    return b.take();
  }

  Range own = in;
  std::vector<std::uint32_t> reduced;  // the step that made `own`
  if (paired) {
    reduced = {b.recv_reduce(args.rank + 1, fold_in, own, out, Builder::Place::received_second,
                             Builder::Last::no)};
    own = out;
  }
  const std::uint32_t place = paired ? args.rank / 2 : args.rank - extra;
  for (std::uint32_t k = 0; k < rounds; ++k) {
    const std::uint32_t partner_place = place ^ (1U << k);
    const std::uint32_t partner = partner_place < extra ? 2 * partner_place : partner_place + extra;
    const std::uint32_t sent = b.send(partner, 1 + k, own, {reduced, -1});
    // The accumulator is overwritten, so it must have been sent (and so was complete).
    reduced = {b.recv_reduce(
        partner, 1 + k, own, out,
        place < partner_place ? Builder::Place::received_second : Builder::Place::received_first,
        Builder::last_if(k + 1 == rounds), {{sent}, -1})};
    own = out;
  }
  if (paired) b.send(args.rank + 1, fold_out, out, {reduced, -1});
  return b.take();
}

}  // namespace pccl
