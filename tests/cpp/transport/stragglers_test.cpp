// Whose slices go over other lanes as well: those of lanes that are stuck while others go on, and
// of the last ones at the end of an operation; of no others.
#include "transport/stragglers.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

using Places = std::vector<std::size_t>;
constexpr std::uint64_t kRttUs = 80'000;

LaneProgress stuck(std::uint64_t ms) { return {true, false, false, ms}; }
const LaneProgress kDrained{true, true, false, 0};

TEST(Stragglers, are_lanes_over_which_nothing_arrives_while_something_does_over_others) {
  const std::vector<LaneProgress> lanes = {stuck(0), stuck(1999), stuck(2000), stuck(9000)};
  EXPECT_EQ(stragglers(lanes, {kRttUs, 0}), (Places{2, 3}));
}

TEST(Stragglers, have_more_time_where_packets_need_longer) {
  EXPECT_EQ(stragglers(std::vector{stuck(0), stuck(3999), stuck(4000)}, {500'000, 0}), (Places{2}));
}

TEST(Stragglers, are_also_lanes_that_are_not_used_any_more_and_hold_something) {
  std::vector<LaneProgress> lanes = {stuck(0), stuck(3000)};
  lanes[1].used = false;
  EXPECT_EQ(stragglers(lanes, {kRttUs, 0}), (Places{1}));
}

TEST(Stragglers, at_the_end_are_those_for_which_half_of_the_lanes_wait) {
  const std::vector<LaneProgress> few = {kDrained, stuck(10), stuck(20)};
  std::vector<LaneProgress> half = {kDrained, stuck(10), kDrained, stuck(20)};
  EXPECT_EQ(stragglers(few, {kRttUs, 500}), Places{});
  EXPECT_EQ(stragglers(few, {kRttUs, 1999}), Places{});
  EXPECT_EQ(stragglers(few, {kRttUs, 2000}), (Places{1, 2})) << "a way of most lanes may be gone";
  EXPECT_EQ(stragglers(half, {kRttUs, 240}), (Places{1, 3}));
  EXPECT_EQ(stragglers(half, {kRttUs, 239}), Places{}) << "three round trips";
  EXPECT_EQ(stragglers(half, {1000, 199}), Places{}) << "200 ms at least";
  EXPECT_EQ(stragglers(half, {kRttUs, 0}), Places{}) << "slices wait for these lanes";
  half[1].held = true;
  EXPECT_EQ(stragglers(half, {kRttUs, 240}), Places{}) << "the rate of the process is the limit";
  half = {kDrained, stuck(10), kDrained, stuck(20)};
  half[0].used = half[2].used = false;
  EXPECT_EQ(stragglers(half, {kRttUs, 240}), Places{}) << "lanes that take no slices wait for none";
}

TEST(Stragglers, have_more_time_where_the_line_needs_it_for_what_is_under_way) {
  const std::vector<LaneProgress> half = {kDrained, stuck(10)};
  EXPECT_EQ(stragglers(half, {kRttUs, 240, 150}), (Places{1}));
  EXPECT_EQ(stragglers(half, {kRttUs, 1249, 1000}), Places{});
  EXPECT_EQ(stragglers(half, {kRttUs, 1250, 1000}), (Places{1}));
}

/// A look of 50 ms while slices wait.
TimeNeeded::Look waits(std::uint64_t arrived, std::size_t used, std::size_t sending) {
  return {
      .since_ms = 50, .arrived_bytes = arrived, .waits = true, .used = used, .sending = sending};
}

std::uint64_t needed(TimeNeeded& time, int looks, const TimeNeeded::Look& look) {
  std::uint64_t ms = 0;
  for (int i = 0; i < looks; ++i) ms = time.look(look);
  return ms;
}

TEST(TimeNeeded, is_that_of_the_bytes_under_way_at_the_rate_of_before) {
  TimeNeeded time;
  const auto ends = [&](std::uint64_t arrived, std::uint64_t under_way) {
    return static_cast<double>(time.look({.since_ms = 50,
                                          .arrived_bytes = arrived,
                                          .under_way_bytes = under_way,
                                          .ends = true,
                                          .used = 4,
                                          .sending = 4}));
  };
  EXPECT_EQ(ends(0, 400'000), 0) << "nothing is known yet";
  needed(time, 60, waits(25'000, 4, 4));  // 500 bytes a millisecond
  EXPECT_NEAR(ends(25'000, 400'000), 800, 5);
  needed(time, 100, waits(12'500, 4, 4));
  EXPECT_NEAR(ends(12'500, 400'000), 1600, 20);
  for (int i = 0; i < 100; ++i) {  // what arrives comes in bursts
    needed(time, 3, waits(0, 4, 4));
    needed(time, 1, waits(50'000, 4, 4));
  }
  EXPECT_NEAR(ends(12'500, 400'000), 1600, 40);
  EXPECT_EQ(ends(12'500, 100'000'000), TimeNeeded::kNeedsMsMax);
}

TEST(TimeNeeded, does_not_grow_while_dead_or_slow_lanes_are_waited_for) {
  for (const std::size_t used : {2U, 4U, 8U}) {
    TimeNeeded time;
    needed(time, 60, waits(25'000, used, used));
    TimeNeeded::Look look{.since_ms = 50, .used = used, .sending = used};
    look.under_way_bytes = 150'000 * used;
    look.ends = true;
    const std::uint64_t before = time.look(look);
    EXPECT_NEAR(static_cast<double>(before), 300.0 * static_cast<double>(used), 5);
    look.ends = false;
    for (std::size_t slow = 1; slow < used; ++slow) {
      look.sending = slow;
      for (const std::uint64_t arrived : {0U, 500U}) {
        look.arrived_bytes = arrived;
        EXPECT_EQ(needed(time, 200, look), before) << slow << " of " << used;
      }
    }
    look.sending = used;
    look.arrived_bytes = 0;
    EXPECT_EQ(needed(time, 200, look), before) << "the peer has stopped";
    look.since_ms = 5000;
    look.arrived_bytes = 10'000'000;
    EXPECT_EQ(needed(time, 1, look), before) << "a long gap";
  }
}

TEST(TimeNeeded, of_a_line_that_has_become_slow_while_nothing_was_sent_is_soon_right) {
  TimeNeeded time;
  needed(time, 200, waits(625'000, 4, 4));
  time.look({.since_ms = 3'600'000, .used = 4});
  needed(time, 20, waits(25'000, 4, 4));
  TimeNeeded::Look end = waits(25'000, 4, 4);
  end.under_way_bytes = 1'000'000;
  end.waits = false;
  end.ends = true;
  EXPECT_GT(time.look(end), 500U) << "of 2,000";
}

TEST(Stragglers, are_none_where_nothing_arrives_over_any_lane) {
  const std::vector<LaneProgress> lanes = {stuck(0), stuck(0), stuck(0)};
  EXPECT_EQ(stragglers(lanes, {kRttUs, 9000}), Places{}) << "the peer has stopped, or the line";
}

TEST(Stragglers, of_lanes_that_are_all_drained_are_none) {
  EXPECT_EQ(stragglers(std::vector{kDrained, kDrained}, {kRttUs, 10'000}), Places{});
  EXPECT_EQ(stragglers({}, {kRttUs, 10'000}), Places{});
}

}  // namespace
}  // namespace pccl
