#include "transport/refusals.h"

#include <gtest/gtest.h>

#include "support.h"
#include "transport/address.h"

namespace pccl {
namespace {

class HandClock : public Clock {
 public:
  [[nodiscard]] std::uint64_t now_ms() const override { return now; }
  [[nodiscard]] std::uint64_t boot_ms() const override { return now; }
  [[nodiscard]] std::unique_ptr<Timer> timer(std::uint64_t, std::uint64_t,
                                             std::function<void()>) override {
    return nullptr;
  }
  void defer(std::function<void()>) override {}
  void post(std::function<void()>) override {}
  std::uint64_t now = 100000;
};

TEST(Refusals, who_says_something_else_each_time_has_few_lines_and_all_together_have_a_limit) {
  test::LogLines log;
  HandClock clock;
  Refusals refusals(clock);
  for (int i = 0; i < 1000; ++i) {
    refusals.refused("10.0.0.1", "it speaks protocol version " + std::to_string(i));
  }
  EXPECT_EQ(log.count("10.0.0.1"), kLinesOfOneMax);
  for (int i = 0; i < 1000; ++i) refusals.refused("10.0.0.2", "its first bytes are not pccl's");
  EXPECT_EQ(log.count("10.0.0.2"), 1U);
  for (int i = 0; i < 1000; ++i) {
    refusals.refused("2001:db8::" + std::to_string(i), "version " + std::to_string(i));
  }
  EXPECT_EQ(log.count("2001:db8::"), kLinesOfOneMax) << "one network";
  for (int i = 0; i < 1000; ++i) {
    refusals.refused("10.1." + std::to_string(i / 250) + "." + std::to_string(i % 250), "x");
  }
  EXPECT_EQ(log.count("refused"), kLinesOfAllMax);
  clock.now += kLineLimitMs;
  refusals.refused("10.0.0.1", "x");
  EXPECT_EQ(log.count("10.0.0.1: x (and 3940 more before)"), 1U) << log.all();
  refusals.refused("10.0.0.1", "y");
  EXPECT_EQ(log.count("10.0.0.1: y"), 1U);
  EXPECT_EQ(log.count("more before"), 1U);
}

TEST(Refusals, while_very_many_fail_the_networks_that_fail_are_turned_away_and_no_others) {
  const test::LogLines log;
  HandClock clock;
  Refusals refusals(clock);
  for (std::size_t i = 0; i < kRefusedOfAllMax; ++i) {
    EXPECT_FALSE(refusals.too_often("10.0.0.1"));
    refusals.refused("10.0.0.1", "x");
  }
  EXPECT_FALSE(refusals.too_often("10.0.0.1")) << "one site with a wrong token, say";
  refusals.refused("10.0.0.2", "x");
  EXPECT_TRUE(refusals.too_often("10.0.0.1"));
  EXPECT_TRUE(refusals.too_often("10.0.0.2"));
  EXPECT_FALSE(refusals.too_often("10.0.0.3"));
  refusals.refused("2001:db8:1:2::1", "x");
  EXPECT_TRUE(refusals.too_often("2001:db8:1:2::9"));
  clock.now += 999;
  EXPECT_TRUE(refusals.too_often("10.0.0.1"));
  clock.now += 1;
  EXPECT_FALSE(refusals.too_often("10.0.0.1")) << "a connection between strangers may be a peer's";
}

TEST(Refusals, connections_that_have_gone_count_and_make_no_line) {
  test::LogLines log;
  HandClock clock;
  Refusals refusals(clock);
  for (std::size_t i = 0; i <= kRefusedOfAllMax; ++i) refusals.gone("10.0.0.1");
  EXPECT_TRUE(refusals.too_often("10.0.0.1"));
  EXPECT_EQ(log.all(), "");
}

TEST(Refusals, who_shares_an_address_with_a_proven_process_is_not_turned_away) {
  const test::LogLines log;
  HandClock clock;
  Refusals refusals(clock);
  refusals.proven("10.0.0.1");
  const auto flood = [&] {
    for (std::size_t i = 0; i <= kRefusedOfAllMax; ++i) refusals.refused("10.0.0.1", "x");
  };
  flood();
  EXPECT_FALSE(refusals.too_often("10.0.0.1")) << "a member may be coming back";
  refusals.refused("10.0.0.2", "x");
  EXPECT_TRUE(refusals.too_often("10.0.0.2"));
  for (std::size_t i = 0; i < kProvenMax; ++i) {
    ++clock.now;
    refusals.proven("10.1." + std::to_string(i / 250) + "." + std::to_string(i % 250));
  }
  flood();
  EXPECT_TRUE(refusals.too_often("10.0.0.1")) << "the oldest of too many is forgotten";
  refusals.proven("10.0.0.1");
  clock.now += kProvenMs + 1;
  flood();
  EXPECT_TRUE(refusals.too_often("10.0.0.1"));
}

TEST(Refusals, control_characters_reach_no_sink_of_the_log) {
  test::LogLines log;
  HandClock clock;
  Refusals(clock).refused("10.0.0.1", "a\x1b[2J\nERROR all is lost");
  EXPECT_EQ(log.all(), "refused a connection from 10.0.0.1: a?[2J?ERROR all is lost\n");
}

TEST(NetworkOf, an_address_of_ipv4_is_its_own_and_of_ipv6_half_is_chosen_freely) {
  EXPECT_EQ(network_of("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(network_of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(network_of("2001:db8:1:2::"), "2001:db8:1:2::/64");
  EXPECT_NE(network_of("2001:db8:1:3::1"), "2001:db8:1:2::/64");
  EXPECT_EQ(network_of("fe80::1%eth0"), "fe80::/64%eth0");
  EXPECT_EQ(network_of("?"), "?");
}

}  // namespace
}  // namespace pccl
