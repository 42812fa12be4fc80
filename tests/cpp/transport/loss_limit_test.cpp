// Lines of some rate, round trip and loss, and what a connection that goes by losses gets of them.
#include "transport/loss_limit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pccl {
namespace {

constexpr std::uint64_t kPacket = 1448;

/// A look of 50 ms; `rate` in Mbit/s.
LossLimit::Look look_at(double rate, double lost, std::uint64_t trip_us, std::uint64_t lanes = 1) {
  const double bytes = rate / 8 * 50'000;
  return {.busy_us = 50'000,
          .bytes = static_cast<std::uint64_t>(bytes),
          .sent_bytes = static_cast<std::uint64_t>(bytes * (1 + lost)),
          .resent_bytes = static_cast<std::uint64_t>(bytes * lost),
          .least_trip_us = trip_us,
          .packet_bytes = kPacket,
          .lanes = lanes};
}

bool limits_after(const LossLimit::Look& look, double seconds, LossLimit limit = {}) {
  for (double at = 0; at < seconds; at += 0.05) limit.look(look);
  return limit.limits();
}

TEST(LossLimit, losses_limit_what_carries_as_little_as_the_formula_says) {
  for (const double lost : {1e-4, 1e-3, 1e-2}) {
    for (const std::uint64_t trip_us : {1000U, 2000U, 4000U}) {
      const double formula =
          1.22 * kPacket * 8 / std::sqrt(lost) / static_cast<double>(trip_us);  // Mbit/s
      EXPECT_TRUE(limits_after(look_at(0.6 * formula, lost, trip_us), 4)) << lost << " " << trip_us;
      EXPECT_FALSE(limits_after(look_at(0.1 * formula, lost, trip_us), 4)) << "the line is slow";
    }
  }
}

TEST(LossLimit, the_formula_is_for_each_connection) {
  const LossLimit::Look look = look_at(600, 1e-4, 1000);
  EXPECT_TRUE(limits_after(look, 4));
  EXPECT_FALSE(limits_after(look_at(600, 1e-4, 1000, 8), 4));
}

TEST(LossLimit, a_line_that_loses_nothing_is_not_limited_by_losses) {
  EXPECT_FALSE(limits_after(look_at(900, 0, 4000), 10));
}

TEST(LossLimit, a_short_line_whose_long_queue_overflows_now_and_then_is_not_limited) {
  EXPECT_FALSE(limits_after(look_at(955, 1.2e-4, 100), 10));
}

TEST(LossLimit, a_fast_line_is_left_alone) {
  EXPECT_TRUE(limits_after(look_at(2'000, 1e-4, 1000), 10));
  EXPECT_FALSE(limits_after(look_at(10'000, 1e-4, 1000), 10));
}

TEST(LossLimit, a_peer_that_takes_nothing_for_a_while_says_nothing) {
  LossLimit limit;
  for (int i = 0; i < 100; ++i) limit.look(look_at(280, 1e-3, 1000));
  for (int i = 0; i < 100; ++i) limit.look(look_at(0, 0, 1000));
  EXPECT_TRUE(limit.limits());
}

TEST(LossLimit, the_first_seconds_say_nothing) {
  EXPECT_FALSE(limits_after(look_at(280, 1e-3, 1000), 2.5));
}

TEST(LossLimit, what_was_lost_long_ago_does_not_count) {
  LossLimit limit;
  for (int i = 0; i < 100; ++i) limit.look(look_at(280, 1e-3, 1000));
  ASSERT_TRUE(limit.limits());
  EXPECT_FALSE(limits_after(look_at(280, 0, 1000), 30, limit));
}

TEST(LossLimit, a_look_without_anything_that_was_sent_is_no_division_by_nothing) {
  EXPECT_FALSE(limits_after({.busy_us = 50'000}, 10));
}

}  // namespace
}  // namespace pccl
