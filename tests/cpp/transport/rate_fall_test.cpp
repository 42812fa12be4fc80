#include "transport/rate_fall.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

constexpr std::uint64_t kFallLookMs = 50;
constexpr std::uint64_t kFast = 100'000'000;  // bytes a second
constexpr std::uint64_t kSlow = kFast / 100;

/// A link that is looked at.
struct FallingLink {
  /// Moves so fast for so long, while data wait; returns what was said last.
  std::optional<RateFall::Fall> move(std::uint64_t rate, std::uint64_t ms) {
    std::optional<RateFall::Fall> said;
    for (std::uint64_t passed = 0; passed < ms; passed += kFallLookMs) {
      now_ms += kFallLookMs;
      arrived += rate * kFallLookMs / 1000;
      process += (rate + elsewhere) * kFallLookMs / 1000;
      if (!waits) waits_since_ms = now_ms;
      if (auto fall = falls.look({now_ms, waits_since_ms, arrived, process, held})) {
        said = fall;
        ++count;
      }
    }
    return said;
  }
  /// Nobody looks at an idle link.
  void rest(std::uint64_t ms) {
    now_ms += ms;
    waits_since_ms = now_ms;
  }

  RateFall falls;
  std::uint64_t now_ms = 1000;
  std::uint64_t waits_since_ms = 1000;
  std::uint64_t arrived = 0;
  std::uint64_t process = 0;
  std::uint64_t elsewhere = 0;  // bytes a second over other links
  bool waits = true;
  bool held = false;
  int count = 0;
};

TEST(RateFall, says_once_that_a_link_moves_far_less_than_before) {
  FallingLink link;
  EXPECT_FALSE(link.move(kFast, 20'000));
  EXPECT_FALSE(link.move(kSlow, 25'000)) << "a line may be bad for a while";
  const auto said = link.move(kSlow, 10'000);
  ASSERT_TRUE(said);
  EXPECT_GT(said->before, kFast / 2);
  EXPECT_LE(said->before, kFast);
  EXPECT_NEAR(static_cast<double>(said->now), kSlow, kSlow / 5.0);
  EXPECT_GE(said->for_ms, RateFall::kSlowMs);
  link.move(kSlow, RateFall::kAgainMs - 60'000);
  EXPECT_EQ(link.count, 1);
}

TEST(RateFall, says_so_again_when_the_line_has_been_as_fast_as_before) {
  FallingLink link;
  for (int i = 0; i < 3; ++i) {
    link.move(kFast, 10'000);
    link.move(kSlow, RateFall::kAgainMs);
  }
  EXPECT_EQ(link.count, 3);
}

TEST(RateFall, adds_up_the_slow_time_of_several_operations) {
  FallingLink link;
  link.move(kFast, 10'000);
  for (int i = 0; i < 10; ++i) {
    link.move(kSlow, 5'000);
    link.rest(20'000);
  }
  EXPECT_EQ(link.count, 1);
}

TEST(RateFall, says_nothing_of_a_line_that_is_a_little_slower) {
  FallingLink link;
  link.move(kFast, 20'000);
  link.move(kFast / 20, 300'000);
  EXPECT_EQ(link.count, 0);
}

TEST(RateFall, says_nothing_of_a_line_that_was_always_slow) {
  FallingLink link;
  link.move(kSlow, 300'000);
  EXPECT_EQ(link.count, 0);
}

TEST(RateFall, says_nothing_of_small_operations) {
  FallingLink link;
  link.move(kFast, 20'000);
  link.waits = false;
  link.move(kSlow, 300'000);
  EXPECT_EQ(link.count, 0);
}

TEST(RateFall, says_nothing_of_an_idle_link) {
  FallingLink link;
  link.move(kFast, 20'000);
  for (int i = 0; i < 100; ++i) {
    link.rest(60'000);
    link.move(kSlow, 900);
  }
  EXPECT_EQ(link.count, 0);
}

TEST(RateFall, says_nothing_of_a_peer_that_is_stopped_now_and_then) {
  FallingLink link;
  link.move(kFast, 20'000);
  for (int i = 0; i < 10; ++i) {
    link.move(0, 60'000);
    link.move(kFast, 5'000);
  }
  link.move(kSlow, 5'000);  // until the buffers there are full
  link.move(0, 300'000);
  EXPECT_EQ(link.count, 0);
}

TEST(RateFall, says_nothing_while_the_process_sends_under_its_rate) {
  FallingLink link;
  link.move(kFast, 20'000);
  link.held = true;
  link.move(kSlow, 300'000);
  EXPECT_EQ(link.count, 0);
}

TEST(RateFall, says_nothing_while_the_process_sends_over_its_other_links) {
  FallingLink link;
  link.move(kFast, 20'000);
  link.elsewhere = kFast - kSlow;
  link.move(kSlow, 300'000);
  EXPECT_EQ(link.count, 0);
}

TEST(RateFall, takes_no_lane_that_is_gone_for_a_slow_line) {
  FallingLink link;
  link.move(kFast, 20'000);
  for (int i = 0; i < 100; ++i) {
    link.arrived = 0;
    link.move(kFast, 3'000);
  }
  EXPECT_EQ(link.count, 0);
}

}  // namespace
}  // namespace pccl
