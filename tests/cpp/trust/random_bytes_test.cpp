#include "trust/random_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace pccl {
namespace {

TEST(RandomBytes, fill_all_that_is_asked_for_and_nothing_else) {
  constexpr std::uint8_t kUntouched = 0xA5;
  std::vector<std::uint8_t> bytes(300, kUntouched);
  random_bytes(std::span(bytes).subspan(10, 256));
  EXPECT_EQ(std::count(bytes.begin(), bytes.begin() + 10, kUntouched), 10);
  EXPECT_EQ(std::count(bytes.end() - 34, bytes.end(), kUntouched), 34);
  // 256 random bytes have about 162 values; fewer than 100 come once in far more than 10^20 times.
  EXPECT_GT(std::set<std::uint8_t>(bytes.begin() + 10, bytes.end() - 34).size(), 100U);
}

TEST(RandomBytes, are_others_each_time) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random_u64());
  EXPECT_EQ(seen.size(), 1000U);
}

}  // namespace
}  // namespace pccl
