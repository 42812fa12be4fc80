// Whose slices go over other lanes as well: those of lanes that are stuck while others go on, and
// of the last ones at the end of an operation; of no others.
#include "transport/stragglers.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

using Places = std::vector<std::size_t>;
constexpr std::uint64_t kNow = 100'000;
constexpr std::uint64_t kTripUs = 80'000;

LaneProgress moved(std::uint64_t ago_ms) { return {false, kNow - ago_ms}; }
const LaneProgress kDrained{true, kNow};

TEST(Stragglers, are_lanes_over_which_nothing_arrives_while_something_does_over_others) {
  const std::vector<LaneProgress> lanes = {moved(10), moved(1900), moved(2000), moved(9000)};
  EXPECT_EQ(stragglers(lanes, kNow, kTripUs, 0), (Places{2, 3}));
}

TEST(Stragglers, have_more_time_where_packets_need_longer) {
  const std::vector<LaneProgress> lanes = {moved(10), moved(3900), moved(4000)};
  EXPECT_EQ(stragglers(lanes, kNow, 500'000, 0), (Places{2}));
}

TEST(Stragglers, are_none_where_nothing_arrives_over_any_lane) {
  const std::vector<LaneProgress> lanes = {moved(5000), moved(9000), moved(1000)};
  EXPECT_EQ(stragglers(lanes, kNow, kTripUs, 0), Places{}) << "the peer has stopped, or the line";
  EXPECT_EQ(stragglers(lanes, kNow, kTripUs, kNow - 9000), Places{});
}

TEST(Stragglers, at_the_end_are_those_for_which_half_of_the_lanes_wait) {
  const std::vector<LaneProgress> few = {kDrained, moved(10), moved(20)};
  const std::vector<LaneProgress> half = {kDrained, moved(10), kDrained, moved(20)};
  EXPECT_EQ(stragglers(few, kNow, kTripUs, kNow - 500), Places{});
  EXPECT_EQ(stragglers(half, kNow, kTripUs, kNow - 240), (Places{1, 3}));
  EXPECT_EQ(stragglers(half, kNow, kTripUs, kNow - 239), Places{}) << "three round trips";
  EXPECT_EQ(stragglers(half, kNow, 1000, kNow - 199), Places{}) << "200 ms at least";
  EXPECT_EQ(stragglers(half, kNow, kTripUs, 0), Places{}) << "slices wait for these lanes";
}

TEST(Stragglers, of_lanes_that_are_all_drained_are_none) {
  EXPECT_EQ(stragglers(std::vector{kDrained, kDrained}, kNow, kTripUs, 1), Places{});
  EXPECT_EQ(stragglers({}, kNow, kTripUs, 1), Places{});
}

}  // namespace
}  // namespace pccl
