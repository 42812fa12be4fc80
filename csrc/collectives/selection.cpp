// Which algorithm runs a collective: decided from kind, number of contributors, bytes and lines
// (round trips, rates, sites), and only from those that all ranks know, so that all decide alike.
// Another choice is another protocol version: ranks that choose differently add the wrong values to
// each other. If sizes may differ and only the two ends know them (gather, scatter, all_to_all),
// there is no choice.
//
// Over long lines cost.h decides. Elsewhere limits do: on one host and on a LAN recursive doubling
// wins to 32 KiB, the direct way to 256 KiB, the ring above (measured on one host with 2 to 8
// ranks); the limits grow with n, since a ring pays n - 1 latencies one by one. On one machine
// large tensors go through areas. Machines with several ranks exchange large ones in two levels:
// of two of them each sends half of what it sends in a ring, and from all its ranks. Two ranks
// exchange up to 1 MiB: one step in place of two, for as many bytes. A chain beats a tree when
// (pieces + n - 2) pieces pass faster than ceil(log2 n) whole buffers.
#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/limits.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/cost.h"
#include "collectives/schedule.h"

namespace pccl {
namespace {

constexpr std::uint64_t kChainBytesMin = 512U << 10;
constexpr std::uint32_t kDirectBarrierMax = 64;  // ranks: more messages take longer than steps

std::uint64_t sum_of(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

bool far(const CollectiveArgs& args) { return args.lines.farthest_us >= kFarUs; }

bool is_middle(std::uint64_t bytes, const CollectiveArgs& args) {
  return bytes <= std::max<std::uint64_t>(kDirectBytesMax, args.size * kDirectBytesMaxPerRank);
}

/// What takes two steps on a short line takes no more on a longer one, unless its rate is known.
bool direct(std::uint64_t bytes, const CollectiveArgs& args) {
  const bool measured = far(args) && args.lines.mbit_per_s > 0;
  if (!measured && is_middle(bytes, args)) return true;
  return far(args) && direct_beats_ring(bytes, args.size, args.lines);
}

/// `parts`: bytes by rank. Between machines of a LAN no more may cross than in a ring, as it would
/// where one machine has most of them.
bool two_levels(const std::vector<std::uint64_t>& parts, const CollectiveArgs& args) {
  const std::uint64_t bytes = sum_of(parts);
  if (args.lines.sites.empty() || is_middle(bytes, args)) return false;
  if (far(args)) return two_levels_gather_first(parts, args.lines);
  return crossing_bytes(parts, args.lines.sites) <= bytes - bytes / args.size;
}

bool direct_rooted(std::uint64_t bytes, const CollectiveArgs& args) {
  return far(args) && direct_beats_tree(bytes, args.size, args.lines);
}

bool through_areas(std::uint64_t bytes, const CollectiveArgs& args) {
  return args.lines.local && args.size >= kAreaRanksMin && args.size <= kAreaRanksMax &&
         bytes >= args.size * kAreaBytesMinPerRank;
}

/// As many as go through areas at once.
bool scatters_fit(const CollectiveArgs& args) {
  return kThroughAreasMax * (args.size - 1) * 2 * kAreaDepth <= kAreaSlots;
}

/// Of what comes out of order for a direct reduce.
bool root_keeps_little(const CollectiveArgs& args) {
  return args.input_bytes[0] <= kMeasuredExchangedBytesMax / (args.size - 1);
}

bool chain(std::uint64_t bytes, const CollectiveArgs& args) {
  if (bytes < kChainBytesMin) return false;
  const std::uint64_t pieces = chain_pieces(bytes, args.element_bytes, args.size);
  const auto tree_steps = static_cast<std::uint64_t>(std::bit_width(args.size - 1));
  return pieces + args.size - 2 < tree_steps * pieces;
}

/// Sizes must fit the kind: the caller of this function has checked the user's arguments.
void check_arguments(const CollectiveArgs& a) {
  PCCL_ASSERT(a.rank < a.size, a.rank, a.size);
  PCCL_ASSERT(a.root < a.size, a.root, a.size);
  PCCL_ASSERT(a.element_bytes > 0);
  const Sites& sites = a.lines.sites;
  PCCL_ASSERT(sites == numbered_sites(sites), sites.size());
  PCCL_ASSERT(sites.empty() || sites.size() == a.size, sites.size(), a.size);
  const bool at_root = a.rank == a.root;
  std::size_t inputs = 1;
  std::size_t outputs = 1;
  switch (a.kind) {
    case OpKind::all_reduce:
      break;
    case OpKind::reduce:
      outputs = at_root ? 1 : 0;
      break;
    case OpKind::broadcast:
      inputs = at_root ? 1 : 0;
      break;
    case OpKind::all_gather:
      outputs = a.size;
      break;
    case OpKind::gather:
      outputs = at_root ? a.size : 0;
      break;
    case OpKind::scatter:
      inputs = at_root ? a.size : 0;
      break;
    case OpKind::reduce_scatter:
      inputs = a.size;
      break;
    case OpKind::all_to_all:
      inputs = a.size;
      outputs = a.size;
      break;
    case OpKind::barrier:
      inputs = 0;
      outputs = 0;
      break;
    case OpKind::send:
    case OpKind::recv:
      PCCL_ASSERT(false, "no collective:", kind_name(a.kind));
  }
  PCCL_ASSERT(a.input_bytes.size() >= inputs, kind_name(a.kind), a.input_bytes.size());
  PCCL_ASSERT(a.output_bytes.size() >= outputs, kind_name(a.kind), a.output_bytes.size());
  for (const std::uint64_t bytes : a.input_bytes) PCCL_ASSERT(bytes % a.element_bytes == 0, bytes);
  for (const std::uint64_t bytes : a.output_bytes) PCCL_ASSERT(bytes % a.element_bytes == 0, bytes);
  if (a.quantisation == Quantisation::none) return;
  PCCL_ASSERT(quantisable(a.kind, a.reduce, DType::f32), kind_name(a.kind), reduce_name(a.reduce));
  PCCL_ASSERT(a.element_bytes == sizeof(float), a.element_bytes);
}

Schedule alone(const CollectiveArgs& args) {
  Builder b(args);
  if (args.kind != OpKind::barrier) {
    const std::uint64_t bytes = args.output_bytes.at(0);
    PCCL_ASSERT(args.input_bytes.at(0) == bytes, args.input_bytes[0], bytes);
    b.copy(input(0, 0, bytes), output(0, 0, bytes));
  }
  return b.take();
}

Schedule by(Algorithm algorithm, Schedule schedule) {
  schedule.algorithm = algorithm;
  return schedule;
}

/// Of parts of this size.
Schedule in_segments(std::uint64_t part_bytes, const CollectiveArgs& args, Schedule schedule) {
  schedule.segment_bytes = segment_bytes_of(part_bytes, args.lines);
  return schedule;
}

bool are_equal(const std::vector<std::uint64_t>& parts) {
  return std::adjacent_find(parts.begin(), parts.end(), std::not_equal_to<>()) == parts.end();
}

/// `parts`: bytes by rank. Where they differ, segments are as large as they can be: ranks that
/// disagree about a size find out by the first one, which is the whole part if that is small.
Schedule in_segments(const std::vector<std::uint64_t>& parts, const CollectiveArgs& args,
                     Schedule schedule) {
  return are_equal(parts) ? in_segments(parts[0], args, std::move(schedule)) : schedule;
}

Schedule all_reduce(const CollectiveArgs& args) {
  const std::uint64_t bytes = args.input_bytes[0];
  if (bytes == 0) return {};
  if (args.quantisation != Quantisation::none)
    return by(Algorithm::quantised, quantised_all_reduce(args));
  if (!far(args)) {
    if (is_little(bytes, args.size))
      return by(Algorithm::doubling, recursive_doubling_all_reduce(args));
    if (args.size == 2 && bytes <= kTwoExchangeBytesMax)
      return by(Algorithm::exchange, exchange_all_reduce(args));
  } else {
    switch (fastest_all_reduce(bytes, args.size, args.lines)) {
      case AllReduceBy::exchange:
        return by(Algorithm::exchange, exchange_all_reduce(args));
      case AllReduceBy::doubling:
        return by(Algorithm::doubling, recursive_doubling_all_reduce(args));
      case AllReduceBy::direct:
        return by(Algorithm::direct, direct_all_reduce(args));
      case AllReduceBy::two_levels:
        return by(Algorithm::two_levels, two_level_all_reduce(args));
      case AllReduceBy::ring:
        break;
    }
  }
  if (direct(bytes, args))
    return in_segments(bytes / args.size, args, by(Algorithm::direct, direct_all_reduce(args)));
  if (through_areas(bytes, args)) return by(Algorithm::areas, area_all_reduce(args));
  // Between machines: in two levels no more crosses than in a ring, however many ranks they have.
  if (!far(args) && !args.lines.sites.empty())
    return by(Algorithm::two_levels, two_level_all_reduce(args));
  return in_segments(bytes / args.size, args, by(Algorithm::ring, ring_all_reduce(args)));
}

}  // namespace

bool may_go_through_areas(OpKind kind, Quantisation quantisation,
                          const std::vector<std::uint64_t>& input_bytes,
                          const std::vector<std::uint64_t>& output_bytes) {
  constexpr std::uint64_t kLeast = kAreaRanksMin * kAreaBytesMinPerRank;
  switch (kind) {
    case OpKind::all_reduce:
      return quantisation == Quantisation::none && sum_of(output_bytes) >= kLeast;
    case OpKind::all_gather:
      return sum_of(output_bytes) >= kLeast && are_equal(output_bytes);
    case OpKind::reduce_scatter:
      return sum_of(input_bytes) >= kLeast && are_equal(input_bytes);
    default:
      return false;
  }
}

Schedule build_schedule(const CollectiveArgs& args) {
  check_arguments(args);
  if (args.size == 1) return alone(args);
  switch (args.kind) {
    case OpKind::all_reduce:
      return all_reduce(args);
    case OpKind::reduce:
      if (root_keeps_little(args) && direct_rooted(args.input_bytes[0], args)) {
        return by(Algorithm::direct, direct_reduce(args));
      }
      return chain(args.input_bytes[0], args) ? by(Algorithm::chain, chain_reduce(args))
                                              : by(Algorithm::tree, tree_reduce(args));
    case OpKind::broadcast:
      if (direct_rooted(args.output_bytes[0], args))
        return by(Algorithm::direct, direct_broadcast(args));
      return chain(args.output_bytes[0], args) ? by(Algorithm::chain, chain_broadcast(args))
                                               : by(Algorithm::tree, tree_broadcast(args));
    case OpKind::all_gather: {
      const std::uint64_t bytes = sum_of(args.output_bytes);
      if (bytes == 0) return {};
      if (two_levels(args.output_bytes, args)) {
        return in_segments(args.output_bytes, args,
                           by(Algorithm::two_levels, two_level_all_gather(args)));
      }
      if (direct(bytes, args))
        return in_segments(args.output_bytes, args, by(Algorithm::direct, direct_all_gather(args)));
      if (through_areas(bytes, args) && are_equal(args.output_bytes))
        return by(Algorithm::areas, area_all_gather(args));
      return in_segments(args.output_bytes, args, by(Algorithm::ring, ring_all_gather(args)));
    }
    case OpKind::reduce_scatter: {
      const std::uint64_t bytes = sum_of(args.input_bytes);
      if (bytes == 0) return {};
      if (two_levels(args.input_bytes, args)) {
        if (auto schedule = two_level_reduce_scatter(args)) {
          return by(Algorithm::two_levels, *std::move(schedule));
        }
      }
      if (direct(bytes, args)) {
        return in_segments(args.input_bytes, args,
                           by(Algorithm::direct, direct_reduce_scatter(args)));
      }
      if (through_areas(bytes, args) && are_equal(args.input_bytes) && scatters_fit(args)) {
        return by(Algorithm::areas, area_reduce_scatter(args));
      }
      return in_segments(args.input_bytes, args, by(Algorithm::ring, ring_reduce_scatter(args)));
    }
    case OpKind::gather:
      return by(Algorithm::direct, direct_gather(args));
    case OpKind::scatter:
      return by(Algorithm::direct, direct_scatter(args));
    case OpKind::all_to_all:
      return by(Algorithm::pairwise, pairwise_all_to_all(args));
    case OpKind::barrier:
      return far(args) && args.size <= kDirectBarrierMax
                 ? by(Algorithm::direct, direct_barrier(args))
                 : by(Algorithm::dissemination, dissemination_barrier(args));
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  return {};
}

}  // namespace pccl
