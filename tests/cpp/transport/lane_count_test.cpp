// The number of lanes on lines whose rate is a function of it.
#include "transport/lane_count.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace pccl {
namespace {

/// A line that carries `most` Mbit/s, and `each` over one connection.
struct PlayedLine {
  double most;
  double each;
  std::uint64_t round_trip_us = 80'000;
  double noise = 0;  // a window is so much faster or slower, at most
  bool by_losses = false;
  double lost = 1e-4;

  [[nodiscard]] double rate(std::size_t lanes) const {
    return std::min(most, each * static_cast<double>(lanes));
  }
};

struct Walk {
  /// Looks each 50 ms for so long.
  void busy(const PlayedLine& line, double seconds) {
    for (double at = 0; at < seconds; at += 0.05) {
      const double spread = 1 + line.noise * (static_cast<double>(random.below(2001)) / 1000.0 - 1);
      const double bytes = line.rate(count.wanted()) * spread / 8 * 50'000;
      const bool crowded = line.each * static_cast<double>(count.wanted()) >= line.most;
      static_cast<void>(
          count.look({.busy_us = 50'000,
                      .bytes = static_cast<std::uint64_t>(bytes),
                      .round_trip_us = line.round_trip_us,
                      .crowded = crowded,
                      .by_losses = line.by_losses,
                      .sent_bytes = static_cast<std::uint64_t>(bytes),
                      .resent_bytes = static_cast<std::uint64_t>(bytes * line.lost)}));
    }
  }
  /// The rate that the line gives for a while, as a part of the best.
  double share(const PlayedLine& line, double seconds) {
    double sum = 0;
    int times = 0;
    for (double at = 0; at < seconds; at += 0.05, ++times) {
      busy(line, 0.05);
      sum += line.rate(count.wanted());
    }
    return sum / times / line.rate(32);
  }

