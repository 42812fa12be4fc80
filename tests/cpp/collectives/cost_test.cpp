#include "collectives/cost.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

using By = AllReduceBy;
constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kMiB = 1U << 20;
constexpr Trips kOcean{80'000, 80'000};  // between any two

TEST(Cost, IsTheStepsAndTheBytesThatCross) {
  EXPECT_EQ(all_reduce_ns(By::exchange, 1000, 4, kOcean), 40 * kMs + 4 * 80000);
  EXPECT_EQ(all_reduce_ns(By::direct, 1000, 4, kOcean), 80 * kMs + 2 * 80000);
  EXPECT_EQ(all_reduce_ns(By::ring, 1000, 4, kOcean), 240 * kMs + 2 * 3 * 80000 / 4);
  // Two sites of three: the best ring crosses between them twice.
  EXPECT_EQ(all_reduce_ns(By::ring, 0, 6, {80'000, 27'000}), 5 * 27 * kMs);
}

TEST(Cost, OfTwoAnExchangeHalvesTheTimeOfLittle) {
  EXPECT_EQ(fastest_all_reduce(4, 2, kOcean), By::exchange);
  EXPECT_EQ(fastest_all_reduce(3 * kMiB, 2, kOcean), By::exchange);
  EXPECT_EQ(fastest_all_reduce(4 * kMiB + 4, 2, kOcean), By::ring) << "direct would be the same";
}

TEST(Cost, TheMoreBytesTheFewerTimesTheyCross) {
  for (const std::uint32_t size : {3U, 4U, 5U, 8U, 16U, 64U, 256U}) {
    By last = By::exchange;
    for (std::uint64_t bytes = 4; bytes < 1ULL << 34; bytes *= 2) {
      const By best = fastest_all_reduce(bytes, size, kOcean);
      EXPECT_GE(best, last) << size << " ranks, " << bytes;
      last = best;
    }
    EXPECT_EQ(last, By::ring) << size;
  }
  EXPECT_EQ(fastest_all_reduce(kMiB / 8, 4, kOcean), By::exchange);
  EXPECT_EQ(fastest_all_reduce(1 * kMiB, 4, kOcean), By::direct);
  EXPECT_EQ(fastest_all_reduce(4 * kMiB, 4, kOcean), By::ring);
}

TEST(Cost, ARingWhoseNeighboursAreNearStaysForSmallerTensors) {
  EXPECT_EQ(fastest_all_reduce(1 * kMiB, 6, kOcean), By::direct);
  EXPECT_EQ(fastest_all_reduce(1 * kMiB, 6, {80'000, 27'000}), By::ring);
  EXPECT_EQ(fastest_all_reduce(kMiB / 8, 6, {80'000, 27'000}), By::direct);
  EXPECT_EQ(fastest_all_reduce(4, 6, {80'000, 0}), By::ring) << "a lie, and no harm";
}

TEST(Cost, HalvesOfAnAllReduceAreChosenAlike) {
  EXPECT_TRUE(direct_half_is_faster(1 * kMiB, 4, kOcean));
  EXPECT_FALSE(direct_half_is_faster(4 * kMiB, 4, kOcean));
}

TEST(Cost, NothingOverflows) {
  constexpr Trips kMost{~0U, ~0U};
  for (const std::uint32_t size : {2U, 1024U}) {
    const std::uint64_t ring = all_reduce_ns(By::ring, ~0ULL, size, kMost);
    EXPECT_GT(ring, all_reduce_ns(By::ring, 1, size, kMost));
    EXPECT_GT(all_reduce_ns(By::direct, ~0ULL, size, kMost),
              all_reduce_ns(By::direct, 1, size, kMost));
    EXPECT_EQ(all_reduce_ns(By::exchange, ~0ULL, size, kMost), ~0ULL);
  }
}

}  // namespace
}  // namespace pccl
