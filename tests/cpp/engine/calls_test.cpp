// Calls of other threads to the thread that drives.
#include "engine/calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace pccl {
namespace {

using Texts = std::vector<std::string>;

/// Calls of a loop that is driven, stopped at the end.
struct Driven {
  Driven() {
    calls.start(loop, [](const Error&) {});
  }
  ~Driven() {
    calls.stop([this] { loop.stop(); });
    calls.join();
  }
  Loop loop;
  Calls calls;
};

TEST(Calls, a_question_has_its_answer_and_none_once_they_are_stopped) {
  Driven d;
  EXPECT_EQ(d.calls.ask([] { return Texts{"a", "b"}; }), (Texts{"a", "b"}));
  bool ran = false;
  d.calls.carry_out([&] { ran = true; });
  EXPECT_TRUE(ran);
  Calls none;  // never started
  EXPECT_EQ(none.ask([] { return 7; }), std::nullopt);
}

TEST(Calls, an_answer_that_comes_too_late_touches_nothing_of_the_one_who_asked) {
  Driven d;
  const auto stopped_for = std::chrono::milliseconds(Calls::kAnswerMs + 300);
  d.calls.post([=] { std::this_thread::sleep_for(stopped_for); }, Calls::Cost::large);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it has begun
  const auto many = [] { return Texts(2000, std::string(100, 'x')); };
  EXPECT_EQ(d.calls.ask(many), std::nullopt);
  EXPECT_EQ(d.calls.ask(many), many()) << "the next question";
}

TEST(Calls, a_question_that_is_destroyed_has_no_answer_at_once) {
  Driven d;
  d.calls.post([] { throw std::runtime_error("planted"); });
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(d.calls.ask([] { return 7; }).value_or(7), 7);
  EXPECT_EQ(d.calls.ask([] { return 7; }), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(Calls::kAnswerMs));
}

}  // namespace
}  // namespace pccl
