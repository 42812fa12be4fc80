// Whose slices go over other lanes as well: those of lanes that are stuck while others go on, and
// of the last ones at the end of an operation; of no others.
#include "transport/stragglers.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

using Places = std::vector<std::size_t>;
constexpr std::uint64_t kTripUs = 80'000;

LaneProgress stuck(std::uint64_t ms) { return {true, false, false, ms}; }
const LaneProgress kDrained{true, true, false, 0};

TEST(Stragglers, are_lanes_over_which_nothing_arrives_while_something_does_over_others) {
  const std::vector<LaneProgress> lanes = {stuck(0), stuck(1999), stuck(2000), stuck(9000)};
  EXPECT_EQ(stragglers(lanes, {kTripUs, 0}), (Places{2, 3}));
}

TEST(Stragglers, have_more_time_where_packets_need_longer) {
  EXPECT_EQ(stragglers(std::vector{stuck(0), stuck(3999), stuck(4000)}, {500'000, 0}), (Places{2}));
}

TEST(Stragglers, are_also_lanes_that_are_not_used_any_more_and_hold_something) {
  std::vector<LaneProgress> lanes = {stuck(0), stuck(3000)};
  lanes[1].used = false;
  EXPECT_EQ(stragglers(lanes, {kTripUs, 0}), (Places{1}));
}

TEST(Stragglers, at_the_end_are_those_for_which_half_of_the_lanes_wait) {
  const std::vector<LaneProgress> few = {kDrained, stuck(10), stuck(20)};
  std::vector<LaneProgress> half = {kDrained, stuck(10), kDrained, stuck(20)};
  EXPECT_EQ(stragglers(few, {kTripUs, 500}), Places{});
  EXPECT_EQ(stragglers(few, {kTripUs, 1999}), Places{});
  EXPECT_EQ(stragglers(few, {kTripUs, 2000}), (Places{1, 2})) << "a way of most lanes may be gone";
  EXPECT_EQ(stragglers(half, {kTripUs, 240}), (Places{1, 3}));
  EXPECT_EQ(stragglers(half, {kTripUs, 239}), Places{}) << "three round trips";
  EXPECT_EQ(stragglers(half, {1000, 199}), Places{}) << "200 ms at least";
  EXPECT_EQ(stragglers(half, {kTripUs, 0}), Places{}) << "slices wait for these lanes";
  half[1].held = true;
  EXPECT_EQ(stragglers(half, {kTripUs, 240}), Places{}) << "the rate of the process is the limit";
  half = {kDrained, stuck(10), kDrained, stuck(20)};
  half[0].used = half[2].used = false;
  EXPECT_EQ(stragglers(half, {kTripUs, 240}), Places{})
      << "lanes that take no slices wait for none";
}

TEST(Stragglers, have_more_time_where_the_line_needs_it_for_what_is_under_way) {
  const std::vector<LaneProgress> half = {kDrained, stuck(10)};
  EXPECT_EQ(stragglers(half, {kTripUs, 240, 150}), (Places{1}));
  EXPECT_EQ(stragglers(half, {kTripUs, 1249, 1000}), Places{});
  EXPECT_EQ(stragglers(half, {kTripUs, 1250, 1000}), (Places{1}));
}

/// Looks each 50 ms while so much arrives.
std::uint64_t needed(TimeNeeded& time, int looks, const TimeNeeded::Look& look) {
  std::uint64_t ms = 0;
  for (int i = 0; i < looks; ++i) ms = time.look(look);
  return ms;
}

TEST(TimeNeeded, is_that_of_the_bytes_under_way_at_the_rate_of_before) {
  TimeNeeded time;
  EXPECT_EQ(time.look({50, 0, 400'000, true, 4, 4}), 0U) << "nothing is known yet";
  needed(time, 20, {50, 25'000, 0, false, 4, 4});  // 500 bytes a millisecond
  EXPECT_NEAR(static_cast<double>(time.look({50, 25'000, 400'000, true, 4, 4})), 800, 1);
  needed(time, 100, {50, 12'500, 0, false, 4, 4});
  EXPECT_NEAR(static_cast<double>(time.look({50, 12'500, 400'000, true, 4, 4})), 1600, 20);
  EXPECT_EQ(time.look({50, 12'500, 100'000'000, true, 4, 4}), TimeNeeded::kNeedsMsMax);
}

TEST(TimeNeeded, does_not_grow_while_dead_lanes_are_waited_for) {
  for (const std::size_t used : {2U, 4U, 8U}) {
    TimeNeeded time;
    needed(time, 20, {50, 25'000, 0, false, used, used});
    const std::uint64_t before = time.look({50, 25'000, 150'000 * used, true, used, used});
    EXPECT_EQ(needed(time, 200, {50, 0, 0, false, used, used / 2}), before);
    EXPECT_EQ(needed(time, 200, {50, 100, 0, false, used, used / 2 - 1}), before) << "few trickle";
    EXPECT_EQ(needed(time, 1, {5000, 10'000'000, 0, false, used, used}), before) << "a long gap";
  }
}

TEST(Stragglers, are_none_where_nothing_arrives_over_any_lane) {
  const std::vector<LaneProgress> lanes = {stuck(0), stuck(0), stuck(0)};
  EXPECT_EQ(stragglers(lanes, {kTripUs, 9000}), Places{}) << "the peer has stopped, or the line";
}

TEST(Stragglers, of_lanes_that_are_all_drained_are_none) {
  EXPECT_EQ(stragglers(std::vector{kDrained, kDrained}, {kTripUs, 10'000}), Places{});
  EXPECT_EQ(stragglers({}, {kTripUs, 10'000}), Places{});
}

}  // namespace
}  // namespace pccl
