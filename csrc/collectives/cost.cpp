// Ranks are taken to stand at sites of m ranks each, which have one line in common: then the bytes
// that cross it decide. The order of the ring has ranks of one site behind each other, so one of m
// neighbours is far, and m follows from the two round trips: half of all ranks where the mean of
// the neighbours is 2 / n of the farthest, one where all are equally far. Of a site
//
//   exchange  S                 over m (n - m) pairs
//   doubling  S                 over m pairs, in the last round
//   direct    2 S / n           over as many pairs as an exchange
//   ring      2 S (n - 1) / n   over one pair in each direction
//   levels    S                 over m pairs; of k > 2 sites 2 S (k - 1) / k
//
// cross its line; of an all-gather or a reduce-scatter half of that, in two levels what m ranks
// send to k - 1 sites, or n - m ranks are sent. Two levels are taken where the sites are known
// (base/sites.h). The last round of doubling, and of a tree, is a far one, and the others are as
// far as neighbours are in the mean; where sites are known, those of doubling in which a pair
// stands at two of them are far, and the others as neighbours of a site are. In a ring parts follow
// each other, segment by segment: a step takes the time of a part on the line, or that in which a
// segment comes to the next rank, if that is longer; and at the end the shorter one of both is
// left. tests/labs/costs compares all this with a simulation of the schedules.
#include "collectives/cost.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

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
constexpr std::uint64_t kOwnMbit = 1000;   // taken for a rank's own line that is not measured
constexpr std::uint64_t kMbitMax = 10000;  // of faster lines a core is the limit
constexpr std::uint64_t kNsPerByteOfMbit = 8000;
// A rank keeps what comes for a direct all-reduce out of order, and of two ranks for an exchange.
constexpr std::uint64_t kFarDirectBytesMax = 64U << 20;

/// A ring, or a tree, sends to few ranks at a time, and is disturbed the least: so others must be
/// faster by a tenth.
bool gains(std::uint64_t ns, std::uint64_t than_ns) {
  return ns <= kNever / 2 && ns + ns / kGain <= than_ns;
}

bool is_measured(const Lines& lines) { return lines.mbit_per_s > 0; }

std::uint64_t mbit_of(const Lines& lines) {
  return is_measured(lines) ? std::min<std::uint64_t>(lines.mbit_per_s, kMbitMax) : kMbitAssumed;
}

/// `far_ns` in the far round; the others by how far neighbours are.
std::uint64_t rounds_ns(std::uint64_t far_ns, std::uint64_t rounds, const Lines& lines) {
  return far_ns + far_ns / std::max(1U, lines.farthest_us) * (rounds - 1) * lines.neighbour_us;
}

std::uint64_t doubling_rounds(std::uint32_t size) {
  const auto rounds = static_cast<std::uint64_t>(std::bit_width(std::bit_floor(size)) - 1);
  return rounds + (std::has_single_bit(size) ? 0 : 2);  // to fold in, and out
}

/// Rounds of doubling in which some pair stands at two sites (recursive_doubling.cpp has the
/// pairs).
std::uint64_t far_doubling_rounds(const Sites& sites) {
  const auto size = static_cast<std::uint32_t>(sites.size());
  const std::uint32_t p = std::bit_floor(size);
  const std::uint32_t extra = size - p;
  const auto site_at = [&](std::uint32_t place) {
    return sites[place < extra ? 2 * place : place + extra];
  };
  std::uint64_t rounds = 0;
  for (std::uint32_t distance = 1; distance < p; distance *= 2) {
    bool far = false;
    for (std::uint32_t place = 0; place < p; ++place) {
      far = far || site_at(place) != site_at(place ^ distance);
    }
    rounds += far ? 1 : 0;
  }
  for (std::uint32_t rank = 0; rank < 2 * extra; rank += 2) {
    if (sites[rank] != sites[rank + 1]) return rounds + 2;  // to fold in, and out
  }
  return rounds;
}

/// `far_ns`: of a round that is far.
std::uint64_t doubling_ns(std::uint64_t far_ns, std::uint32_t size, const Lines& lines) {
  const std::uint64_t rounds = doubling_rounds(size);
  if (lines.sites.empty()) return rounds_ns(far_ns, rounds, lines);
  const std::uint64_t far = far_doubling_rounds(lines.sites);
  return far * far_ns + (rounds - far) * lines.near_us * kNsPerUs / 2;
}

