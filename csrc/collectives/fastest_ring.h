// The ring whose slowest link is the fastest: a ring all-reduce takes as long as that link.
//
// Pure: the same rates give the same ring. `links.md` and decision 0005 say which links there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pccl {

/// Bytes a second from each rank to each other one, as measured. 0: nothing can be sent that way.
class Rates {
 public:
  explicit Rates(std::uint32_t size, std::uint64_t rate = 0)
      : size_(size), rates_(std::size_t{size} * size, rate) {}
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint64_t of(std::uint32_t from, std::uint32_t to) const {
    return rates_[std::size_t{from} * size_ + to];
  }
  void set(std::uint32_t from, std::uint32_t to, std::uint64_t rate) {
    rates_[std::size_t{from} * size_ + to] = rate;
  }

 private:
  std::uint32_t size_;
  std::vector<std::uint64_t> rates_;
};

struct Ring {
  std::vector<std::uint32_t> order;  // each sends to the next one, the last one to the first
  std::uint64_t slowest = 0;         // rate of the slowest of these links
};

/// So many ranks are tried in all orders (by dynamic programming: 1 ms); of more the best ring that
/// a search finds.
inline constexpr std::uint32_t kExactRingMax = 12;

/// Among the rings with that slowest link: the one in which the time of a byte over all links is
/// the least (exact up to `exact_max` ranks). The order begins with rank 0. `exact_max` <= 16.
[[nodiscard]] Ring fastest_ring(const Rates& rates, std::uint32_t exact_max = kExactRingMax);

/// The slowest link of a ring in this order.
[[nodiscard]] std::uint64_t slowest_of(const Rates& rates, const std::vector<std::uint32_t>& order);

}  // namespace pccl
