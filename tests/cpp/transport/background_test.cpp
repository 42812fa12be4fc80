// Signals as events, and work beside the loop.
#include "transport/background.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <thread>

#include "transport/loop.h"

namespace pccl {
namespace {

TEST(Background, a_signal_reaches_the_loop_and_not_the_process) {
  Loop loop;
  int seen = 0;
  const SignalWatch watch(loop, SIGUSR1, [&] {
    ++seen;
    loop.stop();
  });
  ASSERT_EQ(::raise(SIGUSR1), 0);
  loop.run();
  ASSERT_EQ(::raise(SIGUSR1), 0);
  loop.run();
  EXPECT_EQ(seen, 2);
}

TEST(Background, work_runs_on_another_thread_and_done_on_the_loops) {
  Loop loop;
  std::thread::id worker;
  std::thread::id ended;
  run_in_background(
      loop, [&] { worker = std::this_thread::get_id(); },
      [&] {
        ended = std::this_thread::get_id();
        loop.stop();
      });
  loop.run();
  EXPECT_NE(worker, std::this_thread::get_id());
  EXPECT_EQ(ended, std::this_thread::get_id());
}

TEST(Background, an_exception_of_the_work_leaves_through_run) {
  Loop loop;
  run_in_background(loop, [] { throw std::runtime_error("broken disk"); }, [] { FAIL(); });
  EXPECT_THROW(loop.run(), std::runtime_error);
}

TEST(Background, a_loop_that_ends_first_waits_for_the_work) {
  bool worked = false;
  {
    Loop loop;
    run_in_background(loop, [&] { worked = true; }, [] {});
  }
  EXPECT_TRUE(worked);
}

}  // namespace
}  // namespace pccl
