// All-reduce by one exchange: each rank sends all that it has to each other rank, and each reduces
// everything. For little data over long lines, where one step is half of a round trip.
//
// Every rank evaluates the same expression, in the order of the ranks. From rank 2 on, what comes
// before the own operand is reduced in scratch, since in place the own operand lies where the
// result will. The output is written only after the own operand has been sent. Steps: 1; each rank
// sends (n - 1) S, and keeps as much. Two ranks send as little as by any other way, S, so theirs
// may be large, and is cut into pieces: a rank keeps what comes before it has sent the same piece.
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/cost.h"

namespace pccl {
namespace {

Schedule exchange_of_two(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.input_bytes.at(0);
  const std::uint64_t pieces = divide_up(bytes, segment_bytes_of(bytes, args.lines));
  const std::uint32_t other = 1 - args.rank;
  const auto place = args.rank == 0
                         ? Builder::Place::received_second  // rank 0 is the first operand
                         : Builder::Place::received_first;
  Builder b(args);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const Part piece = part_of(bytes, args.element_bytes, pieces, i);
    const Range in = input(0, piece.offset, piece.bytes);
    const std::uint32_t sent = b.send(other, i, in);
    const std::uint32_t received = b.recv_reduce(other, i, in, output(0, piece.offset, piece.bytes),
                                                 place, Builder::Last::yes, {{sent}, -1});
    b.set_turn(received, 1);  // no send waits for anything
  }
  return b.take();
}

}  // namespace

Schedule exchange_all_reduce(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  if (n == 2) return exchange_of_two(args);
  const std::uint64_t bytes = args.input_bytes.at(0);
  const Range in = input(0, 0, bytes);
  const Range out = output(0, 0, bytes);
  const auto last = [&](std::uint32_t rank) { return Builder::last_if(rank + 1 == n); };
  Builder b(args);
  std::vector<std::uint32_t> written;  // steps after which the output may be written
  for (std::uint32_t d = 1; d < n; ++d) written.push_back(b.send(around(args.rank, d, n), 0, in));

  Order order{written, -1};
  if (args.rank == 1) {
    order = following(
        b.recv_reduce(0, 0, in, out, Builder::Place::received_first, last(args.rank), order));
  } else if (args.rank > 1) {
    const Range before = scratch(0, bytes);
    Order received = following(b.recv(0, 0, before));
    for (std::uint32_t rank = 1; rank < args.rank; ++rank) {
      received = following(b.recv_reduce(rank, 0, before, before, Builder::Place::received_second,
                                         Builder::Last::no, received));
    }
    written.push_back(b.add_copy(in, out));
    order = following(b.reduce(before, out, last(args.rank), {written, received.follows}));
  }
  for (std::uint32_t rank = args.rank + 1; rank < n; ++rank) {
    const Range sum = rank == 1 ? in : out;  // rank 0 begins with its own operand
    order = following(
        b.recv_reduce(rank, 0, sum, out, Builder::Place::received_second, last(rank), order));
  }
  return b.take(args.rank > 1 ? bytes : 0);
}

}  // namespace pccl
