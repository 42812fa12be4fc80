// What a link carries: the fastest stretch, how long and how much is sent, and every end of it.
#include "engine/link_meter.h"

#include "engines.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

TEST(FastestStretch, is_that_of_the_fastest_tenth_of_a_second) {
  FastestStretch stretch(100);
  EXPECT_EQ(stretch.rate(), 0U);
  stretch.saw(1000, 500);
  EXPECT_EQ(stretch.rate(), 0U);
  stretch.saw(1050, 1500);
  EXPECT_EQ(stretch.rate(), 20'000U) << "of all that was seen, as long as it is short";
  std::uint64_t bytes = 1500;
  for (std::uint64_t ms = 1060; ms <= 3000; ms += 10) {
    const bool fast = ms > 2000 && ms <= 2200;
    bytes += fast ? 10'000 : 1000;
    stretch.saw(ms, bytes);
  }
  EXPECT_NEAR(static_cast<double>(stretch.rate()), 1e6, 1e5);
}

TEST(FastestStretch, of_a_burst_counts_as_much_as_its_stretch) {
  FastestStretch stretch(100);
  for (std::uint64_t ms = 0; ms <= 1000; ms += 10) stretch.saw(ms, ms < 500 ? 0 : 1'000'000);
  EXPECT_EQ(stretch.rate(), 10'000'000U) << "in 100 ms, and not in 10";
}

TEST(FastestStretch, begins_anew_where_a_connection_less_is_counted) {
  FastestStretch stretch(100);
  stretch.saw(0, 1000);
  stretch.saw(50, 2'000'000);
  stretch.saw(60, 100);
  for (std::uint64_t ms = 70; ms <= 500; ms += 10) stretch.saw(ms, 100 + 1000 * (ms - 60) / 10);
  EXPECT_NEAR(static_cast<double>(stretch.rate()), 1e5, 1e4);
}

constexpr PeerId kMe{1};
constexpr PeerId kOther{2};

struct Meter {
  Meter() {
    LinkView& link = node.links.links[kOther];
    link.peer = kOther;
    link.round_trip_us = 3000;
  }
  /// The other end takes all that was sent, and the loop runs once.
  void carry() {
    while (!node.links.sent.empty()) {
      const FakeLinks::Sent one = node.links.sent.front();
      node.links.sent.pop_front();
      EXPECT_EQ(one.header.kind, SegmentKind::measure);
      ++segments;
      node.links.links[kOther].bytes_arrived += one.header.bytes;
      meter.segment_sent(one.token, kOther, 0);
    }
    node.loop.run_once(true);
  }

  std::vector<std::tuple<PeerId, std::uint64_t, std::uint64_t>> answers;
  Node node{kMe};
  LinkMeter meter{node.context, GroupId{1},
                  [this](PeerId peer, std::uint64_t rate, std::uint64_t trip_us) {
                    answers.emplace_back(peer, rate, trip_us);
                  }};
  std::size_t segments = 0;
};

TEST(LinkMeter, sends_so_much_and_says_how_fast_it_arrived) {
  Meter test;
  test.meter.measure(kOther, 0);
  EXPECT_EQ(test.node.links.sent.size(), 4U) << "no more ahead";
  while (test.answers.empty()) test.carry();
  const auto& [peer, rate, trip_us] = test.answers.at(0);
  EXPECT_EQ(peer, kOther);
  EXPECT_GT(rate, 64U << 20);
  EXPECT_EQ(trip_us, 3000U);
  EXPECT_EQ(test.segments, 64U);
  EXPECT_TRUE(test.node.context.owners.empty()) << "nothing of it is left";
}

TEST(LinkMeter, of_a_link_that_carries_nothing_it_says_so_after_its_time) {
  Meter test;
  const std::uint64_t begun = test.node.loop.now_ms();
  test.meter.measure(kOther, 0);
  while (test.answers.empty()) test.node.loop.run_once(true);
  EXPECT_EQ(std::get<1>(test.answers.at(0)), 0U);
  EXPECT_GE(test.node.loop.now_ms() - begun, 800U);
  EXPECT_TRUE(test.node.links.sent.empty()) << "what still waited is taken back";
}

TEST(LinkMeter, links_within_a_machine_are_not_measured) {
  Meter test;
  test.node.links.links[kOther].local = true;
  test.meter.measure(kOther, 0);
  ASSERT_EQ(test.answers.size(), 1U);
  EXPECT_EQ(std::get<1>(test.answers[0]), LinkMeter::kLocalRate);
  EXPECT_TRUE(test.node.links.sent.empty());
}

TEST(LinkMeter, a_link_that_is_not_there_or_ends_carries_nothing) {
  Meter test;
  test.meter.measure(PeerId{3}, 0);
  ASSERT_EQ(test.answers.size(), 1U);
  EXPECT_EQ(std::get<1>(test.answers[0]), 0U);
  test.meter.measure(kOther, 0);
  test.meter.link_gone(PeerId{3});
  EXPECT_EQ(test.answers.size(), 1U) << "another one";
  test.meter.link_gone(kOther);
  ASSERT_EQ(test.answers.size(), 2U);
  EXPECT_EQ(test.answers[1], std::tuple(kOther, std::uint64_t{0}, std::uint64_t{3000}));
}

TEST(LinkMeter, one_after_the_other_and_a_stop_ends_all_without_a_word) {
  Meter test;
  test.node.links.links[PeerId{3}].local = true;
  test.meter.measure(kOther, 0);
  test.meter.measure(PeerId{3}, 0);
  test.meter.measure(PeerId{4}, 0);
  EXPECT_TRUE(test.answers.empty());
  while (test.answers.size() < 3) test.carry();
  EXPECT_EQ(std::get<0>(test.answers[1]), PeerId{3});
  EXPECT_EQ(std::get<0>(test.answers[2]), PeerId{4});
  test.meter.measure(kOther, 0);
  for (int i = 0; i < 20; ++i) test.meter.measure(PeerId{3}, 0);
  EXPECT_EQ(test.answers.size(), 7U) << "16 wait, no more";
  test.meter.stop();
  EXPECT_EQ(test.answers.size(), 7U);
  EXPECT_TRUE(test.node.links.sent.empty());
  EXPECT_TRUE(test.node.context.owners.empty());
}

/// Operations send so many bytes in each 10 ms, until the answer, however late a look is.
void answer_beside(Meter& test, std::uint64_t bytes) {
  std::uint64_t looked_ms = test.node.loop.now_ms();
  test.node.links.before_view = [&] {
    for (; looked_ms + 10 <= test.node.loop.now_ms(); looked_ms += 10) {
      test.node.links.links[kOther].bytes_arrived += bytes;
    }
  };
  while (test.answers.empty()) test.carry();
  test.node.links.before_view = nullptr;
}

constexpr std::uint64_t kKnown = 10'000'000;  // bytes a second

TEST(LinkMeter, where_operations_show_what_is_known_nothing_is_sent) {
  Meter test;
  const std::uint64_t begun = test.node.loop.now_ms();
  test.meter.measure(kOther, kKnown);
  EXPECT_TRUE(test.node.links.sent.empty());
  answer_beside(test, kKnown / 100 * 9 / 10);
  EXPECT_EQ(test.answers.at(0), std::tuple(kOther, kKnown, std::uint64_t{3000}));
  EXPECT_EQ(test.segments, 0U);
  EXPECT_GE(test.node.loop.now_ms() - begun, 1600U);
  EXPECT_TRUE(test.node.context.owners.empty());
}

TEST(LinkMeter, where_operations_show_more_that_is_the_answer) {
  Meter test;
  test.meter.measure(kOther, kKnown);
  answer_beside(test, kKnown / 100 * 3);
  EXPECT_NEAR(static_cast<double>(std::get<1>(test.answers.at(0))), 3.0 * kKnown, 0.5 * kKnown);
  EXPECT_EQ(test.segments, 0U);
}

TEST(LinkMeter, where_operations_show_less_it_sends_after_all) {
  Meter test;
  test.meter.measure(kOther, kKnown);
  answer_beside(test, kKnown / 100 / 2);
  EXPECT_EQ(test.segments, 64U);
  EXPECT_GT(std::get<1>(test.answers.at(0)), 64U << 20);
}

TEST(LinkMeter, a_link_that_ends_while_operations_are_watched_carries_nothing) {
  Meter test;
  test.meter.measure(kOther, kKnown);
  test.node.links.links.erase(kOther);
  test.meter.link_gone(kOther);
  EXPECT_EQ(test.answers.at(0), std::tuple(kOther, std::uint64_t{0}, std::uint64_t{3000}));
  EXPECT_TRUE(test.node.context.owners.empty());
}

TEST(LinkMeter, no_number_of_a_lying_master_overflows) {
  Meter test;
  test.meter.measure(kOther, ~std::uint64_t{0});
  answer_beside(test, 0);
  EXPECT_EQ(test.segments, 64U);
  test.answers.clear();
  test.meter.measure(kOther, 1);
  answer_beside(test, 0);
  EXPECT_EQ(std::get<1>(test.answers.at(0)), 1U) << "four fifths of it are nothing";
}

TEST(LinkMeter, what_is_sent_to_measure_is_dropped_by_the_other_end) {
  Node node(kMe);
  node.group->start(EpochId{1}, {kMe, kOther});
  SegmentHeader header;
  header.kind = SegmentKind::measure;
  header.group = GroupId{1};
  header.bytes = kSegmentBytesMax;
  EXPECT_TRUE(node.group->segment_header(kOther, header).drops());
  EXPECT_TRUE(node.links.given_up.empty());
}

}  // namespace
}  // namespace pccl::testing
