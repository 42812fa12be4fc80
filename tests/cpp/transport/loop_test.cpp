#include "transport/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "no_memory.h"
#include "support.h"
#include "transport/fd_registry.h"
#include "transport/poll.h"
#include "transport/turns.h"

namespace pccl {
namespace {

TEST(Loop, posted_functions_run_in_their_order_on_the_loops_thread) {
  Loop loop;
  std::vector<int> seen;
  std::thread::id where;
  std::thread thread([&] { loop.run(); });
  for (int i = 0; i < 1000; ++i) {
    loop.post([&, i] {
      seen.push_back(i);
      where = std::this_thread::get_id();
    });
  }
  loop.post([&] { loop.stop(); });
  const auto id = thread.get_id();
  thread.join();
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(where, id);
}

TEST(Loop, functions_posted_by_several_threads_all_run) {
  Loop loop;
  int count = 0;
  std::thread runner([&] { loop.run(); });
  std::vector<std::thread> posters;
  for (int t = 0; t < 4; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < 500; ++i) loop.post([&] { ++count; });
    });
  }
  for (auto& poster : posters) poster.join();
  loop.stop();
  runner.join();
  // stop() was posted last, so all of them ran before it.
  EXPECT_EQ(count, 2000);
}

TEST(Loop, a_timer_fires_between_posted_functions_that_take_long_and_their_order_stays) {
  Loop loop;
  std::vector<int> seen;
  int at = -1;
  const auto timer = loop.timer(20, 0, [&] { at = static_cast<int>(seen.size()); });
  for (int i = 0; i < 20; ++i) {
    loop.post([&, i] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      seen.push_back(i);
    });
  }
  loop.run_now([&] { seen.push_back(20); });  // a turn of those before it, and then posted itself
  EXPECT_LT(seen.size(), 20U);
  loop.post([&] { loop.stop(); });
  loop.run();
  EXPECT_LT(at, 20);
  ASSERT_EQ(seen.size(), 21U);
  for (int i = 0; i < 21; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(Loop, what_is_posted_first_overtakes_what_has_not_run) {
  Loop loop;
  std::vector<int> seen;
  loop.post([&] { seen.push_back(1); });
  loop.post([&] { seen.push_back(0); }, Loop::Place::first);
  loop.stop();
  loop.run();
  EXPECT_EQ(seen, (std::vector<int>{0, 1}));
}

TEST(Loop, what_is_run_now_in_the_first_place_runs_before_what_was_posted) {
  Loop loop;
  std::vector<int> seen;
  for (int i = 0; i < 10; ++i) {
    loop.post([&seen] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      seen.push_back(1);
    });
  }
  loop.run_now([&seen] { seen.push_back(0); }, Loop::Place::first);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.front(), 0);
  EXPECT_LT(seen.size(), 11U);
}

TEST(Loop, what_runs_long_is_left_to_who_runs_the_loop_with_all_that_comes_after_it) {
  Loop loop;
  std::vector<int> seen;
  loop.post([&] { seen.push_back(0); });
  loop.post([&] { seen.push_back(1); }, Loop::Place::last_and_long);
  loop.run_now([&] { seen.push_back(2); });
  EXPECT_EQ(seen, (std::vector<int>{0}));
  loop.run_once(/*wait=*/true);
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2}));
}

TEST(Loop, stop_before_run_makes_run_return_at_once) {
  Loop loop;
  bool before = false;
  loop.post([&] { before = true; });
  loop.stop();
  bool after = false;
  const auto timer = loop.timer(test::kTestMs, 0, [&] { after = true; });
  loop.run();
  EXPECT_TRUE(before);
  EXPECT_FALSE(after);
}

TEST(Loop, a_timer_fires_once_and_a_repeating_one_until_it_is_destroyed) {
  Loop loop;
  int once = 0;
  int often = 0;
  std::unique_ptr<Timer> single = loop.timer(1, 0, [&] { ++once; });
  std::unique_ptr<Timer> repeating;
  repeating = loop.timer(1, 1, [&] {
    if (++often == 3) repeating.reset();  // inside its own callback
  });
  bool later = false;
  const auto end = loop.timer(30, 0, [&] { later = true; });
  ASSERT_TRUE(test::run_until(loop, [&] { return later; }));
  EXPECT_EQ(once, 1);
  EXPECT_EQ(often, 3);
}