/// Ranks of a site.
std::uint64_t at_a_site(std::uint32_t size, const Lines& lines) {
  const std::uint64_t most = (size + 1) / 2;
  if (lines.neighbour_us == 0) return most;
  const std::uint64_t rounded = (std::uint64_t{2} * lines.farthest_us + lines.neighbour_us) /
                                (std::uint64_t{2} * lines.neighbour_us);
  return std::clamp<std::uint64_t>(rounded, 1, most);
}

std::uint64_t time_of(std::uint64_t bytes, std::uint64_t mbit) {
  return std::min(bytes, kBytesMax) * kNsPerByteOfMbit / mbit;
}

/// By an exchange. A line that is not measured may be slow, and then it is the wrong way for much,
/// but not of two ranks, which send no more than by a ring.
std::uint64_t kept_bytes_max(std::uint32_t size, const Lines& lines) {
  if (size == 2) return kFarDirectBytesMax;
  return is_measured(lines) ? kMeasuredExchangedBytesMax : kExchangedBytesMax;
}

std::uint64_t direct_ns(std::uint64_t byte_ns, std::uint32_t size, const Lines& lines) {
  const std::uint64_t n = size;
  const std::uint64_t m = at_a_site(size, lines);
  return lines.farthest_us * kNsPerUs + 2 * m * (n - m) * byte_ns / n;
}

/// Of an all-reduce over lines of their own: the sums of the first segments go out while the last
/// ones of a part still come, so the line waits for less than half of a trip.
std::uint64_t overlap_ns(std::uint64_t part_ns, std::uint64_t mbit, const Lines& lines) {
  const std::uint64_t first_ns = std::min(part_ns, time_of(kSegmentBytesMax, mbit));
  return std::min(part_ns - first_ns, lines.farthest_us * kNsPerUs / 2);
}

std::uint64_t two_levels_ns(std::uint64_t byte_ns, const Lines& lines) {
  const auto ranks = ranks_by_site(lines.sites);
  const std::uint64_t k = ranks.size();
  std::uint64_t most = 1;
  for (const auto& site : ranks) most = std::max<std::uint64_t>(most, site.size());
  const std::uint64_t steps_ns = (most - 1) * lines.near_us * kNsPerUs;
  const std::uint64_t far_ns = lines.farthest_us * kNsPerUs;
  if (k == 2) return steps_ns + far_ns / 2 + byte_ns;
  return steps_ns + far_ns + 2 * (k - 1) * byte_ns / k;
}

std::uint64_t ring_ns(std::uint64_t byte_ns, std::uint64_t segment_ns, std::uint32_t size,
                      const Lines& lines) {
  const std::uint64_t n = size;
  const std::uint64_t part_ns = byte_ns / n;
  const std::uint64_t first_ns = std::min(part_ns, segment_ns);
  const std::uint64_t hop_ns =
      lines.neighbour_us * kNsPerUs / 2 + first_ns / at_a_site(size, lines);
  return 2 * (n - 1) * std::max(hop_ns, part_ns) + std::min(hop_ns, part_ns - first_ns);
}

}  // namespace

bool is_little(std::uint64_t bytes, std::uint32_t size) {
  return bytes <= std::max(kDoublingBytesMax, size * kDoublingBytesMaxPerRank);
}

std::uint64_t segment_bytes_of(std::uint64_t bytes, const Lines& lines) {
  if (lines.farthest_us >= kFarUs) return kSegmentBytesMax;
  return std::clamp<std::uint64_t>(std::bit_floor(bytes / kSegmentsOfPart), kNearSegmentBytesMin,
                                   kSegmentBytesMax);
}

std::uint64_t all_reduce_ns(AllReduceBy by, std::uint64_t bytes, std::uint32_t size,
                            const Lines& lines) {
  PCCL_ASSERT(size > 1, size);
  const std::uint64_t n = size;
  const std::uint64_t m = at_a_site(size, lines);
  const std::uint64_t mbit = mbit_of(lines);
  const std::uint64_t byte_ns = time_of(bytes, mbit);
  const std::uint64_t farthest_ns = lines.farthest_us * kNsPerUs;
  switch (by) {
    case AllReduceBy::exchange:
      if (std::max<std::uint64_t>(bytes, kKeptBytesMin) > kept_bytes_max(size, lines) / (n - 1))
        return kNever;
      return farthest_ns / 2 + m * (n - m) * byte_ns;
    case AllReduceBy::doubling:
      if (!is_little(bytes, size)) return kNever;
      return doubling_ns(farthest_ns / 2 + std::min(m, n / 2) * byte_ns, size, lines);
    case AllReduceBy::direct:
      if (bytes > kFarDirectBytesMax) return kNever;
      return direct_ns(byte_ns, size, lines) - (m == 1 ? overlap_ns(byte_ns / n, mbit, lines) : 0);
    case AllReduceBy::two_levels:
      return lines.sites.empty() ? kNever : two_levels_ns(byte_ns, lines);
    case AllReduceBy::ring:
      return ring_ns(byte_ns, time_of(kSegmentBytesMax, mbit), size, lines);
  }
  return kNever;
}

