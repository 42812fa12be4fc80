#include "transport/small_pass.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

constexpr std::uint64_t kPassLookMs = 50;

/// A link with one bulk lane that is looked at, over which data are sent.
struct PassingLink {
  /// How often it has begun that small messages alone pass.
  int pass(std::uint64_t ms) {
    int found = 0;
    for (std::uint64_t passed = 0; passed < ms; passed += kPassLookMs) {
      look.now_ms += kPassLookMs;
      if (arrives) look.arrived_bytes += 50'000;
      if (resends && look.now_ms % 1000 == 0) look.resent_bytes += 1400;
      if (answers && look.now_ms % 1000 == 0) ++look.messages;
      if (sees.look(look)) ++found;
    }
    return found;
  }

  SmallPass sees;
  SmallPass::Look look{.now_ms = 1000, .sends = true, .bulk_lanes = 1};
  bool arrives = true;
  bool resends = false;
  bool answers = true;
};

/// A path that has begun to swallow large packets.
PassingLink swallowing() {
  PassingLink link;
  EXPECT_EQ(link.pass(20'000), 0);
  EXPECT_FALSE(link.sees.since_ms());
  link.arrives = false;
  link.resends = true;
  return link;
}

TEST(SmallPass, is_seen_once_nothing_large_has_arrived_for_long_enough) {
  PassingLink link = swallowing();
  const std::uint64_t began_ms = link.look.now_ms;
  EXPECT_EQ(link.pass(9'000), 0);
  EXPECT_EQ(link.pass(30'000), 1);
  ASSERT_TRUE(link.sees.since_ms());
  EXPECT_EQ(*link.sees.since_ms(), began_ms);
}

TEST(SmallPass, is_seen_though_the_process_looks_late) {
  PassingLink link = swallowing();
  int found = 0;
  for (int i = 0; i < 20; ++i) {
    link.look.now_ms += 900;
    found += link.pass(100);
  }
  EXPECT_EQ(found, 1);
}

TEST(SmallPass, is_seen_while_lanes_are_lost_and_dialled_anew) {
  PassingLink link = swallowing();
  int found = 0;
  for (std::size_t i = 0; i < 20; ++i) {
    link.look.bulk_lanes = 1 + i % 3;
    found += link.pass(500);
    link.look.arrived_bytes += 1'000;  // what a new lane begins with
    found += link.pass(500);
  }
  EXPECT_EQ(found, 1);
}

TEST(SmallPass, ends_when_large_data_arrive_again) {
  PassingLink link = swallowing();
  EXPECT_EQ(link.pass(20'000), 1);
  link.arrives = true;
  EXPECT_EQ(link.pass(20'000), 0);
  EXPECT_FALSE(link.sees.since_ms());
  link.arrives = false;
  EXPECT_EQ(link.pass(20'000), 1) << "and may begin again";
}

TEST(SmallPass, stays_when_the_bulk_lanes_are_lost_and_messages_arrive_on_the_lane_that_is_left) {
  PassingLink link = swallowing();
  EXPECT_EQ(link.pass(20'000), 1);
  link.look.bulk_lanes = 0;
  link.look.arrived_bytes = 300;
  for (int i = 0; i < 20; ++i) {
    link.look.arrived_bytes += 100;
    EXPECT_EQ(link.pass(1'000), 0);
  }
  EXPECT_TRUE(link.sees.since_ms());
}

TEST(SmallPass, is_nothing_that_a_stopped_process_shows) {
  PassingLink link = swallowing();
  link.answers = false;
  EXPECT_EQ(link.pass(60'000), 0);
}

TEST(SmallPass, is_nothing_that_a_process_shows_which_does_not_read) {
  PassingLink link = swallowing();
  link.resends = false;
  EXPECT_EQ(link.pass(60'000), 0);
}

TEST(SmallPass, is_nothing_that_an_idle_link_shows) {
  PassingLink link = swallowing();
  link.look.sends = false;
  EXPECT_EQ(link.pass(60'000), 0);
  for (int i = 0; i < 20; ++i) {
    link.look.sends = true;
    EXPECT_EQ(link.pass(5'000), 0);
    link.look.sends = false;
    EXPECT_EQ(link.pass(kPassLookMs), 0);
    link.look.now_ms += 9'000;  // nobody looks
  }
}

TEST(SmallPass, is_nothing_that_a_link_without_bulk_lanes_shows) {
  PassingLink link = swallowing();
  link.look.bulk_lanes = 0;
  EXPECT_EQ(link.pass(60'000), 0);
}

}  // namespace
}  // namespace pccl
