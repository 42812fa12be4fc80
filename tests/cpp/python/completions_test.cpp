// The threads on which callbacks of users run: when a task counts as done.
#include "python/completions.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

namespace pccl {
namespace {

constexpr std::uint64_t kLongMs = 10000;

/// A thing that takes a while to be released, as a tensor with a Python object does.
struct Slow {
  explicit Slow(std::atomic<bool>& is_gone) : gone(is_gone) {}
  ~Slow() {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gone = true;
  }
  Slow(const Slow&) = delete;
  Slow& operator=(const Slow&) = delete;
  std::atomic<bool>& gone;
};

TEST(Completions, what_a_task_holds_is_released_when_drain_returns) {
  for (const bool apart : {false, true}) {
    const auto completions = std::make_shared<Completions>("test");
    std::promise<void> begun;
    completions->run([&] { begun.set_value(); });
    begun.get_future().get();  // from here on there is a thread beside which one may run
    std::atomic<bool> gone = false;
    auto token = std::make_shared<Slow>(gone);
    completions->run([held = std::move(token)] {}, apart);
    EXPECT_TRUE(completions->drain(kLongMs));
    EXPECT_TRUE(gone) << (apart ? "on a thread of its own" : "on the thread of the group");
  }
}

TEST(Completions, a_task_that_another_one_waits_for_runs_apart) {
  const auto completions = std::make_shared<Completions>("test");
  std::promise<void> other;
  std::promise<bool> inside;
  completions->run([&] {
    other.get_future().get();
    inside.set_value(Completions::inside());
  });
  completions->run([&] { other.set_value(); }, /*apart=*/true);
  EXPECT_TRUE(inside.get_future().get());
  EXPECT_TRUE(completions->drain(kLongMs));
  EXPECT_FALSE(Completions::inside());
}

TEST(Completions, drain_says_that_a_task_has_not_ended_in_time) {
  const auto completions = std::make_shared<Completions>("test");
  std::promise<void> go_on;
  completions->run([&] { go_on.get_future().get(); });
  EXPECT_FALSE(completions->drain(20));
  go_on.set_value();
  EXPECT_TRUE(completions->drain(kLongMs));
}

}  // namespace
}  // namespace pccl
