#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "kernels/reduce.h"

namespace pccl::test {
namespace {

void expect_copied(InstructionSet set, std::size_t bytes, std::size_t to_at, std::size_t from_at) {
  Random random(bytes);
  std::vector<std::uint8_t> from(20'000);
  for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random.next());
  std::vector<std::uint8_t> to(20'000, 0xAA);
  copy_streaming(to.data() + to_at, from.data() + from_at, bytes, set);
  std::vector<std::uint8_t> wanted(20'000, 0xAA);
  for (std::size_t i = 0; i < bytes; ++i) wanted[to_at + i] = from[from_at + i];
  ASSERT_EQ(to, wanted) << bytes << " bytes to " << to_at << " from " << from_at;
}

TEST(CopyStreaming, CopiesEveryByteAndNoOther) {
  for (const InstructionSet set : instruction_sets()) {
    for (const std::size_t bytes : {0U, 1U, 15U, 4095U, 4096U, 4097U, 4159U, 8192U, 9999U}) {
      for (const std::size_t to_at : {0U, 1U, 7U, 15U, 16U, 33U, 63U}) {
        for (const std::size_t from_at : {0U, 3U, 16U}) expect_copied(set, bytes, to_at, from_at);
      }
    }
  }
}

TEST(CopyStreaming, NothingFromNowhereIsNothing) { copy_streaming(nullptr, nullptr, 0); }

}  // namespace
}  // namespace pccl::test
