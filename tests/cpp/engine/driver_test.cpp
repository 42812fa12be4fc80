// Which thread drives an engine's loop, and that there is always one.
#include "engine/driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/poll_budget.h"

namespace pccl::testing {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kLongMs = 10000;

/// A driven loop, stopped at the end.
struct Driven {
  Driven()
      : driver(loop, [this](const std::string& what) {
          why = what;
          ++breaks;  // last: tests read `why` after it
        }) {}
  ~Driven() {
    if (breaks == 0) loop.stop();
    driver.join();
  }
  /// Completes a ticket after `delay_ms` of the loop's time; what `then` does comes first.
  std::shared_ptr<Ticket> later(std::uint64_t delay_ms, std::function<void()> then = [] {}) {
    auto ticket = std::make_shared<Ticket>();
    auto timer = std::make_shared<std::unique_ptr<Timer>>();
    driver.post(
        [this, ticket, timer, delay_ms, then] {
          *timer = loop.timer(delay_ms, 0, [ticket, timer, then] {
            timer->reset();
            then();
            ticket->complete({});
          });
        },
        Driver::Cost::small);
    return ticket;
  }

  std::atomic<int> breaks = 0;
  std::string why;
  Loop loop;
  Driver driver;
};

TEST(Driver, a_caller_that_waits_drives_and_what_it_waited_for_happens_on_its_thread) {
  Driven d;
  int here = 0;
  for (int i = 0; i < 20; ++i) {
    std::thread::id completed_on;
    const auto ticket = d.later(5, [&] { completed_on = std::this_thread::get_id(); });
    EXPECT_TRUE(d.driver.wait(*ticket, kLongMs));
    here += completed_on == std::this_thread::get_id() ? 1 : 0;
  }
  EXPECT_GE(here, 10);  // and not all: a busy machine may hold this thread up before it waits
}

TEST(Driver, without_a_caller_its_own_thread_drives_also_after_one_has) {
  Driven d;
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(d.driver.wait(*d.later(1), kLongMs));
    std::atomic<bool> elsewhere = false;
    const auto ticket = d.later(
        20, [&, me = std::this_thread::get_id()] { elsewhere = std::this_thread::get_id() != me; });
    EXPECT_TRUE(ticket->wait(kLongMs));  // does not drive
    EXPECT_TRUE(elsewhere);
  }
}

TEST(Driver, a_small_function_runs_at_once_where_the_loop_is_free_and_a_large_one_never_does) {
  Driven d;
  const auto run_by = [&](Driver::Cost cost) {
    EXPECT_TRUE(d.driver.wait(*d.later(1), kLongMs));  // leaves the loop to nobody
    auto ticket = std::make_shared<Ticket>();
    std::atomic<bool> here = false;
    d.driver.post(
        [&, me = std::this_thread::get_id()] {
          here = std::this_thread::get_id() == me;
          ticket->complete({});
        },
        cost);
    EXPECT_TRUE(ticket->wait(kLongMs));
    return here.load();
  };
  int here = 0;
  for (int i = 0; i < 50; ++i) here += run_by(Driver::Cost::small);
  EXPECT_GT(here, 0);  // unless this thread was not given a core for a millisecond, each time
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(run_by(Driver::Cost::large));
}

TEST(Driver, a_large_function_runs_on_no_thread_that_posts) {
  Driven d;
  std::atomic<bool> posting = true;
  std::thread other([&] {
    while (posting) {
      const auto ticket = std::make_shared<Ticket>();
      d.driver.post([ticket] { ticket->complete({}); }, Driver::Cost::small);
      EXPECT_TRUE(ticket->wait(kLongMs));  // a program has so many calls in flight, and no more
    }
  });
  const std::thread::id poster = other.get_id();
  int on_a_poster = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto ticket = std::make_shared<Ticket>();
    d.driver.post(
        [&, ticket, me = std::this_thread::get_id()] {
          const auto now = std::this_thread::get_id();
          on_a_poster += now == me || now == poster ? 1 : 0;
          ticket->complete({});
        },
        Driver::Cost::large);
    EXPECT_TRUE(ticket->wait(kLongMs));  // does not drive
  }
  posting = false;
  other.join();
  EXPECT_EQ(on_a_poster, 0);
}

