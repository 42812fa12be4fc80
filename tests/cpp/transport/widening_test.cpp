#include "transport/widening.h"

#include <gtest/gtest.h>

#include "support.h"

namespace pccl {
namespace {

/// A link over which each lane carries so much for each look.
struct PlayedLoad {
  explicit PlayedLoad(bool dials, std::size_t short_line_lanes = 1, bool model = true)
      : widening(loop, {.dials = dials, .short_line_lanes = short_line_lanes, .model = model},
                 {[this] { return next(); }, [this](std::uint64_t) { ++mended; },
                  [this](std::size_t lanes) { used = lanes; },
                  [this](bool by_model) { load.line.by_model = by_model && has_model; },
                  [this](std::size_t more) {
                    dialled += more;
                    largest = std::max(largest, more);
                    if (!joins) return;
                    load.lanes += more;
                    widening.joined();
                  },
                  [this](std::uint64_t rate) { pace = rate; }}) {}
  LinkLoad next() {
    ++looks;
    const std::uint64_t bytes = 1'000'000 * std::min(used, load.lanes);
    load.delivered += bytes;
    load.line.arrived_bytes += bytes;
    load.line.sent_bytes += bytes;
    if (holds) ++load.holds;
    load.line.resent_bytes += static_cast<std::uint64_t>(resends * static_cast<double>(bytes));
    return load;
  }
  bool until(const std::function<bool()>& done) { return test::run_until(loop, done, 20000); }

  Loop loop;
  LinkLoad load{.sends = true, .full = true, .line = {.least_trip_us = 3000}, .lanes = 1};
  std::size_t used = 1;
  std::size_t dialled = 0;
  std::size_t largest = 0;  // number that was dialled at once
  std::size_t looks = 0;
  std::size_t mended = 0;
  std::uint64_t pace = 0;
  double resends = 0;  // of what is sent
  bool joins = true;
  bool has_model = false;  // the system lets the lanes go by one
  bool holds = false;      // a lane waits for its turn between two looks
  Widening widening;
};

TEST(Widening, dials_lanes_while_a_long_link_is_full) {
  PlayedLoad link(true);
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.used == 4; }));
  EXPECT_EQ(link.dialled, 3U);
  EXPECT_EQ(link.load.lanes, 4U);
}

TEST(Widening, dials_a_lane_for_each_thread_once_a_short_link_has_carried_64_mib) {
  for (const std::size_t threads : {1U, 4U}) {
    PlayedLoad link(true, threads);
    link.load.line.least_trip_us = 50;
    link.load.full = false;  // bursts
    link.widening.wake();
    ASSERT_TRUE(link.until([&] { return link.looks > 5; }));
    EXPECT_EQ(link.dialled, 0U);
    link.load.delivered += 60U << 20;
    ASSERT_TRUE(link.until([&] { return link.looks > 15; }));
    EXPECT_EQ(link.dialled, threads - 1);
    EXPECT_EQ(link.used, 1U) << "it is not told how many, and so cuts no slices";
    EXPECT_EQ(link.pace, 0U);
  }
}

TEST(Widening, holds_connections_to_what_a_crowded_line_carries_those_by_losses_from_5_ms_on) {
  struct Case {
    bool by_model;
    std::uint64_t trip_us;
    bool held;
  };
  for (const Case& at :
       {Case{true, 3000, true}, Case{false, 3000, false}, Case{false, 5000, true}}) {
    PlayedLoad link(true);
    link.load.line.by_model = at.by_model;
    link.load.line.least_trip_us = at.trip_us;
    link.load.line.trip_us = at.trip_us + 10'000;  // a queue
    link.load.waits = true;
    link.widening.wake();
    ASSERT_TRUE(link.until([&] { return link.looks > 20; }));
    EXPECT_EQ(link.pace > 0, at.held) << at.by_model << " " << at.trip_us;
  }
}

TEST(Widening, wants_no_lanes_that_cannot_be_had_where_losses_ask_for_many) {
  PlayedLoad link(true);
  link.joins = false;
  link.load.line.least_trip_us = link.load.line.trip_us = 80'000;
  link.widening.refused();
  link.widening.wake();
  std::size_t changes = 0;
  std::size_t before = link.used;
  ASSERT_TRUE(link.until([&] {
    if (std::exchange(before, link.used) != link.used) ++changes;
    return link.looks > 60;
  }));
  EXPECT_EQ(changes, 0U);
  EXPECT_EQ(link.dialled, 0U);
  EXPECT_EQ(link.used, 1U);
}

TEST(Widening, holds_a_link_to_nothing_that_has_no_more_to_send_than_its_lanes_take) {
  PlayedLoad link(true);
  link.load.line.by_model = true;
  link.resends = 0.1;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.looks > 20; }));
  EXPECT_EQ(link.pace, 0U);
  link.load.waits = true;
  ASSERT_TRUE(link.until([&] { return link.pace > 0; }));
  link.load.line.least_trip_us = 100;  // another way, a short one
  ASSERT_TRUE(link.until([&] { return link.pace == 0; }));
}

TEST(Widening, lanes_that_cannot_be_had_are_no_part_of_a_trial) {
  PlayedLoad link(true);
  link.joins = false;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.dialled == 3; }));
  EXPECT_EQ(link.used, 4U);
  link.widening.refused();
  ASSERT_TRUE(link.until([&] { return link.used == 1; }));
}

