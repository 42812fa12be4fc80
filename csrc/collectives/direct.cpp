// Gather, scatter, small all-gathers and reduce-scatters, middle all-reduces, and over long lines
// barriers and small broadcasts and reductions: each rank sends straight to the receivers of its
// parts, in one step (all-reduce: two).
//
// Parts may differ in size; one of 0 bytes is sent as an empty segment, since its receiver or
// sender may not know that there is nothing. A reduction takes the contributions in a fixed order,
// its own first, then those of the ranks after it, so that a result does not depend on timing.
// Steps: 1. Sent: all parts but the own one (gather: one part, except by the root).
//
// The all-reduce is a reduce-scatter and an all-gather of n parts. In place a part is overwritten
// by its sum, segment by segment; a segment of the sum arrives only after this rank has sent its
// own values of that segment. Steps: 2. Sent: 2 S (n - 1) / n.
#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {
namespace {

/// sum = own + the contributions of all other ranks, in the order in which they follow this one.
Order add_all(Builder& b, const CollectiveArgs& args, Range own, Range sum) {
  const std::uint32_t n = args.size;
  Order order;
  for (std::uint32_t d = 1; d < n; ++d) {
    order = following(b.recv_reduce(around(args.rank, d, n), 0, own, sum,
                                    Builder::Place::received_second, Builder::last_if(d + 1 == n),
                                    order));
    own = sum;
  }
  return order;
}

}  // namespace

Schedule direct_reduce_scatter(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  const std::uint64_t bytes = args.input_bytes[args.rank];
  Builder b(args);
  // Sends first to the rank before this one, which needs this rank's part first.
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = before(args.rank, d, n);
    b.send(peer, 0, input(peer, 0, args.input_bytes[peer]));
  }
  add_all(b, args, input(args.rank, 0, bytes), output(0, 0, bytes));
  return b.take();
}

Schedule direct_all_reduce(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  const auto part = [&](std::uint32_t rank) {
    return part_of(args.input_bytes.at(0), args.element_bytes, n, rank);
  };
  Builder b(args);
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = before(args.rank, d, n);
    if (const Part theirs = part(peer); theirs.bytes > 0) b.send(peer, 0, input(theirs));
  }
  if (const Part mine = part(args.rank); mine.bytes > 0) {
    const Order added = add_all(b, args, input(mine), output(mine));
    for (std::uint32_t d = 1; d < n; ++d) b.send(around(args.rank, d, n), 1, output(mine), added);
  }
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = before(args.rank, d, n);
    if (const Part theirs = part(peer); theirs.bytes > 0) b.recv(peer, 1, output(theirs));
  }
  return b.take();
}

Schedule direct_all_gather(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  const Range own = input(0, 0, args.output_bytes[args.rank]);
  Builder b(args);
  for (std::uint32_t d = 1; d < n; ++d) b.send(around(args.rank, d, n), 0, own);
  for (std::uint32_t d = 1; d < n; ++d) {
    const std::uint32_t peer = before(args.rank, d, n);
    b.recv(peer, 0, output(peer, 0, args.output_bytes[peer]));
  }
  b.copy(own, output(args.rank, 0, own.bytes));
  return b.take();
}

Schedule direct_broadcast(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.output_bytes.at(0);
  Builder b(args);
  if (bytes == 0) return b.take();
  if (args.rank != args.root) {
    b.recv(args.root, 0, output(0, 0, bytes));
    return b.take();
  }
  for (std::uint32_t d = 1; d < args.size; ++d) {
    b.send(around(args.rank, d, args.size), 0, input(0, 0, bytes));
  }
  b.copy(input(0, 0, bytes), output(0, 0, bytes));
  return b.take();
}

Schedule direct_reduce(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.input_bytes.at(0);
  const Range own = input(0, 0, bytes);
  Builder b(args);
  if (bytes == 0) return b.take();
  if (args.rank != args.root) {
    b.send(args.root, 0, own);
  } else {
    add_all(b, args, own, output(0, 0, bytes));
  }
  return b.take();
}

Schedule direct_barrier(const CollectiveArgs& args) {
  const Range nothing = scratch(0, 0);
  Builder b(args);
  for (std::uint32_t d = 1; d < args.size; ++d) {
    b.send(around(args.rank, d, args.size), 0, nothing);
  }
  for (std::uint32_t d = 1; d < args.size; ++d) {
    b.recv(before(args.rank, d, args.size), 0, nothing);
  }
  return b.take();
}

Schedule direct_gather(const CollectiveArgs& args) {
  const Range own = input(0, 0, args.input_bytes.at(0));
  Builder b(args);
  if (args.rank != args.root) {
    b.send(args.root, 0, own);
    return b.take();
  }
  for (std::uint32_t d = 1; d < args.size; ++d) {
    const std::uint32_t peer = around(args.rank, d, args.size);
    b.recv(peer, 0, output(peer, 0, args.output_bytes[peer]));
  }
  b.copy(own, output(args.rank, 0, own.bytes));
  return b.take();
}

Schedule direct_scatter(const CollectiveArgs& args) {
  const Range own = output(0, 0, args.output_bytes.at(0));
  Builder b(args);
  if (args.rank != args.root) {
    b.recv(args.root, 0, own);
    return b.take();
  }
  for (std::uint32_t d = 1; d < args.size; ++d) {
    const std::uint32_t peer = around(args.rank, d, args.size);
    b.send(peer, 0, input(peer, 0, args.input_bytes[peer]));
  }
  b.copy(input(args.rank, 0, own.bytes), own);
  return b.take();
}

}  // namespace pccl