TEST(Driver, a_program_that_posts_and_never_waits_does_not_keep_the_loop_from_its_events) {
  Driven d;
  EXPECT_TRUE(d.driver.wait(*d.later(1), kLongMs));
  const auto event = d.later(10);
  const auto end = std::chrono::steady_clock::now() + milliseconds(kLongMs);
  while (!event->done() && std::chrono::steady_clock::now() < end) {
    d.driver.post([] {}, Driver::Cost::small);
  }
  EXPECT_TRUE(event->done());
}

TEST(Driver, functions_run_in_the_order_of_their_posts_whoever_drives) {
  Driven d;
  std::vector<int> seen;
  std::shared_ptr<Ticket> last;
  for (int i = 0; i < 2000; ++i) {
    last = std::make_shared<Ticket>();
    d.driver.post(
        [&seen, i, ticket = last] {
          seen.push_back(i);
          ticket->complete({});
        },
        i % 3 == 0 ? Driver::Cost::large : Driver::Cost::small);
    if (i % 100 == 0) {
      EXPECT_TRUE(d.driver.wait(*last, kLongMs));
    }
  }
  EXPECT_TRUE(d.driver.wait(*last, kLongMs));
  ASSERT_EQ(seen.size(), 2000U);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(Driver, several_callers_wait_at_once_and_each_has_its_outcome) {
  Driven d;
  std::atomic<int> done = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c) {
    callers.emplace_back([&, c] {
      for (int i = 0; i < 50; ++i) {
        done += d.driver.wait(*d.later(static_cast<std::uint64_t>((c + i) % 4)), kLongMs);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 400);
}

TEST(Driver, a_time_out_returns_without_the_outcome_and_the_loop_goes_on) {
  Driven d;
  const auto ticket = d.later(1500);
  std::unique_ptr<Timer> tick;  // an engine's loop has one
  auto made = std::make_shared<Ticket>();
  d.driver.post(
      [&] {
        tick = d.loop.timer(1, 1, [] {});
        made->complete({});
      },
      Driver::Cost::small);
  EXPECT_TRUE(made->wait(kLongMs));
  const auto began = std::chrono::steady_clock::now();
  EXPECT_FALSE(d.driver.wait(*ticket, 30));
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1000));
  EXPECT_TRUE(ticket->wait(kLongMs));
  auto gone = std::make_shared<Ticket>();
  d.driver.post(
      [&] {
        tick.reset();
        gone->complete({});
      },
      Driver::Cost::large);
  EXPECT_TRUE(gone->wait(kLongMs));
}

TEST(Driver, a_broken_invariant_on_a_callers_thread_ends_the_engine_once_and_throws_nothing) {
  Driven d;
  const auto never = std::make_shared<Ticket>();
  const auto ticket = d.later(5, [] { throw std::runtime_error("planted"); });
  EXPECT_FALSE(d.driver.wait(*ticket, 200));
  EXPECT_FALSE(d.driver.wait(*never, 20));
  EXPECT_EQ(d.breaks, 1);
  EXPECT_EQ(d.why, "planted");
}

TEST(Driver, ends_also_where_who_is_told_that_it_is_broken_fails) {
  Loop loop;
  Driver driver(loop, [](const std::string&) { throw std::bad_alloc(); });
  const auto never = std::make_shared<Ticket>();
  std::vector<std::thread> callers;
  std::atomic<int> without_outcome = 0;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] { without_outcome += !driver.wait(*never, std::nullopt); });
  }
  driver.post([] { throw std::bad_alloc(); }, Driver::Cost::large);
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(without_outcome, 3);
  EXPECT_TRUE(driver.ended());
}

