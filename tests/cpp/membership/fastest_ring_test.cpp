// The fastest ring: against all orders and all rings, against the exact one, and where the best
// ring is known.
#include "membership/fastest_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/random.h"

namespace pccl::fastest_ring_test {
namespace {

/// Rates over four orders of magnitude; `pairs`: the same in both directions.
Rates random_rates(std::uint32_t size, std::uint64_t seed, bool pairs) {
  Random random(seed);
  Rates rates(size);
  for (std::uint32_t a = 0; a < size; ++a) {
    for (std::uint32_t b = 0; b < size; ++b) {
      if (a == b) continue;
      const auto rate = static_cast<std::uint64_t>(1e6 * std::pow(10, 4 * random.unit()));
      rates.set(a, b, pairs && b < a ? rates.of(b, a) : rate);
    }
  }
  return rates;
}

double time_of(const Rates& rates, const std::vector<std::uint32_t>& order) {
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sum += 1 / static_cast<double>(rates.of(order[i], order[(i + 1) % order.size()]));
  }
  return sum;
}

/// Of all orders: the best slowest link, and the least time among those that have it.
std::pair<std::uint64_t, double> of_all_orders(const Rates& rates) {
  std::vector<std::uint32_t> order(rates.size());
  std::iota(order.begin(), order.end(), 0U);
  std::pair<std::uint64_t, double> best{0, 0};
  do {
    const std::uint64_t slowest = slowest_of(rates, order);
    const double time = time_of(rates, order);
    if (slowest > best.first || (slowest == best.first && time < best.second)) {
      best = {slowest, time};
    }
  } while (std::next_permutation(order.begin() + 1, order.end()));
  return best;
}

/// Walks along every ring whose links are all faster than `above`. Few links of random rates are,
/// so it ends soon.
class RingsAbove {
 public:
  RingsAbove(const Rates& rates, std::uint64_t above) : rates_(rates), above_(above) { go_on(0); }
  /// The time of a byte over all links of the best one; infinite: there is no such ring.
  [[nodiscard]] double least_time() const { return least_; }

 private:
  void go_on(std::uint32_t last) {
    for (std::uint32_t next = 0; next < rates_.size(); ++next) {
      const bool closes = next == 0 && visited_ + 1 == 1U << rates_.size();
      if ((!closes && (visited_ >> next & 1U) != 0) || rates_.of(last, next) <= above_) continue;
      const double time = 1 / static_cast<double>(rates_.of(last, next));
      if (time_ + time >= least_) continue;
      if (closes) {
        least_ = time_ + time;
        continue;
      }
      const double before = std::exchange(time_, time_ + time);
      visited_ |= 1U << next;
      go_on(next);
      visited_ &= ~(1U << next);
      time_ = before;
    }
  }

  const Rates& rates_;
  const std::uint64_t above_;
  std::uint32_t visited_ = 1;  // a bit for each rank
  double time_ = 0;
  double least_ = std::numeric_limits<double>::infinity();
};

void expect_ring(const Ring& ring, std::uint32_t size) {
  ASSERT_EQ(ring.order.size(), size);
  std::vector<std::uint32_t> sorted = ring.order;
  std::sort(sorted.begin(), sorted.end());
  for (std::uint32_t i = 0; i < size; ++i) ASSERT_EQ(sorted[i], i);
  EXPECT_EQ(ring.order.front(), 0U);
}

TEST(FastestRing, is_the_best_of_all_orders_of_few_ranks) {
  for (std::uint32_t size = 2; size <= 7; ++size) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      const Rates rates = random_rates(size, seed, seed % 2 == 0);
      const Ring ring = fastest_ring(rates);
      expect_ring(ring, size);
      const auto [slowest, time] = of_all_orders(rates);
      ASSERT_EQ(ring.slowest, slowest) << size << " ranks, seed " << seed;
      ASSERT_NEAR(time_of(rates, ring.order), time, time * 1e-6);
    }
  }
}

