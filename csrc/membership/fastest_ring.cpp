// The search for the fastest ring.
//
// Exact: for the fastest threshold for which the links at or above it have a Hamiltonian cycle,
// dynamic programming over the sets of ranks that a path has visited (Held and Karp, "A dynamic
// programming approach to sequencing problems", 1962).
//
// Search: the slowest link of the ring is replaced again and again: a stretch that ends there is
// turned round (2-opt), or up to three neighbours of it move elsewhere (Or, 1976), as long as every
// new link is faster than the one that goes. Where that ends, two stretches change places, and the
// search goes on if that is no loss (Martin, Otto and Felten, "Large-step Markov chains for the
// traveling salesman problem", 1991).
#include "membership/fastest_ring.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/assert.h"
#include "base/random.h"

namespace pccl {
namespace {

using Ranks = std::vector<std::uint32_t>;

constexpr std::uint64_t kNever = ~std::uint64_t{0};
constexpr std::size_t kMovedMax = 3;
constexpr std::size_t kKicksMax = 10000;
constexpr std::size_t kKicksOfAll = 256000;  // divided by the ranks: 50 ms for 256

void begin_with_zero(Ranks& order) {
  std::rotate(order.begin(), std::find(order.begin(), order.end(), 0U), order.end());
}

// ----------------------------------------------------------------------------------------- exact

/// The ring of links at or above `threshold` in which a byte takes the least time; empty: none.
Ranks least_time(const Rates& rates, std::uint64_t threshold) {
  const std::uint32_t size = rates.size();
  const std::size_t sets = std::size_t{1} << size;
  // Of each set of ranks with rank 0, and each rank at the end of the path through it.
  std::vector<std::uint64_t> spent(sets * size, kNever);
  std::vector<std::uint8_t> before(sets * size, 0);
  spent[1 * size + 0] = 0;
  for (std::size_t set = 1; set < sets; set += 2) {
    for (std::uint32_t last = 0; last < size; ++last) {
      const std::uint64_t so_far = spent[set * size + last];
      if (so_far == kNever) continue;
      for (std::uint32_t next = 1; next < size; ++next) {
        const std::uint64_t rate = rates.of(last, next);
        if ((set >> next & 1U) != 0 || rate < threshold || rate == 0) continue;
        const std::size_t with = (set | std::size_t{1} << next) * size + next;
        const std::uint64_t then = so_far + rates.byte_time(last, next);
        if (then >= spent[with]) continue;
        spent[with] = then;
        before[with] = static_cast<std::uint8_t>(last);
      }
    }
  }
  std::uint64_t best = kNever;
  std::uint32_t last = 0;
  for (std::uint32_t end = 1; end < size; ++end) {
    const std::uint64_t rate = rates.of(end, 0);
    const std::uint64_t so_far = spent[(sets - 1) * size + end];
    if (so_far == kNever || rate < threshold || rate == 0) continue;
    const std::uint64_t all = so_far + rates.byte_time(end, 0);
    if (all < best) best = all, last = end;
  }
  if (best == kNever) return {};
  Ranks order;
  for (std::size_t set = sets - 1; last != 0;) {
    order.push_back(last);
    const std::uint32_t previous = before[set * size + last];
    set &= ~(std::size_t{1} << last);
    last = previous;
  }
  order.push_back(0);
  std::reverse(order.begin(), order.end());
  return order;
}

Ranks exact(const Rates& rates) {
  std::vector<std::uint64_t> thresholds;
  for (std::uint32_t a = 0; a < rates.size(); ++a) {
    for (std::uint32_t b = 0; b < rates.size(); ++b) {
      if (a != b && rates.of(a, b) > 0) thresholds.push_back(rates.of(a, b));
    }
  }
  std::sort(thresholds.begin(), thresholds.end());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  Ranks best;
  for (std::size_t low = 0, high = thresholds.size(); low < high;) {
    const std::size_t middle = low + (high - low) / 2;
    Ranks found = least_time(rates, thresholds[middle]);
    if (found.empty()) {
      high = middle;
    } else {
      best = std::move(found);
      low = middle + 1;
    }
  }
  return best;
}

// ---------------------------------------------------------------------------------------- search

class Search {
 public:
  Search(const Rates& rates, Ranks order) : rates_(rates), order_(std::move(order)) {}

  Ranks run() {
    while (replace_slowest()) {
    }
    return std::move(order_);
  }

 private:
  [[nodiscard]] std::uint32_t at(std::size_t i) const { return order_[i % order_.size()]; }
  [[nodiscard]] std::uint64_t rate(std::uint32_t from, std::uint32_t to) const {
    return rates_.of(from, to);
  }

  bool replace_slowest() {
    std::size_t place = 0;
    for (std::size_t i = 1; i < order_.size(); ++i) {
      if (rate(at(i), at(i + 1)) < rate(at(place), at(place + 1))) place = i;
    }
    // The slowest link becomes the one from the last to the first.
    const auto first = order_.begin() + static_cast<std::ptrdiff_t>((place + 1) % order_.size());
    std::rotate(order_.begin(), first, order_.end());
    limit_ = rate(order_.back(), order_.front());
    return reverse() || move(false) || move(true);
  }

