#include "transport/rate_cap.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "base/random.h"

namespace pccl {
namespace {

constexpr std::uint64_t kRate = 10'000'000;
constexpr std::uint64_t kStartMs = 5000;

TEST(RateCap, gives_a_burst_and_then_the_rate) {
  RateCap cap(kRate, kStartMs);
  EXPECT_EQ(cap.level(kStartMs), 1'000'000);
  cap.took(1'000'000);
  EXPECT_EQ(cap.level(kStartMs), 0);
  EXPECT_EQ(cap.level(kStartMs + 1), 10'000);
  EXPECT_EQ(cap.level(kStartMs + 50), 500'000);
}

TEST(RateCap, saves_no_more_than_a_burst) {
  RateCap cap(kRate, kStartMs);
  EXPECT_EQ(cap.level(kStartMs + 1'000'000'000), 1'000'000);
  cap.took(2'000'000);
  EXPECT_EQ(cap.level(~std::uint64_t{0}), 1'000'000);
}

TEST(RateCap, a_slow_one_lets_a_whole_slice_go) {
  RateCap cap(1, kStartMs);
  EXPECT_EQ(cap.level(kStartMs), static_cast<std::int64_t>(kSliceBytes));
  cap.took(kSliceBytes);
  EXPECT_EQ(cap.level(kStartMs + 2000), 2);
  EXPECT_EQ(RateCap(1, 0).grain(), 4096U);
  EXPECT_EQ(RateCap(1ULL << 40, 0).grain(), 16384U);
}

TEST(RateCap, debt_is_paid_first_and_beyond_a_second_it_is_forgiven) {
  RateCap cap(kRate, kStartMs);
  cap.took(3'000'000);
  EXPECT_EQ(cap.level(kStartMs), -2'000'000);
  EXPECT_EQ(cap.level(kStartMs + 200), 0);
  cap.took(~std::uint64_t{0});
  EXPECT_EQ(cap.level(kStartMs + 200), -10'000'000);
  EXPECT_EQ(cap.level(kStartMs + 1200), 0);
}

TEST(RateCap, a_clock_that_goes_back_fills_nothing) {
  RateCap cap(kRate, kStartMs);
  cap.took(1'000'000);
  EXPECT_EQ(cap.level(kStartMs - 1000), 0);
  EXPECT_EQ(cap.level(kStartMs), 0);
}

TEST(RateCap, whatever_is_taken_when_no_second_has_more_than_the_rate_and_a_burst) {
  for (const std::uint64_t rate : {70'000ULL, 1'048'576ULL, 999'999'937ULL, 1ULL << 50}) {
    Random random(rate);
    RateCap cap(rate, 0);
    std::uint64_t now = 0;
    std::uint64_t sent = 0;
    for (int i = 0; i < 20000; ++i) {
      now += random.below(30);
      const std::int64_t level = cap.level(now);
      if (level <= 0) continue;
      const std::uint64_t bytes = 1 + random.below(static_cast<std::uint64_t>(level));
      cap.took(bytes);
      sent += bytes;
      const std::uint64_t burst = std::max<std::uint64_t>(rate / 10, kSliceBytes);
      ASSERT_LE(sent, burst + rate / 1000 * now + rate % 1000 * now / 1000 + 1);
    }
    EXPECT_GT(sent, rate / 1000 * now / 2);
  }
}

}  // namespace
}  // namespace pccl
