// The ring whose slowest link is the fastest: a ring all-reduce takes as long as that link.
//
// Pure: the same rates give the same ring. topology.h measures them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pccl {

/// Time in which a link of this many bytes a second carries a byte, in 2^-50 s. `rate` > 0.
[[nodiscard]] inline std::uint64_t time_of_byte(std::uint64_t rate) {
  return (std::uint64_t{1} << 50) / rate;
}

/// Bytes a second from each rank to each other one, as measured. 0: nothing can be sent that way.
class Rates {
 public:
  explicit Rates(std::uint32_t size, std::uint64_t rate = 0)
      : size_(size),
        rates_(std::size_t{size} * size, rate),
        times_(rates_.size(), rate > 0 ? time_of_byte(rate) : 0) {}
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::uint64_t of(std::uint32_t from, std::uint32_t to) const {
    return rates_[std::size_t{from} * size_ + to];
  }
  /// What a byte takes that way, in 2^-50 s.
  [[nodiscard]] std::uint64_t byte_time(std::uint32_t from, std::uint32_t to) const {
    return times_[std::size_t{from} * size_ + to];
  }
  /// `time`: as above, where it is more than the rate says (it may take a while to arrive); 0: not.
  void set(std::uint32_t from, std::uint32_t to, std::uint64_t rate, std::uint64_t time = 0) {
    const std::size_t place = std::size_t{from} * size_ + to;
    rates_[place] = rate;
    times_[place] = time == 0 && rate > 0 ? time_of_byte(rate) : time;
  }

 private:
  std::uint32_t size_;
  std::vector<std::uint64_t> rates_;
  std::vector<std::uint64_t> times_;
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
/// The time of a byte over all links of a ring in this order, in 2^-50 s; ranks <= 2^10.
[[nodiscard]] std::uint64_t time_of_all(const Rates& rates,
                                        const std::vector<std::uint32_t>& order);

}  // namespace pccl