TEST(Loop, a_destroyed_timer_does_not_fire) {
  Loop loop;
  bool fired = false;
  loop.timer(1, 0, [&] { fired = true; }).reset();
  bool later = false;
  const auto end = loop.timer(10, 0, [&] { later = true; });
  ASSERT_TRUE(test::run_until(loop, [&] { return later; }));
  EXPECT_FALSE(fired);
}

TEST(Loop, a_timer_for_which_memory_has_run_out_never_fires) {
  Loop loop;
  int fired = 0;
  bool failed = true;
  for (std::size_t nth = 0; failed; ++nth) {
    std::unique_ptr<Timer> timer;
    test::requests_until_none = nth;
    try {
      timer = loop.timer(1, 1, [&] { ++fired; });
    } catch (const std::bad_alloc&) {
    }
    failed = test::requests_until_none == test::kNoLimit;
    test::requests_until_none = test::kNoLimit;
    EXPECT_EQ(timer == nullptr, failed);
    timer.reset();
    const auto enough = loop.timer(20, 0, [&] { loop.stop(); });
    loop.run();
    EXPECT_EQ(fired, 0) << nth;
  }
}

TEST(Loop, deferred_functions_run_before_it_waits_also_when_they_defer_more) {
  Loop loop;
  int count = 0;
  std::function<void()> again = [&] {
    if (++count < 500) loop.defer(again);
  };
  loop.defer(again);
  ASSERT_TRUE(test::run_until(loop, [&] { return count == 500; }));
}

TEST(Loop, a_broken_invariant_in_a_callback_leaves_through_run) {
  Loop loop;
  bool later = false;
  loop.post([] { PCCL_ASSERT(1 == 2, "on purpose"); });
  loop.post([&] { later = true; });
  EXPECT_THROW(loop.run(), BrokenInvariant);
  EXPECT_FALSE(later);
}

TEST(Loop, it_wakes_for_post_while_it_waits) {
  Loop loop;
  std::atomic<bool> ran{false};
  std::thread thread([&] { loop.post([&] { ran = true; }); });
  while (!ran) loop.run_once(true);
  thread.join();
}

TEST(Loop, it_does_not_wait_where_a_deferred_function_has_run) {
  Loop loop;
  bool late = false;
  const auto timer = loop.timer(test::kTestMs, 0, [&] { late = true; });
  bool ran = false;
  loop.defer([&] { ran = true; });
  loop.run_once(true);
  EXPECT_TRUE(ran);
  EXPECT_FALSE(late);
}

TEST(Loop, it_says_of_a_round_whether_something_was_there) {
  Loop loop;
  EXPECT_FALSE(loop.run_once(false));
  loop.post([] {});
  EXPECT_TRUE(loop.run_once(false));
  EXPECT_FALSE(loop.run_once(false));
  loop.defer([] {});
  EXPECT_TRUE(loop.run_once(false));
  const auto timer = loop.timer(1, 0, [] {});
  EXPECT_TRUE(loop.run_once(true));
  EXPECT_FALSE(loop.run_once(false));
}

/// Has something when `come` is set.
struct CountedLooks : Loop::Watched {
  bool look() override {
    if (!come) return false;
    come = false;
    ++looks;
    if (on_look) on_look();
    return true;
  }
  bool sleep() override {
    ++sleeps;
    if (!comes_at_last) return true;
    come = true;
    comes_at_last = false;
    return false;
  }
  void wake() override { ++wakes; }
  std::function<void()> on_look;
  bool come = false;
  bool comes_at_last = false;
  int looks = 0;
  int sleeps = 0;
  int wakes = 0;
};

