// No memory for the copy of what is half sent, when its owner takes its memory back: the link ends,
// and nothing else of the process does.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "no_memory.h"
#include "recorder.h"
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

}  // namespace
}  // namespace pccl
