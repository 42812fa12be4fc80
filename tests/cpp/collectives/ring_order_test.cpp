#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "collectives/schedule.h"

namespace pccl {
namespace {

std::vector<std::uint32_t> rank_order(std::uint32_t n) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

std::size_t bad_neighbours(const std::vector<std::uint32_t>& order, const RankPairs& apart) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint32_t a = order[i];
    const std::uint32_t b = order[(i + 1) % order.size()];
    count += apart.count({std::min(a, b), std::max(a, b)});
  }
  return count;
}

TEST(RingOrder, is_rank_order_where_all_neighbours_have_a_link) {
  EXPECT_EQ(ring_order(rank_order(5), {}), (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(ring_order(rank_order(5), {{0, 2}, {1, 3}}),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(ring_order(rank_order(3), {{0, 1}}), (std::vector<std::uint32_t>{0, 1, 2}))
      << "there is no other";
  EXPECT_EQ(ring_order(rank_order(1), {}), std::vector<std::uint32_t>{0});
  EXPECT_TRUE(ring_order(rank_order(0), {}).empty());
}

TEST(RingOrder, changes_a_given_order_only_where_it_must) {
  const std::vector<std::uint32_t> given = {0, 3, 1, 4, 2};
  EXPECT_EQ(ring_order(given, {{0, 1}, {2, 3}}), given);
  const auto mended = ring_order(given, {{1, 3}});
  EXPECT_EQ(bad_neighbours(mended, {{1, 3}}), 0U);
  EXPECT_NE(mended, given);
}

TEST(RingOrder, goes_round_pairs_that_have_no_link) {
  for (std::uint32_t n = 4; n <= 12; ++n) {
    for (std::uint32_t a = 0; a < n; ++a) {
      const std::uint32_t b = (a + 1) % n;
      const RankPairs apart = {{std::min(a, b), std::max(a, b)}};
      EXPECT_EQ(bad_neighbours(ring_order(rank_order(n), apart), apart), 0U) << n << " " << a;
    }
  }
}

TEST(RingOrder, names_everybody_once_and_is_found_wherever_half_can_be_reached) {
  Random random(7);
  for (int i = 0; i < 3000; ++i) {
    const auto n = static_cast<std::uint32_t>(4 + random.below(20));
    RankPairs apart;
    std::vector<std::uint32_t> degree(n, n - 1);
    for (std::uint64_t tries = random.below(n * n); tries > 0; --tries) {
      const auto a = static_cast<std::uint32_t>(random.below(n));
      const auto b = static_cast<std::uint32_t>(random.below(n));
      if (a == b || 2 * (degree[a] - 1) < n || 2 * (degree[b] - 1) < n) continue;
      if (apart.emplace(std::min(a, b), std::max(a, b)).second) --degree[a], --degree[b];
    }
    const auto order = ring_order(rank_order(n), apart);
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted, rank_order(n));
    ASSERT_EQ(bad_neighbours(order, apart), 0U) << "n " << n << ", case " << i;
  }
}

TEST(RingOrder, ends_also_where_no_ring_exists) {
  RankPairs apart;  // 0 reaches 1 only
  for (std::uint32_t b = 2; b < 8; ++b) apart.emplace(0U, b);
  EXPECT_EQ(bad_neighbours(ring_order(rank_order(8), apart), apart), 1U);
}

}  // namespace
}  // namespace pccl
