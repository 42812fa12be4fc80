// Two halves of the ranks are taken to stand at two sites, which have one line in common: then the
// bytes that cross it decide. Each pair of ranks that crosses sends
//
//   exchange  S                 over floor(n / 2) ceil(n / 2) pairs
//   doubling  S                 over floor(n / 2) pairs, in the last round
//   direct    2 S / n           over as many pairs as an exchange
//   ring      2 S (n - 1) / n   over one pair in each direction
//
// The order of the ring has ranks of one site behind each other. So the last round of doubling, and
// of a tree, is a far one, and the others are as far as neighbours are in the mean. Where each rank
// has a line of its own, direct and ring move as many bytes over it, and direct is better than this
// model says.
#include "collectives/cost.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "base/limits.h"

namespace pccl {
namespace {

constexpr std::uint64_t kNever = ~0ULL;
constexpr std::uint64_t kNsPerUs = 1000;
constexpr std::uint64_t kBytesMax = 1ULL << 33;  // more cost as much as these: no overflow
constexpr std::uint64_t kGain = 10;
constexpr std::uint64_t kDoublingBytesMax = 32U << 10;
constexpr std::uint64_t kDoublingBytesMaxPerRank = 2U << 10;

/// A ring, or a tree, sends to few ranks at a time, and is disturbed the least: so others must be
/// faster by a tenth.
bool gains(std::uint64_t ns, std::uint64_t than_ns) { return ns <= than_ns - than_ns / kGain; }

/// `far_ns` in the far round; the others by how far neighbours are.
std::uint64_t rounds_ns(std::uint64_t far_ns, std::uint64_t rounds, Trips trips) {
  return far_ns + far_ns / std::max(1U, trips.farthest_us) * (rounds - 1) * trips.neighbour_us;
}

std::uint64_t doubling_rounds(std::uint32_t size) {
  const auto rounds = static_cast<std::uint64_t>(std::bit_width(std::bit_floor(size)) - 1);
  return rounds + (std::has_single_bit(size) ? 0 : 2);  // to fold in, and out
}

std::uint64_t time_of(std::uint64_t bytes) { return std::min(bytes, kBytesMax) * kNsPerByte; }

}  // namespace

bool is_little(std::uint64_t bytes, std::uint32_t size) {
  return bytes <= std::max(kDoublingBytesMax, size * kDoublingBytesMaxPerRank);
}

std::uint64_t all_reduce_ns(AllReduceBy by, std::uint64_t bytes, std::uint32_t size, Trips trips) {
  PCCL_ASSERT(size > 1, size);
  const std::uint64_t n = size;
  const std::uint64_t crossing = (n / 2) * ((n + 1) / 2);  // pairs
  const std::uint64_t byte_ns = time_of(bytes);
  const std::uint64_t farthest_ns = trips.farthest_us * kNsPerUs;
  switch (by) {
    case AllReduceBy::exchange:
      if (std::max<std::uint64_t>(bytes, kKeptBytesMin) > kExchangedBytesMax / (n - 1))
        return kNever;
      return farthest_ns / 2 + crossing * byte_ns;
    case AllReduceBy::doubling:
      if (!is_little(bytes, size)) return kNever;
      return rounds_ns(farthest_ns / 2 + n / 2 * byte_ns, doubling_rounds(size), trips);
    case AllReduceBy::direct:
      return farthest_ns + 2 * crossing * byte_ns / n;
    case AllReduceBy::ring:
      return (n - 1) * trips.neighbour_us * kNsPerUs + 2 * (n - 1) * byte_ns / n;
  }
  return kNever;
}

AllReduceBy fastest_all_reduce(std::uint64_t bytes, std::uint32_t size, Trips trips) {
  const auto ns = [&](AllReduceBy by) { return all_reduce_ns(by, bytes, size, trips); };
  AllReduceBy best = AllReduceBy::exchange;
  for (const AllReduceBy by : {AllReduceBy::doubling, AllReduceBy::direct}) {
    if (ns(by) < ns(best)) best = by;
  }
  const bool beats_ring = is_little(bytes, size) || gains(ns(best), ns(AllReduceBy::ring));
  return beats_ring ? best : AllReduceBy::ring;
}

bool direct_beats_tree(std::uint64_t bytes, std::uint32_t size, Trips trips) {
  PCCL_ASSERT(size > 1, size);
  const std::uint64_t half_ns = trips.farthest_us * kNsPerUs / 2;
  const auto rounds = static_cast<std::uint64_t>(std::bit_width(size - 1));
  const std::uint64_t tree_ns = rounds_ns(half_ns + time_of(bytes), rounds, trips);
  const std::uint64_t direct_ns = half_ns + (size + 1) / 2 * time_of(bytes);
  return gains(direct_ns, tree_ns);
}

bool direct_half_is_faster(std::uint64_t bytes, std::uint32_t size, Trips trips) {
  return gains(all_reduce_ns(AllReduceBy::direct, bytes, size, trips),
               all_reduce_ns(AllReduceBy::ring, bytes, size, trips));
}

}  // namespace pccl
