// The pace of a link on lines that are played: BBR in little, many connections that each send as
// much as they have seen arrive, and a quarter more now and then.
#include "transport/line_pace.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pccl {
namespace {

constexpr double kLookS = 0.05;
constexpr std::uint64_t kTripUs = 80'000;

/// A line with a queue that drops what it cannot hold. Rates in bytes a second.
struct PlayedPace {
  /// The connections together would send `wish` if nothing held them. Returns the mean rate of what
  /// arrives.
  double run(double line, double wish, double seconds) {
    double arrived = 0;
    for (double at = 0; at < seconds; at += kLookS) {
      const double sends = limit == 0 ? wish : std::min<double>(wish, static_cast<double>(limit));
      const double lost_before = random_loss * sends * kLookS;
      const double came = std::min(line * kLookS, queue + sends * kLookS - lost_before);
      queue += sends * kLookS - lost_before - came;
      const double dropped = std::max(0.0, queue - line * queue_s);
      queue -= dropped;
      const double lost = lost_before + dropped;
      most_lost = std::max(most_lost, lost / (sends * kLookS));
      arrived += came;
      const auto trip_us = kTripUs + static_cast<std::uint64_t>(queue / line * 1e6) + jitter_us;
      limit = pace.look({static_cast<std::uint64_t>(kLookS * 1e6), static_cast<std::uint64_t>(came),
                         static_cast<std::uint64_t>(sends * kLookS),
                         static_cast<std::uint64_t>(lost), kTripUs, trip_us, by_losses});
    }
    return arrived / seconds;
  }
  LinePace pace;
  double queue_s = 0.05;
  double queue = 0;
  double most_lost = 0;
  std::uint64_t jitter_us = 0;
  bool by_losses = false;
  double random_loss = 0;
  std::uint64_t limit = 0;
};

TEST(LinePace, a_line_that_is_not_full_has_no_limit) {
  PlayedPace link;
  EXPECT_GT(link.run(125e6, 60e6, 30), 59.9e6);
  EXPECT_EQ(link.limit, 0U);
  EXPECT_FALSE(link.pace.crowded());
}

TEST(LinePace, connections_that_together_send_too_much_are_held_to_what_arrives) {
  PlayedPace link;
  link.run(125e6, 200e6, 2);
  EXPECT_GT(link.most_lost, 0.2) << "so much is lost where nothing holds them";
  link.most_lost = 0;
  EXPECT_GT(link.run(125e6, 200e6, 60), 0.97 * 125e6);
  EXPECT_LT(link.most_lost, 0.25);
  EXPECT_LT(static_cast<double>(link.limit), 1.3 * 125e6);
}

TEST(LinePace, a_line_that_becomes_faster_is_filled_again) {
  PlayedPace link;
  link.run(20e6, 200e6, 10);
  ASSERT_GT(link.limit, 0U);
  link.run(125e6, 200e6, 5);
  EXPECT_GT(link.run(125e6, 200e6, 10), 0.95 * 125e6);
}

TEST(LinePace, a_line_that_becomes_slower_is_not_flooded_for_long) {
  PlayedPace link;
  link.run(125e6, 200e6, 10);
  link.run(12e6, 200e6, 4);
  link.most_lost = 0;
  EXPECT_GT(link.run(12e6, 200e6, 20), 0.95 * 12e6);
  EXPECT_LT(link.most_lost, 0.25);
}

TEST(LinePace, a_round_trip_that_others_make_long_costs_little) {
  PlayedPace link;
  link.jitter_us = 60'000;
  link.run(125e6, 60e6, 5);
  EXPECT_GT(link.run(125e6, 60e6, 300), 0.95 * 60e6);
  EXPECT_TRUE(link.pace.crowded());
  link.run(125e6, 200e6, 60);
  EXPECT_GT(link.run(125e6, 200e6, 10), 0.9 * 125e6) << "and more is found";
}

TEST(LinePace, losses_and_queues_of_others_cost_no_rate) {
  for (const double loss : {0.0, 0.01, 0.02, 0.035, 0.05, 0.1, 0.15}) {
    for (const std::uint64_t jitter_us : {0U, 30'000U}) {
      PlayedPace link;
      link.random_loss = loss;
      link.jitter_us = jitter_us;
      link.run(125e6, 60e6, 600);
      EXPECT_GT(link.run(125e6, 60e6, 60), 0.85 * (1 - loss) * 60e6) << loss << " " << jitter_us;
    }
  }
}

TEST(LinePace, calls_that_are_short_against_the_round_trip_do_not_lower_the_limit) {
  constexpr double kLine = 12.5e6;
  constexpr std::uint64_t kLookUs = 50'000;
  for (const bool by_losses : {false, true}) {
    LinePace pace;
    for (int call = 0; call < 100; ++call) {
      for (std::uint64_t look = 1; look <= 4; ++look) {  // and then a pause
        // Nothing arrives in the first round trip, all that the line carries later.
        const std::uint64_t end_us = look * kLookUs;
        const std::uint64_t idle_us = kTripUs - std::min(kTripUs, end_us - kLookUs);
        const std::uint64_t carries_us = kLookUs - std::min(kLookUs, idle_us);
        const auto arrived =
            static_cast<std::uint64_t>(kLine * 1e-6 * static_cast<double>(carries_us));
        pace.look({kLookUs, arrived, arrived, 0, kTripUs, 2 * kTripUs, by_losses, end_us});
      }
    }
    EXPECT_GT(static_cast<double>(pace.limit()), 0.95 * kLine) << by_losses;
  }
}

TEST(LinePace, the_slow_start_of_connections_that_go_by_losses_is_not_held) {
  PlayedPace link;
  link.by_losses = true;
  link.run(1e6, 2e6, 0.7);  // the first of many overfills the queue
  EXPECT_EQ(link.limit, 0U);
  link.run(125e6, 100e6, 10);
  EXPECT_EQ(link.limit, 0U);
}

TEST(LinePace, what_arrives_lowers_no_limit_of_connections_by_losses_while_the_queue_is_empty) {
  PlayedPace link;
  link.by_losses = true;
  link.run(125e6, 200e6, 10);
  ASSERT_GT(static_cast<double>(link.limit), 0.9 * 125e6);
  link.run(125e6, 60e6, 3);
  const std::uint64_t before = link.limit;
  link.run(125e6, 1e6, 60);  // a receiver that is slow for a minute, or a process without a core
  EXPECT_GE(link.limit, before);
  EXPECT_GT(link.run(125e6, 120e6, 1), 0.95 * 120e6) << "and back at once";
}

TEST(LinePace, losses_of_the_line_hold_no_connections_that_go_by_losses) {
  for (const double loss : {0.01, 0.05, 0.15}) {
    PlayedPace link;
    link.by_losses = true;
    link.random_loss = loss;
    link.run(125e6, 60e6, 60);
    EXPECT_EQ(link.limit, 0U) << loss;
  }
}

TEST(LinePace, connections_that_go_by_losses_are_soon_as_fast_as_before_a_dip) {
  PlayedPace link;
  link.by_losses = true;
  link.run(125e6, 200e6, 10);
  link.run(1.25e6, 200e6, 10);
  EXPECT_LT(static_cast<double>(link.limit), 2e6);
  link.run(125e6, 200e6, 9);
  EXPECT_GT(link.run(125e6, 200e6, 2), 0.9 * 125e6);
}

TEST(LinePace, connections_that_losses_keep_small_get_a_limit_above_what_they_may_send) {
  PlayedPace link;
  link.by_losses = true;
  link.run(20e6, 200e6, 10);  // others' traffic, which ends
  link.run(125e6, 40e6, 100);
  EXPECT_GT(static_cast<double>(link.limit), 1.4 * 40e6);
}

TEST(LinePace, connections_that_go_by_losses_are_held_once_they_have_filled_a_line) {
  PlayedPace link;
  link.by_losses = true;
  link.run(125e6, 60e6, 10);
  EXPECT_EQ(link.limit, 0U);
  link.run(125e6, 200e6, 2);
  link.most_lost = 0;
  EXPECT_GT(link.run(125e6, 200e6, 60), 0.97 * 125e6);
  EXPECT_LT(link.most_lost, 0.1);
  for (int i = 0; i < 600; ++i) {  // losses have halved what they send: the queue stays empty
    link.run(125e6, 80e6, 0.1);
    EXPECT_GT(link.limit, 0U);
    EXPECT_LT(static_cast<double>(link.limit), 1.2 * 125e6);
  }
  EXPECT_GT(link.run(125e6, 80e6, 10), 0.99 * 80e6) << "and they may send what they have sent";
  EXPECT_GT(link.limit, 80e6);
  link.run(500e6, 600e6, 20);
  EXPECT_GT(link.run(500e6, 600e6, 10), 0.95 * 500e6) << "a line that becomes faster";
}

TEST(LinePace, nothing_that_arrives_is_no_news) {
  PlayedPace link;
  link.run(125e6, 200e6, 5);
  const auto nothing = [&] { return link.pace.look({50'000, 0, 0, 0, kTripUs, kTripUs}); };
  for (int i = 0; i < 10; ++i) link.limit = nothing();  // ends the window that had begun
  bool other = false;
  for (int i = 0; i < 100; ++i) other = nothing() != link.limit || other;
  EXPECT_FALSE(other);
  EXPECT_GT(link.limit, 0U);
}

}  // namespace
}  // namespace pccl
