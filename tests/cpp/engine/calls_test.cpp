// Calls of other threads to the thread that drives.
#include "engine/calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace pccl {
namespace {

using Texts = std::vector<std::string>;

/// Calls of a loop that is driven, stopped at the end.
struct DrivenCalls {
  DrivenCalls() {
    calls.start(loop, [](const Error&) {});
  }
  ~DrivenCalls() {
    calls.stop([this] { loop.stop(); });
    calls.join();
  }
  Loop loop;
  Calls calls;
};

TEST(Calls, a_question_has_its_answer_and_none_once_they_are_stopped) {
  DrivenCalls d;
  EXPECT_EQ(d.calls.ask([] { return Texts{"a", "b"}; }).value(), (Texts{"a", "b"}));
  bool ran = false;
  d.calls.carry_out([&] { ran = true; });
  EXPECT_TRUE(ran);
  Calls none;  // never started
  EXPECT_EQ(none.ask([] { return 7; }).error().code, ErrorCode::closed);
}

TEST(Calls, a_look_has_its_answer_while_much_is_posted) {
  DrivenCalls d;
  std::atomic<int> ran = 0;
  for (int i = 0; i < 100; ++i) {
    d.calls.post(
        [&ran] {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          ++ran;
        },
        Calls::Cost::large);
  }
  const auto look = [&ran] { return ran.load(); };
  EXPECT_LT(d.calls.ask(look, Calls::Cost::look).value(), 100);
  EXPECT_EQ(d.calls.ask(look).value(), 100) << "what is no look waits for its turn";
}

TEST(Calls, a_call_that_breaks_the_engine_on_its_callers_thread_says_how) {
  DrivenCalls d;
  for (int i = 0; i < 20; ++i) {  // the first ones find the engine's thread there, or not
    const auto ticket = d.calls.posted([i](const std::shared_ptr<Ticket>& done) {
      if (i == 19) throw std::runtime_error("planted");
      done->complete({});
    });
    EXPECT_TRUE(d.calls.wait(*ticket, 60000));
    if (i < 19) continue;
    EXPECT_EQ(ticket->error().code, ErrorCode::broken) << ticket->error().text;
    EXPECT_NE(ticket->error().text.find("planted"), std::string::npos) << ticket->error().text;
  }
}

TEST(Calls, an_answer_that_comes_too_late_touches_nothing_of_the_one_who_asked) {
  DrivenCalls d;
  const std::uint64_t limit_ms = 100;
  const auto stopped_for = std::chrono::milliseconds(limit_ms + 300);
  std::atomic<bool> begun = false;
  d.calls.post(
      [&begun, stopped_for] {
        begun = true;
        std::this_thread::sleep_for(stopped_for);
      },
      Calls::Cost::large);
  while (!begun) std::this_thread::yield();
  const auto many = [] { return Texts(2000, std::string(100, 'x')); };
  EXPECT_EQ(d.calls.ask(many, Calls::Cost::small, limit_ms).error().code, ErrorCode::timed_out);
  EXPECT_EQ(d.calls.ask(many).value(), many()) << "the next question";
}

TEST(Calls, a_question_that_is_destroyed_has_no_answer_at_once) {
  DrivenCalls d;
  d.calls.post([] { throw std::runtime_error("planted"); });
  const auto began = std::chrono::steady_clock::now();
  // The first ones may come before the planted one has run.
  for (int i = 0; i < 20; ++i) static_cast<void>(d.calls.ask([] { return 7; }));
  EXPECT_EQ(d.calls.ask([] { return 7; }).error().code, ErrorCode::broken);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(Calls::kAnswerMs));
}

}  // namespace
}  // namespace pccl
