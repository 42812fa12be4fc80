// No memory for the copy of what is half sent, when its owner takes its memory back, or in the
// middle of a send: the link ends, and nothing else of the process does.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "no_memory.h"
#include "recorder.h"
#include "support.h"
#include "transport/transport.h"

namespace pccl {
namespace {

using test::Pair;
using test::place_in;
using test::Tensor;

class StarvedLink : public testing::TestWithParam<std::uint32_t> {};

TEST_P(StarvedLink, ends_and_the_process_goes_on) {
  LinkOptions options;
  options.bulk_lanes = GetParam();
  for (const bool closing : {false, true}) {
    Pair pair(options);
    pair.open();
    std::vector<std::byte> memory(64U << 20);
    pair.high.events.place = place_in(memory);
    Tensor first(1U << 20);
    first.send(*pair.low.links, pair.high_id(), first.bytes.size(), 4);
    ASSERT_TRUE(
        pair.until([&] { return pair.high.events.arrived.size() == 1; }));  // all lanes are there
    {
      Tensor tensor(memory.size());
      tensor.send(*pair.low.links, pair.high_id(), 1U << 20, 5);
      // Nobody reads: what has been written ends inside a frame.
      ASSERT_GT(pair.low.links->queued_bytes(pair.high_id()), 0U);
      if (closing) pair.low.links->close(pair.high_id());
      test::no_memory_from = 16U << 10;
      EXPECT_NO_THROW(pair.low.links->cancel(5));
      test::no_memory_from = test::kNoLimit;
    }
    ASSERT_TRUE(pair.until([&] { return pair.high.events.down.size() == 1; }));
    if (closing) {
      EXPECT_TRUE(pair.low.events.down.empty()) << "the owner has closed it";
    } else {
      ASSERT_TRUE(pair.until([&] { return pair.low.events.down.size() == 1; }));
      EXPECT_NE(pair.low.events.reasons[0].find("no memory"), std::string::npos)
          << pair.low.events.reasons[0];
    }
    // The two can have a link again.
    pair.low.events.ups = pair.high.events.ups = 0;
    pair.low.links->close(pair.high_id());
    pair.high.links->close(pair.low_id());
    pair.open();
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, StarvedLink, testing::Values(1, 4));

struct Way {
  const char* name;
  LinkOptions options;
};

LinkOptions options_of(Plaintext plaintext, bool shared_memory, std::uint32_t bulk_lanes,
                       std::uint64_t max_rate) {
  LinkOptions options;
  options.plaintext = plaintext;
  options.shared_memory = shared_memory;
  options.bulk_lanes = bulk_lanes;
  options.max_rate = max_rate;
  return options;
}

class StarvedSend : public testing::TestWithParam<Way> {};

/// What one operation sends while another one's segments wait: whichever request for memory fails,
/// the other one's bytes arrive as they are and it hears of each, or both ends hear that the link
/// has ended.
TEST_P(StarvedSend, loses_nothing_in_silence) {
  constexpr std::size_t kOthersBytes = 6U << 20;
  bool failed = true;
  int ended = 0;
  for (std::size_t nth = 0; failed; ++nth) {
    Pair pair(GetParam().options);
    pair.open();
    const Tensor tensor(kOthersBytes + (1U << 20) + 1000);
    std::vector<std::byte> memory(tensor.bytes.size());
    pair.high.events.place = place_in(memory);
    const auto send = [&](std::size_t from, std::size_t bytes, MemoryToken token) {
      SegmentHeader header;
      header.offset = from;
      header.bytes = static_cast<std::uint32_t>(bytes);
      pair.low.links->send_segment(pair.high_id(), header, tensor.bytes.data() + from, token, from);
    };
    for (std::size_t at = 0; at < kOthersBytes; at += 1U << 20) send(at, 1U << 20, 5);
    auto message = test::bytes_of("a message");
    test::requests_until_none = nth;
    send(kOthersBytes, 1U << 20, 6);
    send(kOthersBytes + (1U << 20), 1000, 6);
    pair.low.links->send_control(pair.high_id(), std::move(message));
    failed = test::requests_until_none == test::kNoLimit;
    test::requests_until_none = test::kNoLimit;
    const auto arrived = [&] {
      return pair.high.events.arrived.size() == 8 && pair.low.events.sent.size() == 8 &&
             pair.high.events.controls.size() == 1;
    };
    const auto down = [&] {
      return pair.low.events.down.size() == 1 && pair.high.events.down.size() == 1;
    };
    ASSERT_TRUE(pair.until([&] { return arrived() || down(); }, 20000)) << nth;
    if (down()) ++ended;
    for (const SegmentHeader& header : pair.high.events.arrived) {
      EXPECT_EQ(std::memcmp(memory.data() + header.offset, tensor.bytes.data() + header.offset,
                            header.bytes),
                0)
          << nth << " at " << header.offset;
    }
    ASSERT_LT(nth, 200U);
  }
  EXPECT_GT(ended, 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, StarvedSend,
                         testing::Values(Way{"tcp", options_of(Plaintext::all, false, 1, 0)},
                                         Way{"four_lanes", options_of(Plaintext::all, false, 4, 0)},
                                         Way{"encrypted", options_of(Plaintext::none, false, 2, 0)},
                                         Way{"memory", options_of(Plaintext::all, true, 1, 0)},
                                         Way{"capped",
                                             options_of(Plaintext::all, false, 2, 256U << 20)}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace pccl