TEST(Loop, it_looks_at_what_is_watched_and_tells_it_before_and_after_it_waits) {
  Loop loop;
  CountedLooks seen;
  loop.watch(seen);
  EXPECT_FALSE(loop.run_once(false)) << "a look alone is nothing";
  seen.come = true;
  EXPECT_TRUE(loop.run_once(true)) << "returns, though nothing else has come";
  EXPECT_EQ(seen.looks, 1);
  EXPECT_EQ(seen.sleeps, 0);
  loop.run_once(false);
  EXPECT_EQ(seen.sleeps, 0) << "it does not wait";
  seen.comes_at_last = true;
  loop.run_once(true);  // what has come at last keeps it from waiting
  EXPECT_EQ(seen.sleeps, 1);
  EXPECT_EQ(seen.wakes, 1);
  loop.run_once(true);
  EXPECT_EQ(seen.looks, 2);
  bool late = false;
  const auto timer = loop.timer(1, 0, [&] { late = true; });
  while (!late) loop.run_once(true);
  EXPECT_GT(seen.sleeps, 1);
  EXPECT_EQ(seen.wakes, seen.sleeps);
  loop.unwatch(seen);
  seen.come = true;
  loop.run_once(false);
  EXPECT_EQ(seen.looks, 2);
}

TEST(Loop, watches_may_end_in_a_look_and_in_what_runs_just_before_the_loop_waits) {
  Loop loop;
  std::vector<std::unique_ptr<CountedLooks>> all;
  for (int i = 0; i < 3; ++i) loop.watch(*all.emplace_back(std::make_unique<CountedLooks>()));
  all[0]->on_look = [&] {
    loop.unwatch(*all[1]);
    all[1].reset();
    loop.unwatch(*all[0]);
  };
  all[0]->come = true;
  loop.run_once(false);
  EXPECT_EQ(all[0]->looks, 1);
  // A timer that is due defers a function: it runs when the looks are over.
  bool ended = false;
  const auto timer = loop.timer(1, 0, [&] {
    loop.defer([&] {
      loop.unwatch(*all[2]);
      all[2].reset();
      ended = true;
    });
  });
  while (!ended) loop.run_once(true);
  loop.run_once(false);
}

/// Moves a byte in each turn, and enters again.
struct Restless : Mover {
  explicit Restless(Loop& loop_) : loop(loop_) { loop.turns().enter(*this); }
  ~Restless() override { loop.turns().leave(*this); }
  bool prepare() override { return std::exchange(fresh, false); }
  std::size_t move() override { return 1; }
  void settle() override {}
  void rest() override {
    ++rests;
    fresh = true;
    loop.turns().enter(*this);
  }
  Loop& loop;
  bool fresh = true;
  int rests = 0;
};

TEST(Loop, gives_turns_in_each_round_and_does_not_wait_while_a_mover_does) {
  Loop loop;
  Restless mover(loop);
  int timers = 0;
  const auto timer = loop.timer(1, 1, [&] { ++timers; });
  for (int round = 1; round <= 50; ++round) {
    loop.run_once(/*wait=*/true);
    EXPECT_EQ(mover.rests, round);
  }
  while (timers == 0) loop.run_once(/*wait=*/true);
}

TEST(Loop, that_goes_with_a_mover_that_waits) {
  auto loop = std::make_unique<Loop>(/*threads=*/3);
  auto mover = std::make_unique<Restless>(*loop);
  loop->run_once(/*wait=*/true);
  EXPECT_EQ(mover->rests, 1);
  mover.reset();
  bool ran = false;
  loop->post([&] { ran = true; });
  loop->run_once(/*wait=*/false);
  EXPECT_TRUE(ran);
}

TEST(FdRegistry, a_forked_child_closes_all_descriptors_of_the_loop_and_nothing_else) {
  Loop loop;
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  int other[2];
  ASSERT_EQ(::pipe(other), 0);
  Socket ours(loop, fds[0]);
  const int backend = loop.registry().contains(fds[0]) ? fds[0] : -1;
  ASSERT_EQ(backend, fds[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    loop.registry().close_in_child();
    const bool closed = ::fcntl(fds[0], F_GETFD) < 0;
    const bool kept = ::fcntl(other[0], F_GETFD) >= 0;
    ours.reset();  // inert
    ::_exit(closed && kept ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GE(::fcntl(fds[0], F_GETFD), 0);  // the parent's is untouched
  ::close(fds[1]);
  ::close(other[0]);
  ::close(other[1]);
}

}  // namespace
}  // namespace pccl
