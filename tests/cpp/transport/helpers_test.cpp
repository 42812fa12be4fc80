#include "transport/helpers.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace pccl {
namespace {

// By name, not by number: a thread that an earlier test has joined may stand here for a moment.
std::set<std::string> threads_of_this_process() {
  std::set<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    names.insert(task.path().filename());
  }
  return names;
}

std::size_t started_since(const std::set<std::string>& before) {
  const std::set<std::string> now = threads_of_this_process();
  return static_cast<std::size_t>(std::count_if(
      now.begin(), now.end(), [&](const std::string& name) { return before.count(name) == 0; }));
}

TEST(Helpers, do_each_piece_once_and_what_they_wrote_is_there) {
  for (const std::size_t threads : {1U, 2U, 5U}) {
    Helpers helpers(threads);
    EXPECT_EQ(helpers.threads(), threads);
    for (std::size_t round = 0; round < 3000; ++round) {
      std::vector<std::size_t> done(round % 17);
      helpers.each(done.size(), [&](std::size_t piece) { done[piece] += piece + round; });
      for (std::size_t piece = 0; piece < done.size(); ++piece) {
        ASSERT_EQ(done[piece], piece + round);
      }
    }
  }
}

TEST(Helpers, are_woken_when_they_have_slept) {
  Helpers helpers(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they look for some 50 us
    std::vector<int> done(6);
    helpers.each(done.size(), [&](std::size_t piece) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // so does the one that asks
      done[piece] = 1;
    });
    EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), 6);
  }
}

TEST(Helpers, start_when_they_are_needed) {
  const std::set<std::string> before = threads_of_this_process();
  Helpers helpers(4);
  helpers.each(1, [](std::size_t) {});
  EXPECT_EQ(started_since(before), 0U);
  helpers.each(2, [](std::size_t) {});
  EXPECT_EQ(started_since(before), 3U);
}

TEST(Helpers, run_on_the_cores_of_the_thread_that_made_them_not_of_the_one_that_asks) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  Helpers helpers(2);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  std::atomic<int> there{0};
  std::vector<cpu_set_t> seen(2);
  helpers.each(2, [&](std::size_t piece) {  // each thread has one piece, since both wait here
    ::sched_getaffinity(0, sizeof seen[piece], &seen[piece]);
    ++there;
    while (there < 2) std::this_thread::yield();
  });
  ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
  const auto is = [&](const cpu_set_t& set) { return CPU_EQUAL(&set, &all) != 0; };
  EXPECT_TRUE(is(seen[0]) || is(seen[1]));
}

TEST(Helpers, are_left_alone_for_a_while_when_the_one_that_asks_has_waited_for_them) {
  Helpers helpers(2);
  const std::thread::id asks = std::this_thread::get_id();
  std::vector<std::thread::id> ids(2);
  const auto meet = [&](std::chrono::milliseconds late) {
    std::atomic<int> there{0};
    helpers.each(2, [&](std::size_t piece) {
      ids[piece] = std::this_thread::get_id();
      ++there;
      while (there < 2) std::this_thread::yield();
      if (ids[piece] != asks) std::this_thread::sleep_for(late);
    });
    return ids[0] == asks ? ids[1] : ids[0];
  };
  const std::thread::id other = meet(std::chrono::milliseconds(5));
  EXPECT_NE(other, asks);
  helpers.each(2, [&](std::size_t piece) { ids[piece] = std::this_thread::get_id(); });
  EXPECT_EQ(ids, std::vector<std::thread::id>(2, asks));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(meet(std::chrono::milliseconds(0)), other);
}

TEST(Helpers, tell_of_an_exception_when_all_pieces_are_done_and_go_on) {
  Helpers helpers(3);
  std::vector<int> done(8);
  const auto work = [&](std::size_t piece) {
    if (piece % 3 == 0) throw std::runtime_error("a piece");
    done[piece] = 1;
  };
  EXPECT_THROW(helpers.each(done.size(), work), std::runtime_error);
  EXPECT_EQ(done, (std::vector<int>{0, 1, 1, 0, 1, 1, 0, 1}));
  helpers.each(done.size(), [&](std::size_t piece) { done[piece] = 2; });
  EXPECT_EQ(done, std::vector<int>(8, 2));
}

TEST(Helpers, of_one_thread_only_have_the_one_that_asks) {
  Helpers helpers(1);
  std::vector<std::thread::id> ids(4);
  helpers.each(4, [&](std::size_t piece) { ids[piece] = std::this_thread::get_id(); });
  EXPECT_EQ(ids, std::vector<std::thread::id>(4, std::this_thread::get_id()));
}

}  // namespace
}  // namespace pccl