  LaneCount count{1, 32};
  Random random{1};
};

TEST(LaneCount, a_peer_that_takes_nothing_changes_no_number) {
  Walk walk;
  const PlayedLine stopped{.most = 0, .each = 0};
  walk.busy(stopped, 600);
  EXPECT_EQ(walk.count.wanted(), 1U);
  walk.busy({.most = 900, .each = 900}, 20);
  const std::size_t before = walk.count.wanted();
  walk.busy(stopped, 600);
  EXPECT_EQ(walk.count.wanted(), before);
}

TEST(LaneCount, a_line_that_one_connection_cannot_fill_gets_lanes_until_it_is_full) {
  for (const double each : {20.0, 100.0, 260.0, 600.0}) {
    Walk walk;
    walk.busy({.most = 1000, .each = each}, 15);
    EXPECT_GE(walk.share({.most = 1000, .each = each}, 60), 0.9) << each;
  }
}

TEST(LaneCount, a_line_that_one_connection_fills_keeps_one_lane_most_of_the_time) {
  Walk walk;
  int more = 0;
  for (int i = 0; i < 1000; ++i) {
    walk.busy({.most = 900, .each = 900}, 0.3);
    more += walk.count.wanted() > 1 ? 1 : 0;
  }
  EXPECT_LT(more, 250);
}

TEST(LaneCount, never_fewer_than_the_least_nor_more_than_the_most) {
  for (const double each : {1.0, 2000.0}) {
    Walk walk;
    walk.count = LaneCount(3, 5);
    for (int i = 0; i < 2000; ++i) {
      walk.busy({.most = 1000, .each = each}, 0.3);
      EXPECT_GE(walk.count.wanted(), 3U);
      EXPECT_LE(walk.count.wanted(), 5U);
    }
  }
}

TEST(LaneCount, lanes_that_do_not_help_any_more_go) {
  Walk walk;
  walk.busy({.most = 1000, .each = 30}, 30);
  EXPECT_EQ(walk.count.wanted(), 32U);
  walk.busy({.most = 1000, .each = 1000}, 600);
  EXPECT_LE(walk.count.wanted(), 8U);
}

TEST(LaneCount, a_line_that_is_not_full_gets_lanes_although_new_ones_are_slow_at_first) {
  Walk walk;
  const PlayedLine lossy{.most = 1000, .each = 20};
  for (int i = 0; i < 400; ++i) {  // each change of the number costs a while
    const std::size_t before = walk.count.wanted();
    walk.busy(lossy, 0.1);
    if (walk.count.wanted() != before) walk.busy({.most = 1000, .each = 20 * 0.7}, 1.7);
  }
  EXPECT_EQ(walk.count.wanted(), 32U);
}

TEST(LaneCount, lanes_go_where_something_else_than_the_line_is_the_limit) {
  LaneCount count(1, 128);
  std::size_t many = 0;
  for (int i = 0; i < 20 * 3600; ++i) {  // an hour; the line is never crowded
    static_cast<void>(count.look({50'000, 1'000'000, 80'000, false}));
    if (i > 20 * 1800 && count.wanted() > 32) ++many;
  }
  EXPECT_LT(many, 20U * 180);
}

TEST(LaneCount, no_more_than_a_full_line_has_packets_for) {
  LaneCount count(1, 128);
  Random random(1);
  const auto look = [&](double mbit, double seconds, bool full) {
    for (double at = 0; at < seconds; at += 0.05) {
      const double noise = 0.5 + static_cast<double>(random.below(1001)) / 1000;
      const auto bytes = static_cast<std::uint64_t>(noise * mbit / 8 * 50'000);
      static_cast<void>(count.look({50'000, bytes, 80'000, full, 128, full}));
    }
    return count.wanted();
  };
  std::size_t most = 0;
  for (int i = 0; i < 1000; ++i) most = std::max(most, look(4, 1, true));
  EXPECT_LE(most, 3U) << "4 Mbit/s and 80 ms: 40 kB";
  LaneCount another(1, 128);
  count = another;
  for (int i = 0; i < 60; ++i) look(4 * static_cast<double>(count.wanted()), 1, false);
  EXPECT_GT(count.wanted(), 64U) << "more lanes carry more, and it is not full";
  const std::size_t before = count.wanted();
  look(0.01, 1, true);
  EXPECT_EQ(count.wanted(), before) << "one window in which hardly anything arrives";
  look(4 * static_cast<double>(before), 5, false);
  EXPECT_LE(look(4, 30, true), 3U);
}

TEST(LaneCount, lanes_that_go_by_losses_are_at_once_as_many_as_may_fill_the_line) {
  // 1 Gbit/s and 80 ms hold 10 MB. Reno has 17.7 Mbit/s over a lane that loses one packet of
  // 10,000.
  const PlayedLine line{.most = 1000, .each = 17.7, .noise = 0.5, .by_losses = true};
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Walk walk;
    walk.count = LaneCount(1, 128);
    walk.random = Random(seed);
    walk.busy(line, 5);
    for (int i = 0; i < 600; ++i) {
      EXPECT_GE(walk.count.wanted(), 57U)
          << "enough to fill it, after " << 5 + i << " s of " << seed;
      walk.busy(line, 1);
    }
  }
}

TEST(LaneCount, lanes_that_go_by_losses_may_be_fewer_on_a_line_that_holds_little) {
  Walk walk;
  walk.count = LaneCount(1, 128);
  walk.busy({.most = 10, .each = 10, .by_losses = true}, 60);
  EXPECT_LE(walk.count.wanted(), 2U) << "10 Mbit/s and 80 ms hold 100 kB";
  walk.busy({.most = 1000, .each = 20, .by_losses = true}, 60);
  EXPECT_GE(walk.count.wanted(), 64U);
  walk.busy({.most = 10, .each = 10, .by_losses = true}, 900);
  EXPECT_LE(walk.count.wanted(), 8U);
}

TEST(LaneCount, lanes_by_losses_are_few_where_nothing_is_lost) {
  for (const double lost : {0.0, 1e-7}) {
    Walk walk;
    walk.count = LaneCount(1, 128);
    walk.busy(
        {.most = 25'000, .each = 25'000, .round_trip_us = 5'000, .by_losses = true, .lost = lost},
        600);
    EXPECT_LE(walk.count.wanted(), 8U) << lost << ": the line holds 16 MB";
  }
}

TEST(LaneCount, the_losses_of_the_first_slow_start_ask_for_no_lanes) {
  Walk walk;
  walk.count = LaneCount(1, 128);
  PlayedLine line{.most = 25'000, .each = 25'000, .round_trip_us = 5'000, .by_losses = true};
  line.lost = 0.01;
  walk.busy(line, 0.75);
  line.lost = 0;
  for (int i = 0; i < 600; ++i) {
    walk.busy(line, 0.1);
    ASSERT_LE(walk.count.wanted(), 8U) << i;
  }
}

TEST(LaneCount, no_more_lanes_by_losses_than_are_worth_a_trial) {
  Walk walk;
  walk.count = LaneCount(1, 128);
  for (int i = 0; i < 2000; ++i) {
    static_cast<void>(walk.count.look({.busy_us = 50'000,
                                       .bytes = 6'250'000,
                                       .round_trip_us = 80'000,
                                       .most = 5,
                                       .by_losses = true,
                                       .sent_bytes = 6'250'000,
                                       .resent_bytes = 6'250}));
    ASSERT_LE(walk.count.wanted(), 5U);
  }
}

TEST(LaneCount, as_many_as_are_worth_a_trial) {
  LaneCount count(1, 32);
  const auto look = [&](std::size_t most, double seconds) {
    for (double at = 0; at < seconds; at += 0.05) {
      static_cast<void>(count.look({50'000, 100'000 * count.wanted(), 80'000, false, most}));
    }
    return count.wanted();
  };
  EXPECT_EQ(look(8, 60), 8U);
  EXPECT_EQ(look(32, 60), 32U);
}

TEST(LaneCount, a_line_that_becomes_slow_and_comes_back_is_filled_again) {
  Walk walk;
  walk.busy({.most = 1000, .each = 100}, 60);
  walk.busy({.most = 10, .each = 1}, 60);
  EXPECT_GE(walk.share({.most = 10, .each = 1}, 60), 0.9);
  walk.busy({.most = 1000, .each = 100}, 60);
  EXPECT_GE(walk.share({.most = 1000, .each = 100}, 60), 0.9);
}

TEST(LaneCount, windows_that_are_uneven_make_no_line_slow) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Walk walk;
    walk.random = Random(seed);
    const PlayedLine line{.most = 1000, .each = 120, .noise = 0.5};
    walk.busy(line, 30);
    EXPECT_GE(walk.share(line, 120), 0.8) << seed;
  }
}

}  // namespace
}  // namespace pccl
