// Broadcast and reduce over a binomial tree: for buffers that are too small to be worth a chain.
//
// Ranks are counted from the root. The parent of v is v without its lowest set bit; its children
// are v + 1, v + 2, v + 4 … up to that bit. The largest subtree is served first by a broadcast, and
// reduced last. A reduction takes its children in this fixed order, so that a result does not
// depend on timing; partial sums of ranks that are not the root are kept in scratch, their buffers
// stay unchanged. A broadcast reaches v over as many ranks as v has bits: its turn there. A
// reduction's turn is one more than the levels below the child. Source: Thakur, Rabenseifner, Gropp
// (2005), sections 4.3 and 4.6. Steps: ceil(log2 n), S bytes each.
#include <bit>

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {
namespace {

/// Number of possible children of the rank that is `v` away from the root: bits below its lowest
/// one.
std::uint32_t levels(std::uint32_t v, std::uint32_t size) {
  return static_cast<std::uint32_t>(v == 0 ? std::bit_width(size - 1) : std::countr_zero(v));
}

}  // namespace

Schedule tree_broadcast(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.output_bytes.at(0);
  const std::uint32_t v = from_root(args);
  Builder b(args);
  if (bytes == 0) return b.take();

  Range sends = input(0, 0, bytes);
  Order order;
  if (v != 0) {
    const std::uint32_t parent = around(args.root, v & (v - 1), args.size);
    sends = output(0, 0, bytes);
    const std::uint32_t received = b.recv(parent, 0, sends);
    b.set_turn(received, static_cast<std::uint32_t>(std::popcount(v)));
    order = following(received);
  }
  for (std::uint32_t j = levels(v, args.size); j-- > 0;) {
    const std::uint64_t child = v + (1ULL << j);
    if (child >= args.size) continue;
    b.send(around(args.root, static_cast<std::int64_t>(child), args.size), 0, sends, order);
  }
  if (v == 0) b.copy(sends, output(0, 0, bytes));
  return b.take();
}

Schedule tree_reduce(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.input_bytes.at(0);
  const std::uint32_t v = from_root(args);
  Builder b(args);
  if (bytes == 0) return b.take();

  const Range sum = v == 0 ? output(0, 0, bytes) : scratch(0, bytes);
  std::vector<std::uint32_t> children;  // smallest subtree first: the i-th has i levels below it
  for (std::uint32_t j = 0; j < levels(v, args.size); ++j) {
    const std::uint64_t child = v + (1ULL << j);
    if (child < args.size) {
      children.push_back(around(args.root, static_cast<std::int64_t>(child), args.size));
    }
  }
  Range own = input(0, 0, bytes);
  Order order;
  for (std::uint32_t i = 0; i < children.size(); ++i) {
    const bool last = v == 0 && i + 1 == children.size();
    const std::uint32_t reduced = b.recv_reduce(
        children[i], 0, own, sum, Builder::Place::received_second, Builder::last_if(last), order);
    b.set_turn(reduced, i + 1);
    order = following(reduced);
    own = sum;
  }
  if (v != 0) b.send(around(args.root, v & (v - 1), args.size), 0, own, order);
  return b.take(v != 0 && !children.empty() ? bytes : 0);
}

}  // namespace pccl