TEST(Driver, a_stop_ends_a_wait_that_drives) {
  Driven d;
  const auto never = std::make_shared<Ticket>();
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> drives = false;
  std::unique_ptr<Timer> tick;
  const auto look = [&] { drives = drives || std::this_thread::get_id() == caller; };
  d.driver.post([&] { tick = d.loop.timer(1, 1, look); }, Driver::Cost::large);
  std::thread other([&] {
    while (!drives) std::this_thread::sleep_for(milliseconds(1));
    d.loop.stop();
  });
  EXPECT_FALSE(d.driver.wait(*never, std::nullopt));
  other.join();
  d.driver.join();  // before the timer ends
}

TEST(Driver, several_threads_may_wait_for_its_end) {
  Driven d;
  std::vector<std::future<void>> joins;
  for (int i = 0; i < 4; ++i) {
    joins.push_back(std::async(std::launch::async, [&] { d.driver.join(); }));
  }
  for (auto& join : joins) EXPECT_EQ(join.wait_for(milliseconds(20)), std::future_status::timeout);
  d.loop.stop();
  for (auto& join : joins) EXPECT_NO_THROW(join.get());
  EXPECT_TRUE(d.driver.ended());
}

TEST(PollBudget, a_wait_polls_in_vain_for_a_while_and_then_now_and_then) {
  PollBudget::Time now{std::chrono::hours(1)};
  PollBudget polls(now);
  const auto misses = [&] {
    std::int64_t missed = 0;
    for (; polls.left(now); ++missed) polls.missed();
    return missed;
  };
  EXPECT_EQ(misses(), PollBudget::kFreeMisses);
  now += PollBudget::kEachUs;
  EXPECT_EQ(misses(), 1);
  now += 7 * PollBudget::kEachUs;
  EXPECT_EQ(misses(), 7);
  now += std::chrono::hours(24 * 365);
  EXPECT_TRUE(polls.left(now));
}

/// Counts the rounds of its loop.
struct CountedRounds : Loop::Watched {
  bool look() override {
    ++rounds;
    return false;
  }
  bool sleep() override { return true; }
  void wake() override {}
  int rounds = 0;
};

TEST(Driver, a_caller_to_which_little_comes_for_long_sleeps_in_between) {
  Driven d;
  CountedRounds counted;
  constexpr int kEvents = 500;  // one each millisecond
  int events = 0;
  const auto ticket = std::make_shared<Ticket>();
  std::unique_ptr<Timer> timer;
  d.driver.post(
      [&] {
        d.loop.watch(counted);
        timer = d.loop.timer(1, 1, [&] {
          if (++events < kEvents) return;
          timer.reset();
          d.loop.unwatch(counted);
          ticket->complete({});
        });
      },
      Driver::Cost::small);
  EXPECT_TRUE(d.driver.wait(*ticket, kLongMs));
  EXPECT_EQ(events, kEvents);
  // With all its polls, of 100 us after each event, it would be 10,000 and more.
  EXPECT_LT(counted.rounds, PollBudget::kFreeMisses + 5 * kEvents);
}

TEST(YieldGuard, a_core_that_does_not_come_back_pauses_polling_longer_each_time) {
  YieldGuard guard;
  YieldGuard::Clock::time_point now{std::chrono::hours(1)};
  const auto take = [&](milliseconds how_long) {
    const auto before = now;
    now += how_long;
    guard.took(before, now);
  };
  EXPECT_TRUE(guard.open(now));
  take(milliseconds(0));
  EXPECT_TRUE(guard.open(now));
  for (const int ms : {50, 100, 200, 400, 800, 1600, 1600}) {
    const milliseconds pause(ms);
    take(milliseconds(3));
    EXPECT_FALSE(guard.open(now + pause - milliseconds(1)));
    now += pause;
    EXPECT_TRUE(guard.open(now));
  }
  now += milliseconds(1601);  // no trouble for as long as the last pause: all is forgotten
  take(milliseconds(0));
  take(milliseconds(3));
  EXPECT_TRUE(guard.open(now + milliseconds(50)));
}

}  // namespace
}  // namespace pccl::testing
