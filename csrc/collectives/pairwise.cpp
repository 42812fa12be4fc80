// All-to-all by pairwise exchange: in step d a rank sends to the d-th after it and receives from
// the d-th before it, so that at any time every rank is the target of one.
//
// Steps do not wait for each other: all parts lie in the caller's memory, so all may be under way.
// A part of 0 bytes is sent as an empty segment, so that two ranks that disagree about its size
// find out. Source: Thakur, Rabenseifner, Gropp (2005), section 4.4. Steps: n - 1, each part sent
// once.
#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {

Schedule pairwise_all_to_all(const CollectiveArgs& args) {
  Builder b(args);
  b.copy(input(args.rank, 0, args.input_bytes[args.rank]),
         output(args.rank, 0, args.output_bytes[args.rank]));
  for (std::uint32_t d = 1; d < args.size; ++d) {
    const std::uint32_t to = around(args.rank, d, args.size);
    const std::uint32_t from = before(args.rank, d, args.size);
    b.send(to, 0, input(to, 0, args.input_bytes[to]));
    b.recv(from, 0, output(from, 0, args.output_bytes[from]));
  }
  return b.take();
}

}  // namespace pccl
