#include "base/line_limit.h"

#include <gtest/gtest.h>

#include <string>

namespace pccl {
namespace {

TEST(LineLimit, a_text_of_one_sender_is_written_once_in_a_minute_and_the_rest_is_counted) {
  LineLimit limit;
  EXPECT_EQ(limit.admit("a", "closed", 5000), "");
  for (int again = 0; again < 7; ++again) EXPECT_FALSE(limit.admit("a", "closed", 5000));
  EXPECT_EQ(limit.admit("b", "closed", 5000), "") << "of another sender";
  EXPECT_FALSE(limit.admit("a", "closed", 5000 + kLineLimitMs - 1));
  EXPECT_EQ(limit.admit("a", "closed", 5000 + kLineLimitMs), " (and 8 more before)");
  EXPECT_EQ(limit.admit("b", "closed", 5000 + kLineLimitMs), "") << "said once";
}

TEST(LineLimit,
     who_says_something_else_each_time_takes_few_lines_and_all_together_no_more_than_all) {
  LineLimit limit;
  const auto lines_of = [&](const std::string& sender) {
    std::size_t lines = 0;
    for (int i = 0; i < 100; ++i) {
      if (limit.admit(sender, "text " + std::to_string(i), 1000)) ++lines;
    }
    return lines;
  };
  EXPECT_EQ(lines_of("a"), kLinesOfOneMax);
  std::size_t of_all = kLinesOfOneMax;
  for (int i = 0; i < 100; ++i) of_all += lines_of("b" + std::to_string(i));
  EXPECT_EQ(of_all, kLinesOfAllMax);
  EXPECT_TRUE(limit.admit("c", "x", 1000 + kLineLimitMs).has_value());
}

}  // namespace
}  // namespace pccl