  /// Reverses the first i + 1: both ends of the stretch meet others.
  bool reverse() {
    const std::uint32_t last = order_.back();
    // Links inside the stretch are used the other way round.
    for (std::size_t i = 1; i + 1 < order_.size(); ++i) {
      if (rate(order_[i], order_[i - 1]) <= limit_) return false;
      if (rate(last, order_[i]) <= limit_ || rate(order_[0], order_[i + 1]) <= limit_) continue;
      std::reverse(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return true;
    }
    return false;
  }

  /// Moves the first one to three ranks, or (`backwards`) the last ones, between two others.
  bool move(bool backwards) {
    const std::size_t size = order_.size();
    for (std::size_t count = 1; count <= kMovedMax && count + 3 <= size; ++count) {
      const std::size_t from = backwards ? size - count : 0;
      const std::uint32_t before = at(from + size - 1);
      const std::uint32_t after = at(from + count);
      if (rate(before, after) <= limit_) continue;
      for (std::size_t i = count; i + 1 < size; ++i) {
        const std::size_t gap = (from + i) % size;  // between this place and the next one
        if (gap + 1 >= size) continue;
        if (backwards && gap + 1 >= from) continue;
        if (place(from, count, gap, false) || place(from, count, gap, true)) return true;
      }
    }
    return false;
  }

  bool place(std::size_t from, std::size_t count, std::size_t gap, bool turned) {
    const std::uint32_t first = order_[turned ? from + count - 1 : from];
    const std::uint32_t last = order_[turned ? from : from + count - 1];
    if (rate(at(gap), first) <= limit_ || rate(last, at(gap + 1)) <= limit_) return false;
    for (std::size_t i = from; turned && i + 1 < from + count; ++i) {
      if (rate(order_[i + 1], order_[i]) <= limit_) return false;
    }
    const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(from);
    Ranks moved(begin, begin + static_cast<std::ptrdiff_t>(count));
    if (turned) std::reverse(moved.begin(), moved.end());
    const std::uint32_t left = order_[gap];
    order_.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
    const auto where = std::find(order_.begin(), order_.end(), left) + 1;
    order_.insert(where, moved.begin(), moved.end());
    return true;
  }

  const Rates& rates_;
  Ranks order_;
  std::uint64_t limit_ = 0;
};

/// The stretches b and c of the ring a, b, c, d change places: no link is used the other way round.
Ranks kicked(const Ranks& order, Random& random) {
  std::size_t cuts[3];
  for (std::size_t& cut : cuts) cut = 1 + random.below(order.size() - 1);
  std::sort(cuts, cuts + 3);
  Ranks out = order;
  std::rotate(out.begin() + static_cast<std::ptrdiff_t>(cuts[0]),
              out.begin() + static_cast<std::ptrdiff_t>(cuts[1]),
              out.begin() + static_cast<std::ptrdiff_t>(cuts[2]));
  return out;
}

Ranks search(const Rates& rates) {
  Random random(rates.size());
  const auto worth = [&rates](const Ranks& order) {
    return std::pair(slowest_of(rates, order), ~time_of_all(rates, order));
  };
  Ranks best(rates.size());
  std::iota(best.begin(), best.end(), 0U);
  best = Search(rates, std::move(best)).run();
  auto most = worth(best);
  const std::size_t kicks = std::min(kKicksMax, kKicksOfAll / rates.size());
  for (std::size_t kick = 0; kick < kicks && rates.size() > 2; ++kick) {
    Ranks order = Search(rates, kicked(best, random)).run();
    const auto its = worth(order);
    if (its <= most) continue;
    best = std::move(order);
    most = its;
  }
  return best;
}

}  // namespace

std::uint64_t slowest_of(const Rates& rates, const std::vector<std::uint32_t>& order) {
  std::uint64_t slowest = kNever;
  for (std::size_t i = 0; i < order.size(); ++i) {
    slowest = std::min(slowest, rates.of(order[i], order[(i + 1) % order.size()]));
  }
  return order.size() < 2 ? 0 : slowest;
}

std::uint64_t time_of_all(const Rates& rates, const std::vector<std::uint32_t>& order) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sum += rates.byte_time(order[i], order[(i + 1) % order.size()]) >> 4;
  }
  return sum << 4;
}

Ring fastest_ring(const Rates& rates, std::uint32_t exact_max) {
  PCCL_ASSERT(exact_max <= 16);
  Ring ring;
  if (rates.size() > 1) ring.order = rates.size() <= exact_max ? exact(rates) : search(rates);
  if (ring.order.empty()) {  // one rank, or no ring without a pair that cannot send
    ring.order.resize(rates.size());
    std::iota(ring.order.begin(), ring.order.end(), 0U);
  }
  begin_with_zero(ring.order);
  ring.slowest = slowest_of(rates, ring.order);
  return ring;
}

}  // namespace pccl