bool direct_beats_ring(std::uint64_t bytes, std::uint32_t size, const Lines& lines) {
  PCCL_ASSERT(size > 1, size);
  if (bytes > kFarDirectBytesMax) return false;
  const bool own = at_a_site(size, lines) == 1 && !is_measured(lines);
  const std::uint64_t mbit = own ? kOwnMbit : mbit_of(lines);
  const std::uint64_t byte_ns = time_of(bytes, mbit);
  const std::uint64_t segment_ns = time_of(kSegmentBytesMax, mbit);
  return gains(direct_ns(byte_ns, size, lines), ring_ns(byte_ns, segment_ns, size, lines));
}

std::uint64_t crossing_bytes(const std::vector<std::uint64_t>& parts, const Sites& sites) {
  const std::uint64_t bytes = std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  const auto ranks_of = ranks_by_site(sites);
  std::uint64_t most = 0;
  for (const auto& ranks : ranks_of) {
    std::uint64_t of_site = 0;
    for (const std::uint32_t rank : ranks) of_site += parts[rank];
    most = std::max({most, of_site * (ranks_of.size() - 1), bytes - of_site});
  }
  return most;
}

bool two_levels_gather_first(const std::vector<std::uint64_t>& parts, const Lines& lines) {
  if (lines.sites.empty()) return false;
  PCCL_ASSERT(lines.sites.size() == parts.size(), lines.sites.size(), parts.size());
  const auto size = static_cast<std::uint32_t>(parts.size());
  const std::uint64_t mbit = mbit_of(lines);
  const std::uint64_t bytes = std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  std::uint64_t most = 1;
  for (const auto& ranks : ranks_by_site(lines.sites)) {
    most = std::max<std::uint64_t>(most, ranks.size());
  }
  // What goes round within a site: near lines are taken to be twice as fast.
  const std::uint64_t busiest = std::max(bytes / 2, crossing_bytes(parts, lines.sites));
  const std::uint64_t far_ns = lines.farthest_us * kNsPerUs / 2;
  const std::uint64_t steps_ns = (most - 1) * lines.near_us * kNsPerUs / 2;
  const std::uint64_t ns = steps_ns + far_ns + time_of(busiest, mbit);
  const std::uint64_t byte_ns = time_of(bytes, mbit);
  const std::uint64_t direct =
      bytes > kFarDirectBytesMax ? kNever : direct_ns(byte_ns, size, lines) / 2;
  const std::uint64_t ring = ring_ns(byte_ns, time_of(kSegmentBytesMax, mbit), size, lines) / 2;
  return gains(ns, direct) && gains(ns, ring);
}

AllReduceBy fastest_all_reduce(std::uint64_t bytes, std::uint32_t size, const Lines& lines) {
  const auto ns = [&](AllReduceBy by) { return all_reduce_ns(by, bytes, size, lines); };
  AllReduceBy best = AllReduceBy::exchange;
  if (size == 2 && ns(best) != kNever) return best;
  for (const AllReduceBy by :
       {AllReduceBy::doubling, AllReduceBy::direct, AllReduceBy::two_levels}) {
    if (ns(by) < ns(best)) best = by;
  }
  const bool no_ring = is_little(bytes, size) && !is_measured(lines);
  if (no_ring || gains(ns(best), ns(AllReduceBy::ring))) return best;
  return direct_beats_ring(bytes, size, lines) ? AllReduceBy::direct : AllReduceBy::ring;
}

bool direct_beats_tree(std::uint64_t bytes, std::uint32_t size, const Lines& lines) {
  PCCL_ASSERT(size > 1, size);
  const std::uint64_t half_ns = lines.farthest_us * kNsPerUs / 2;
  const auto rounds = static_cast<std::uint64_t>(std::bit_width(size - 1));
  const std::uint64_t byte_ns = time_of(bytes, mbit_of(lines));
  const std::uint64_t tree_ns = rounds_ns(half_ns + byte_ns, rounds, lines);
  const std::uint64_t copies = at_a_site(size, lines) == 1 ? size - 1 : (size + 1) / 2;
  return gains(half_ns + copies * byte_ns, tree_ns);
}

}  // namespace pccl
