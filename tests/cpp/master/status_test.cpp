// Questions who is in the run, over a real connection.
#include <gtest/gtest.h>

#include "master/ask.h"
#include "server_fixture.h"

namespace pccl::master {
namespace {

class StatusOf : public Server {};

TEST_F(StatusOf, is_told_to_who_is_no_peer) {
  found(2);
  const auto answer = ask();
  const auto* status = std::get_if<Status>(&answer);
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(status->state, "running");
  ASSERT_EQ(status->members.size(), 2U);
  EXPECT_TRUE(status->members[0].address.starts_with("127.0.0.1:"));
  EXPECT_EQ(status->door_count, 0U);
  ASSERT_FALSE(status->events.empty());
  EXPECT_NE(status->events.back().text.find("joined"), std::string::npos);
  EXPECT_TRUE(all_run(2)) << "it has changed nothing";
}

TEST_F(StatusOf, another_run_is_not_told) {
  start();
  const auto answer = ask({"another"});
  const auto* refusal = std::get_if<Refuse>(&answer);
  ASSERT_NE(refusal, nullptr);
  EXPECT_EQ(refusal->error.code, ErrorCode::refused);
}

TEST_F(StatusOf, is_told_ten_times_a_second) {
  start();
  const auto since_ms = loop_.now_ms();
  std::size_t told = 0;
  for (std::size_t i = 0; i < 3 * kStatusPerSecondMax; ++i) {
    if (std::holds_alternative<Status>(ask())) ++told;
  }
  const auto seconds_begun = (loop_.now_ms() - since_ms) / 1000 + 2;
  EXPECT_GE(told, kStatusPerSecondMax);
  EXPECT_LE(told, seconds_begun * kStatusPerSecondMax);
}

TEST_F(StatusOf, a_run_that_waits_says_so_after_longer_and_longer_times) {
  options_.say_waiting_ms = 20;
  start();
  const auto since = loop_.now_ms();
  EXPECT_TRUE(until([&] { return loop_.now_ms() - since > 700; }));
  EXPECT_GE(said("waiting for 2 replicas"), 2U) << log_text();
  EXPECT_LE(said("waiting for 2 replicas"), 8U) << log_text();
  const auto answer = ask();
  EXPECT_NE(std::get<Status>(answer).waits_for.find("waiting for 2 replicas"), std::string::npos);
}

TEST(StatusLimit, who_asks_without_end_leaves_the_others_their_answers) {
  StatusLimit limit;
  const auto answered = [&](const std::string& host, std::uint64_t now_ms) {
    std::size_t count = 0;
    for (int i = 0; i < 1000; ++i) count += limit.allows(host, now_ms) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(answered("10.0.0.1", 5000), kStatusPerSecondMax);
  EXPECT_EQ(answered("10.0.0.2", 5100), kStatusPerSecondMax);
  EXPECT_EQ(answered("10.0.0.1", 5999), 0U);
  EXPECT_EQ(answered("10.0.0.1", 6000), kStatusPerSecondMax);
  std::size_t of_all = kStatusPerSecondMax;
  for (int host = 2; host < 1000; ++host) {
    of_all += answered("10.0.0." + std::to_string(host), 6100);
  }
  EXPECT_EQ(of_all, kStatusOfAllMax);
}

TEST(Ask, where_nobody_listens_is_told) {
  const auto answer = ask_status("127.0.0.1:1", "", 2000);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::unreachable);
}

}  // namespace
}  // namespace pccl::master
