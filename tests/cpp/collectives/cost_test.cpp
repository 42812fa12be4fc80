#include "collectives/cost.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace pccl {
namespace {

using By = AllReduceBy;
constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kMiB = 1U << 20;
const Lines kOcean{80'000, 80'000};  // between any two

Lines two_sites(std::uint32_t size) { return {80'000, 2 * 80'000 / size}; }

TEST(Cost, IsTheStepsAndTheBytesThatCross) {
  // Each rank has a line of its own.
  EXPECT_EQ(all_reduce_ns(By::exchange, 1000, 4, kOcean), 40 * kMs + 3 * 80000);
  EXPECT_EQ(all_reduce_ns(By::direct, 1000, 4, kOcean), 80 * kMs + 2 * 3 * 80000 / 4);
  EXPECT_EQ(all_reduce_ns(By::ring, 1000, 4, kOcean), 240 * kMs + 2 * 3 * 80000 / 4);
  // Two sites of three have one: the best ring crosses between them twice.
  const Lines kSites{80'000, 26'667};
  EXPECT_EQ(all_reduce_ns(By::exchange, 1000, 6, kSites), 40 * kMs + 9 * 80000);
  EXPECT_EQ(all_reduce_ns(By::direct, 6000, 6, kSites), 80 * kMs + 2 * 9 * 80000);
  EXPECT_EQ(all_reduce_ns(By::ring, 0, 6, kSites), 5 * 26'667'000);
  EXPECT_EQ(all_reduce_ns(By::ring, 18, 6, kSites), 10 * (13'333'500 + 3 * 80 / 3));
}

TEST(Cost, ARingSendsItsPartsBehindEachOther) {
  // Parts of less than a segment come step by step, larger ones are on their way meanwhile.
  const auto parts = [](std::uint64_t bytes) {
    return all_reduce_ns(By::ring, 4 * bytes, 4, {10'000, 10'000});
  };
  constexpr std::uint64_t kHop = 5 * kMs + kMiB * 80;
  constexpr std::uint64_t kRest = 60U << 10;
  EXPECT_EQ(parts(kMiB / 2), 6 * (5 * kMs + kMiB / 2 * 80));
  EXPECT_EQ(parts(kMiB), 6 * kHop);
  EXPECT_EQ(parts(kMiB + kRest), 6 * kHop + kRest * 80);
  EXPECT_EQ(parts(2 * kMiB), 6 * 2 * kMiB * 80 + kMiB * 80);
  EXPECT_EQ(parts(8 * kMiB), 6 * 8 * kMiB * 80 + kHop);
}

TEST(Cost, OfTwoAnExchangeHalvesTheTimeOfLittle) {
  EXPECT_EQ(fastest_all_reduce(4, 2, kOcean), By::exchange);
  EXPECT_EQ(fastest_all_reduce(2 * kMiB, 2, kOcean), By::exchange);
  EXPECT_EQ(fastest_all_reduce(64 * kMiB, 2, kOcean), By::exchange) << "a ring sends as much";
  EXPECT_EQ(fastest_all_reduce(64 * kMiB + 4, 2, kOcean), By::ring) << "more is not kept";
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
  EXPECT_EQ(fastest_all_reduce(4 * kMiB, 4, kOcean), By::direct);
  EXPECT_EQ(fastest_all_reduce(12 * kMiB, 4, kOcean), By::direct) << "over 1 Gbit/s it would win";
  EXPECT_EQ(fastest_all_reduce(32 * kMiB, 4, kOcean), By::ring);
  EXPECT_EQ(fastest_all_reduce(64 * kMiB, 64, kOcean), By::direct);
  EXPECT_EQ(fastest_all_reduce(64 * kMiB + 4, 64, kOcean), By::ring) << "more is not kept";
}

TEST(Cost, ARingWhoseNeighboursAreNearStaysForSmallerTensors) {
  EXPECT_EQ(fastest_all_reduce(1 * kMiB, 6, kOcean), By::direct);
  EXPECT_EQ(fastest_all_reduce(1 * kMiB, 6, {80'000, 27'000}), By::ring);
  EXPECT_EQ(fastest_all_reduce(kMiB / 8, 6, {80'000, 27'000}), By::direct);
  EXPECT_EQ(fastest_all_reduce(kMiB / 8, 6, {80'000, 0}), By::ring) << "a lie, and no harm";
}

TEST(Cost, HalvesOfAnAllReduceAreChosenAlike) {
  EXPECT_TRUE(direct_beats_ring(1 * kMiB, 4, kOcean));
  EXPECT_TRUE(direct_beats_ring(12 * kMiB, 4, kOcean));
  EXPECT_FALSE(direct_beats_ring(32 * kMiB, 4, kOcean));
  EXPECT_FALSE(direct_beats_ring(4 * kMiB, 4, {80'000, 40'000})) << "two sites, one line";
}

// Two sites, whose ranks are behind each other in the ring: only the last round of doubling is far.
TEST(Cost, OfTwoSitesDoublingCrossesOnceAndSendsLessThanAnExchange) {
  EXPECT_EQ(all_reduce_ns(By::doubling, 1000, 8, two_sites(8)),
            (40 * kMs + 4 * 80'000) + (40 * kMs + 4 * 80'000) / 80'000 * 2 * 20'000);
  EXPECT_EQ(fastest_all_reduce(4, 8, two_sites(8)), By::exchange);
  EXPECT_EQ(fastest_all_reduce(32U << 10, 8, two_sites(8)), By::doubling);
  EXPECT_EQ(fastest_all_reduce(16U << 10, 16, two_sites(16)), By::doubling);
  EXPECT_EQ(fastest_all_reduce(128U << 10, 8, two_sites(8)), By::direct) << "above its limit";
  EXPECT_EQ(all_reduce_ns(By::doubling, 64U << 10, 8, kOcean), ~0ULL);
  EXPECT_EQ(all_reduce_ns(By::doubling, 8, 6, kOcean),
            (40 * kMs + 640) + (40 * kMs + 640) / 80'000 * 3 * 80'000)
      << "two more rounds fold";
}

Lines with_sites(Lines lines, Sites sites) {
  lines.sites = std::move(sites);
  return lines;
}

TEST(Cost, WhereSitesAreKnownDoublingIsFarWhereItCrosses) {
  constexpr std::uint64_t kFar = 40 * kMs + 80;  // a byte on the line, from one rank
  const auto doubling = [](std::uint64_t bytes, Sites sites) {
    Lines lines = with_sites({80'000, 40'000}, std::move(sites));
    lines.near_us = 200;
    const auto size = static_cast<std::uint32_t>(lines.sites.size());
    return all_reduce_ns(By::doubling, bytes, size, lines);
  };
  EXPECT_EQ(doubling(0, {0, 0, 0, 0, 1, 1, 1, 1}), 40 * kMs + 2 * 100'000);
  EXPECT_EQ(doubling(0, {0, 1, 0, 1, 0, 1, 0, 1}), 40 * kMs + 2 * 100'000) << "the first round";
  EXPECT_EQ(doubling(0, {0, 0, 1, 1, 2, 2, 3, 3}), 2 * 40 * kMs + 100'000);
  EXPECT_EQ(doubling(0, {0, 0, 0, 1}), 2 * 40 * kMs);
  EXPECT_EQ(doubling(0, {0, 0, 0, 1, 1, 1}), 3 * 40 * kMs + 100'000) << "ranks 2 and 3 fold";
  EXPECT_EQ(doubling(0, {0, 0, 1, 1, 1, 1}), 2 * 40 * kMs + 2 * 100'000);
  EXPECT_EQ(doubling(1, {0, 0, 1, 1}), kFar + 80 + 100'000) << "two pairs cross";
}

TEST(Cost, SumsGoOutWhileTheLastPartOfADirectAllReduceStillComes) {
  const auto direct = [](std::uint64_t part_mib, const Lines& lines) {
    return all_reduce_ns(By::direct, 4 * part_mib * kMiB, 4, lines) - 2 * 3 * part_mib * kMiB * 80;
  };
  const Lines own{80'000, 80'000};
  EXPECT_EQ(direct(1, own), 80 * kMs) << "of one segment";
  EXPECT_EQ(direct(1, {20'000, 20'000}), 20 * kMs);
  EXPECT_EQ(direct(2, {400'000, 400'000}), 400 * kMs - kMiB * 80);
  EXPECT_EQ(direct(2, own), 40 * kMs) << "half of a trip at most";
  EXPECT_EQ(direct(16, own), 40 * kMs);
}

TEST(Cost, TwoLevelsCrossTheLineOnce) {
  const Lines halves = with_sites(two_sites(8), {0, 0, 0, 0, 1, 1, 1, 1});
  EXPECT_EQ(all_reduce_ns(By::two_levels, 1000, 8, two_sites(8)), ~0ULL) << "sites not known";
  EXPECT_EQ(all_reduce_ns(By::two_levels, 1000, 8, halves), 40 * kMs + 80'000);
  const Lines thirds = with_sites({80'000, 40'000}, {0, 0, 1, 1, 2, 2});
  EXPECT_EQ(all_reduce_ns(By::two_levels, 900, 6, thirds), 80 * kMs + 2 * 2 * 72'000 / 3);
  Lines near = with_sites({80'000, 20'500}, {0, 0, 0, 0, 0, 1, 1, 1});
  near.near_us = 600;
  EXPECT_EQ(all_reduce_ns(By::two_levels, 1000, 8, near), 4 * 600'000 + 40 * kMs + 80'000)
      << "four trips within the larger site";
  EXPECT_EQ(fastest_all_reduce(4, 8, halves), By::two_levels);
  for (std::uint64_t bytes = 4; bytes <= 4096 * kMiB; bytes *= 8) {
    EXPECT_EQ(fastest_all_reduce(bytes, 8, halves), By::two_levels) << bytes;
  }
}

TEST(Cost, OfLittleNoMoreStepsAreTakenThanByDoubling) {
  for (const Lines& lines : {Lines{2000, 2000}, Lines{2000, 300}, Lines{5000, 2500}, kOcean}) {
    for (std::uint32_t size = 2; size <= 300; ++size) {
      for (const std::uint64_t bytes : {4U, 1000U, 32U << 10, size * (2U << 10)}) {
        EXPECT_NE(fastest_all_reduce(bytes, size, lines), By::ring) << size << " ranks, " << bytes;
      }
    }
  }
}

TEST(Cost, ARootSendsLittleToAllItself) {
  for (const std::uint32_t size : {3U, 4U, 8U, 64U}) {
    EXPECT_TRUE(direct_beats_tree(1000, size, kOcean)) << size;
    EXPECT_FALSE(direct_beats_tree(4 * kMiB, size, kOcean)) << size;
  }
  EXPECT_FALSE(direct_beats_tree(4, 2, kOcean)) << "the same";
  EXPECT_FALSE(direct_beats_tree(128U << 10, 8, {80'000, 20'000})) << "a tree crosses once";
}

TEST(Cost, AMeasuredRateDecides) {
  const auto at = [](std::uint32_t mbit) { return Lines{80'000, 80'000, mbit}; };
  EXPECT_EQ(all_reduce_ns(By::exchange, 1000, 4, at(10)), 40 * kMs + 3 * 800'000);
  EXPECT_EQ(all_reduce_ns(By::direct, 1000, 4, at(10'000)), 80 * kMs + 2 * 3 * 800 / 4);
  EXPECT_EQ(all_reduce_ns(By::ring, kMiB, 4, at(100'000)),
            all_reduce_ns(By::ring, kMiB, 4, at(10'000)))
      << "of faster lines a core is the limit";
  // As where nothing is measured, but that more may be exchanged, and little may go round.
  for (const By by : {By::exchange, By::doubling, By::direct, By::ring}) {
    EXPECT_EQ(all_reduce_ns(by, 30'000, 4, at(100)), all_reduce_ns(by, 30'000, 4, kOcean));
  }
  EXPECT_EQ(fastest_all_reduce(5 * kMiB, 4, at(10'000)), By::exchange);
  EXPECT_EQ(fastest_all_reduce(6 * kMiB, 4, at(10'000)), By::direct) << "more is not kept";
  EXPECT_EQ(fastest_all_reduce(2 * kMiB, 4, at(10)), By::ring);
  EXPECT_EQ(fastest_all_reduce(kMiB, 4, at(100)), By::direct);
  EXPECT_EQ(fastest_all_reduce(4 * kMiB, 4, at(10'000)), By::exchange);
  EXPECT_EQ(fastest_all_reduce(128U << 10, 32, {5000, 2 * 5000 / 32, 10}), By::ring) << "one line";
  EXPECT_TRUE(direct_beats_ring(12 * kMiB, 4, at(1000)));
  EXPECT_FALSE(direct_beats_ring(12 * kMiB, 4, at(10)));
  EXPECT_TRUE(direct_beats_tree(4 * kMiB, 4, at(10'000)));
  EXPECT_FALSE(direct_beats_tree(512U << 10, 4, at(10)));
}

TEST(Cost, WhatItTakesFallsWithTheRateAndTheChoiceIsTheBestButATenth) {
  for (const std::uint32_t size : {2U, 3U, 8U, 33U, 300U}) {
    for (std::uint64_t bytes = 4; bytes < 1ULL << 32; bytes *= 4) {
      for (std::uint32_t mbit = 1; mbit < 100'000; mbit *= 3) {
        const Lines lines{20'000, 15'000, mbit};
        const auto ns = [&](By by) { return all_reduce_ns(by, bytes, size, lines); };
        const std::uint64_t chosen = ns(fastest_all_reduce(bytes, size, lines));
        for (const By by : {By::exchange, By::doubling, By::direct, By::ring}) {
          EXPECT_LE(chosen, ns(by) == ~0ULL ? ~0ULL : ns(by) + ns(by) / 10)
              << size << ", " << bytes;
          const Lines faster{20'000, 15'000, 2 * mbit};
          EXPECT_LE(all_reduce_ns(by, bytes, size, faster), ns(by));
        }
      }
    }
  }
}

TEST(Cost, NothingOverflows) {
  const Lines kMost{1'000'000, 1'000'000, 1};
  for (const std::uint32_t size : {2U, 1024U, static_cast<std::uint32_t>(kMembersMax)}) {
    for (const By by : {By::exchange, By::doubling, By::direct, By::ring}) {
      std::uint64_t last = 0;
      for (std::uint64_t bytes = 1; bytes != 0; bytes *= 2) {
        const std::uint64_t ns = all_reduce_ns(by, bytes, size, kMost);
        EXPECT_GE(ns, last) << size << " ranks, " << bytes;
        last = ns;
      }
    }
  }
}

}  // namespace
}  // namespace pccl
