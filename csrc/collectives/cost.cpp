// Two halves of the ranks are taken to stand at two sites, which have one line in common: then the
// bytes that cross it decide. Each pair of ranks that crosses sends
//
//   exchange  S                 over floor(n / 2) ceil(n / 2) pairs
//   direct    2 S / n           over as many
//   ring      2 S (n - 1) / n   over one pair in each direction
//
// Where each rank has a line of its own, direct and ring move as many bytes over it, so the model
// takes the ring too soon, never too late.
#include "collectives/cost.h"

#include <algorithm>

#include "base/assert.h"

namespace pccl {
namespace {

constexpr std::uint64_t kNever = ~0ULL;
constexpr std::uint64_t kNsPerUs = 1000;
constexpr std::uint64_t kBytesMax = 1ULL << 36;  // more cost as much as these: no overflow
// A ring sends to one rank at a time, and is disturbed the least: so others must be faster by a
// tenth.
constexpr std::uint64_t kGain = 10;

}  // namespace

std::uint64_t all_reduce_ns(AllReduceBy by, std::uint64_t bytes, std::uint32_t size, Trips trips) {
  PCCL_ASSERT(size > 1, size);
  const std::uint64_t n = size;
  const std::uint64_t crossing = (n / 2) * ((n + 1) / 2);  // pairs
  const std::uint64_t byte_ns = std::min(bytes, kBytesMax) * kNsPerByte;
  const std::uint64_t farthest_ns = trips.farthest_us * kNsPerUs;
  switch (by) {
    case AllReduceBy::exchange:
      if (bytes > kExchangedBytesMax / (n - 1)) return kNever;
      return farthest_ns / 2 + crossing * byte_ns;
    case AllReduceBy::direct:
      return farthest_ns + 2 * crossing * byte_ns / n;
    case AllReduceBy::ring:
      return (n - 1) * trips.neighbour_us * kNsPerUs + 2 * (n - 1) * byte_ns / n;
  }
  return kNever;
}

AllReduceBy fastest_all_reduce(std::uint64_t bytes, std::uint32_t size, Trips trips) {
  const std::uint64_t exchange_ns = all_reduce_ns(AllReduceBy::exchange, bytes, size, trips);
  const std::uint64_t direct_ns = all_reduce_ns(AllReduceBy::direct, bytes, size, trips);
  const std::uint64_t ring_ns = all_reduce_ns(AllReduceBy::ring, bytes, size, trips);
  if (std::min(exchange_ns, direct_ns) > ring_ns - ring_ns / kGain) return AllReduceBy::ring;
  return exchange_ns <= direct_ns ? AllReduceBy::exchange : AllReduceBy::direct;
}

bool direct_half_is_faster(std::uint64_t bytes, std::uint32_t size, Trips trips) {
  const std::uint64_t ring_ns = all_reduce_ns(AllReduceBy::ring, bytes, size, trips);
  return all_reduce_ns(AllReduceBy::direct, bytes, size, trips) <= ring_ns - ring_ns / kGain;
}

}  // namespace pccl
