// Broadcast and reduce along a chain that starts, or ends, at the root: for large buffers, in
// pieces that are handed on one behind the other, so that all links work at once and each carries S
// bytes once.
//
// Ranks are counted from the root; a broadcast goes up, a reduction comes down. Partial sums are
// kept in scratch at ranks that are not the root (their buffers stay unchanged): in a few slots
// that one piece after the other takes; a slot is free again when its piece has been sent. The turn
// of a piece at a rank (Step::turn) is its index and the number of ranks that it has passed.
// Source: Träff, Ripke, "Optimal broadcast for fully connected processor-node networks" (2008),
// section 2 (linear pipeline). Time: (pieces + n - 2) pieces; each rank sends S.
#include <algorithm>

#include "base/limits.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {
namespace {

constexpr std::uint64_t kPieceBytesMin = 2 * kSmallSegmentBytesMax;  // bulk, not on the small lane
constexpr std::uint64_t kPieceBytesMax = kSegmentBytesMax;
constexpr std::uint64_t kPiecesMax = 1024;  // larger buffers: pieces of several segments
constexpr std::uint32_t kSlots = 16;

}  // namespace

std::uint64_t chain_pieces(std::uint64_t bytes, std::uint64_t element_bytes, std::uint32_t size) {
  if (bytes == 0) return 0;
  const std::uint64_t wanted =
      std::clamp(bytes / (std::uint64_t{4} * size), kPieceBytesMin, kPieceBytesMax);
  const std::uint64_t pieces = std::min(divide_up(bytes, wanted), kPiecesMax);
  return std::min(pieces, bytes / element_bytes);
}

Schedule chain_broadcast(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.output_bytes.at(0);
  const std::uint64_t pieces = chain_pieces(bytes, args.element_bytes, args.size);
  const std::uint32_t v = from_root(args);
  Builder b(args);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const Part piece = part_of(bytes, args.element_bytes, pieces, i);
    Range sends = input(0, piece.offset, piece.bytes);
    Order order;
    if (v != 0) {
      sends = output(0, piece.offset, piece.bytes);
      const std::uint32_t received = b.recv(before(args.rank, 1, args.size), i, sends);
      b.set_turn(received, i + v);
      order = following(received);
    }
    if (v + 1 < args.size) b.send(around(args.rank, 1, args.size), i, sends, order);
  }
  if (v == 0) b.copy(input(0, 0, bytes), output(0, 0, bytes));
  return b.take();
}

Schedule chain_reduce(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.input_bytes.at(0);
  const std::uint64_t pieces = chain_pieces(bytes, args.element_bytes, args.size);
  const std::uint32_t v = from_root(args);
  const bool tail = v + 1 == args.size;
  const std::uint64_t slot_bytes =
      pieces == 0 ? 0 : part_of(bytes, args.element_bytes, pieces, 0).bytes;
  Builder b(args);
  std::vector<std::uint32_t> sent;
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const Part piece = part_of(bytes, args.element_bytes, pieces, i);
    Range sum = input(0, piece.offset, piece.bytes);
    Order order;
    if (!tail) {
      const Range own = sum;
      sum = v == 0 ? output(0, piece.offset, piece.bytes)
                   : scratch((i % kSlots) * slot_bytes, piece.bytes);
      Order slot_free;
      if (v != 0 && i >= kSlots) slot_free.after = {sent[i - kSlots]};
      const std::uint32_t reduced =
          b.recv_reduce(around(args.rank, 1, args.size), i, own, sum,
                        Builder::Place::received_second, Builder::last_if(v == 0), slot_free);
      b.set_turn(reduced, i + args.size - 1 - v);
      order = following(reduced);
    }
    if (v != 0) sent.push_back(b.send(before(args.rank, 1, args.size), i, sum, order));
  }
  const bool middle = v != 0 && !tail;
  return b.take(middle ? std::min<std::uint64_t>(pieces, kSlots) * slot_bytes : 0);
}

}  // namespace pccl