TEST(Widening, dials_32_lanes_at_a_time) {
  PlayedLoad link(true);
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.used == 64; }));
  ASSERT_TRUE(link.until([&] { return link.load.lanes == 64; }));
  EXPECT_LE(link.largest, 32U);
}

TEST(Widening, asks_for_no_more_lanes_while_the_process_sends_under_its_rate) {
  for (const bool always : {true, false}) {
    PlayedLoad link(true);
    link.load.line.by_model = true;
    link.load.waits = true;
    link.load.held = always;
    link.holds = !always;  // a lane has waited, and does not at the moment
    link.resends = 0.1;
    link.widening.wake();
    ASSERT_TRUE(link.until([&] { return link.looks > 60; }));
    EXPECT_EQ(link.used, 1U);
    EXPECT_EQ(link.dialled, 0U);
    EXPECT_EQ(link.pace, 0U) << "what the line carries is not known";
    link.load.held = link.holds = false;
    link.resends = 0;
    ASSERT_TRUE(link.until([&] { return link.used == 4; }));
  }
}

TEST(Widening, looks_only_while_the_link_sends) {
  PlayedLoad link(true);
  link.load.sends = link.load.full = false;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.looks == 2; }));
  EXPECT_FALSE(test::run_until(link.loop, [&] { return link.looks > 2; }, 300));
  link.widening.wake();
  EXPECT_EQ(link.looks, 3U);
}

TEST(Widening, the_side_that_was_dialled_waits_for_the_other_one_first) {
  PlayedLoad link(false);
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.used == 4; }));
  EXPECT_EQ(link.dialled, 0U);
  ASSERT_TRUE(link.until([&] { return link.dialled == 3; }));
}

TEST(Widening, the_side_that_was_dialled_tries_one_lane_before_it_dials_several) {
  PlayedLoad link(false);
  link.joins = false;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.dialled > 0; }));
  link.load.joining = 1;
  const std::size_t looks = link.looks;
  ASSERT_TRUE(link.until([&] { return link.looks > looks + 5; }));
  EXPECT_EQ(link.dialled, 1U);
}

TEST(Widening, a_lane_that_was_lost_is_dialled_anew_after_a_second) {
  PlayedLoad link(true);
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.used == 4 && link.load.lanes == 4; }));
  --link.load.lanes;
  link.widening.lost();
  const test::Stopwatch watch;
  ASSERT_TRUE(link.until([&] { return link.load.lanes >= 4; }));
  EXPECT_GE(watch.ms(), 900);
}

TEST(Widening, leaves_a_short_link_alone) {
  PlayedLoad link(true);
  link.load.line.least_trip_us = 100;
  link.load.lanes = 5;
  link.used = 5;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.looks > 30; }));
  EXPECT_EQ(link.used, 5U);
  EXPECT_EQ(link.dialled, 0U);
}

/// Of 1 ms; 160 Mbit/s arrive, and a packet of ten is lost.
void be_short_and_lossy(PlayedLoad& link) {
  link.load.line.least_trip_us = 1000;
  link.load.line.packet_bytes = 1448;
  link.resends = 0.1;
}

TEST(Widening, goes_by_a_model_where_losses_are_the_limit_of_a_short_link) {
  PlayedLoad link(true);
  be_short_and_lossy(link);
  link.has_model = true;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.load.line.by_model; }));
  const std::size_t looks = link.looks;
  ASSERT_TRUE(link.until([&] { return link.looks > looks + 50; }));
  EXPECT_TRUE(link.load.line.by_model);
  EXPECT_EQ(link.dialled, 0U) << "one connection fills a short line then";
}

TEST(Widening, dials_lanes_where_losses_are_the_limit_of_a_short_link_and_no_model_is_to_be_had) {
  for (const bool allowed : {true, false}) {
    PlayedLoad link(true, 1, allowed);
    be_short_and_lossy(link);
    link.widening.wake();
    ASSERT_TRUE(link.until([&] { return link.used == 4; }));
    EXPECT_EQ(link.dialled, 3U);
    EXPECT_FALSE(link.load.line.by_model);
  }
}

TEST(Widening, over_a_short_link_without_a_model_has_no_fewer_lanes_than_threads) {
  PlayedLoad link(true, 3, /*model=*/false);
  be_short_and_lossy(link);
  link.load.lanes = link.used = 3;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] {
    EXPECT_GE(link.used, 3U);
    return link.used > 3;
  }));
  EXPECT_LE(link.used, kWidestShortLanes);
}

TEST(Widening, leaves_a_short_link_alone_whose_connections_have_the_model_of_their_host) {
  for (const bool allowed : {true, false}) {
    PlayedLoad link(true, 1, allowed);
    be_short_and_lossy(link);
    link.load.line.by_model = true;
    link.widening.wake();
    ASSERT_TRUE(link.until([&] { return link.looks > 80; }));
    EXPECT_TRUE(link.load.line.by_model);
    EXPECT_EQ(link.dialled, 0U);
  }
}

TEST(Widening, a_lane_that_was_refused_is_not_dialled_again_at_once) {
  PlayedLoad link(true);
  link.joins = false;
  link.widening.wake();
  ASSERT_TRUE(link.until([&] { return link.dialled == 3; }));
  link.widening.refused();
  const std::size_t looks = link.looks;
  ASSERT_TRUE(link.until([&] { return link.looks > looks + 5; }));
  EXPECT_EQ(link.dialled, 3U);
}

}  // namespace
}  // namespace pccl