TEST(FastestRing, of_8_to_12_ranks_has_the_best_slowest_link_and_then_the_least_time) {
  for (std::uint32_t size = 8; size <= 12; ++size) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      const Rates rates = random_rates(size, seed, seed % 2 == 0);
      const Ring ring = fastest_ring(rates);
      expect_ring(ring, size);
      const double time = RingsAbove(rates, ring.slowest - 1).least_time();
      ASSERT_NEAR(time_of(rates, ring.order) / time, 1, 1e-6) << size << " ranks, seed " << seed;
      ASSERT_TRUE(std::isinf(RingsAbove(rates, ring.slowest).least_time()))
          << size << " ranks, seed " << seed << ": a ring has a faster slowest link";
    }
  }
}

TEST(FastestRing, of_many_ranks_is_near_the_exact_one) {
  int best = 0;
  int walks = 0;
  for (const std::uint32_t size : {5U, 8U, 11U, 12U}) {
    for (std::uint64_t seed = 1; seed <= 25; ++seed) {
      for (const bool pairs : {true, false}) {
        const Rates rates = random_rates(size, seed, pairs);
        const Ring exact = fastest_ring(rates);
        const Ring found = fastest_ring(rates, 0);
        expect_ring(found, size);
        ASSERT_LE(found.slowest, exact.slowest);
        ASSERT_GE(found.slowest, exact.slowest / 2);
        best += found.slowest == exact.slowest ? 1 : 0;
        ++walks;
      }
    }
  }
  EXPECT_GE(best, walks * 95 / 100) << "of " << walks;
}

TEST(FastestRing, crosses_an_ocean_twice_however_the_ranks_came) {
  // Two continents: 1 Gbit/s inside, 40 to 100 Mbit/s between them, one pair each way is the best.
  for (const std::uint32_t size : {6U, 40U, 256U}) {
    Random random(size);
    std::vector<std::uint32_t> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0U);
    for (std::size_t i = size - 1; i > 0; --i) std::swap(ranks[i], ranks[random.below(i + 1)]);
    const auto in_europe = [&](std::uint32_t rank) {
      return std::find(ranks.begin(), ranks.begin() + size / 2, rank) != ranks.begin() + size / 2;
    };
    Rates rates(size);
    for (std::uint32_t a = 0; a < size; ++a) {
      for (std::uint32_t b = 0; b < size; ++b) {
        const bool ocean = in_europe(a) != in_europe(b);
        rates.set(a, b, ocean ? 5'000'000 + random.below(7'000'000) : 125'000'000);
      }
    }
    rates.set(ranks.front(), ranks.back(), 12'500'000);
    rates.set(ranks[size - 2], ranks[1], 12'500'000);
    const Ring ring = fastest_ring(rates);
    expect_ring(ring, size);
    EXPECT_GE(ring.slowest, 12'500'000U * 95 / 100) << size << " ranks";
    int crossings = 0;
    for (std::uint32_t i = 0; i < size; ++i) {
      crossings += in_europe(ring.order[i]) != in_europe(ring.order[(i + 1) % size]) ? 1 : 0;
    }
    EXPECT_EQ(crossings, 2) << size << " ranks";
  }
}

TEST(FastestRing, goes_round_a_rank_that_cannot_send_to_some) {
  Rates rates(5, 1000);
  rates.set(1, 2, 0);
  rates.set(1, 3, 0);
  for (const std::uint32_t exact_max : {kExactRingMax, 0U}) {
    const Ring ring = fastest_ring(rates, exact_max);
    expect_ring(ring, 5);
    EXPECT_EQ(ring.slowest, 1000U);
  }
}

TEST(FastestRing, stays_in_rank_order_where_there_is_nothing_to_choose) {
  EXPECT_EQ(fastest_ring(Rates(1)).order, std::vector<std::uint32_t>{0});
  EXPECT_EQ(fastest_ring(Rates(3)).order, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(fastest_ring(Rates(3)).slowest, 0U);
  const Ring forty = fastest_ring(Rates(40, 7));
  EXPECT_TRUE(std::is_sorted(forty.order.begin(), forty.order.end()));
  EXPECT_EQ(forty.slowest, 7U);
}

}  // namespace
}  // namespace pccl::fastest_ring_test
