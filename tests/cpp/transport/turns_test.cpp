// Movers that share a round: whose turn it is, and what may happen in the middle of one.
#include "transport/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "transport/helpers.h"

namespace pccl {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
std::uint64_t now = 0;
std::uint64_t now_ns() { return now; }

struct PlayedMover : Mover {
  PlayedMover(Turns& turns_, std::string name_, std::vector<std::string>& log_)
      : turns(turns_), name(std::move(name_)), log(log_) {}
  ~PlayedMover() override { turns.leave(*this); }
  bool prepare() override {
    if (steps == 0) return false;
    log.push_back(name + " prepares");
    if (on_prepare) on_prepare();
    return true;
  }
  std::size_t move() override {
    now += takes_ns;
    log.push_back(name + " moves");
    return bytes;
  }
  void settle() override {
    --steps;
    log.push_back(name + " settles");
    if (on_settle) on_settle();
  }
  void rest() override {
    ++rests;
    log.push_back(name + " rests");
    if (on_rest) on_rest();
  }
  Turns& turns;
  std::string name;
  std::vector<std::string>& log;
  std::function<void()> on_prepare, on_settle, on_rest;
  int steps = 1;
  int rests = 0;
  std::uint64_t takes_ns = 0;
  std::size_t bytes = 1;
};

struct TurnsTest : testing::Test {
  PlayedMover& make(const std::string& name) {
    all.push_back(std::make_unique<PlayedMover>(turns, name, log));
    turns.enter(*all.back());
    return *all.back();
  }
  void serve() { turns.serve(helpers, &now_ns); }
  Turns turns;
  Helpers helpers{1};
  std::vector<std::string> log;
  std::vector<std::unique_ptr<PlayedMover>> all;
};

TEST_F(TurnsTest, a_turn_is_steps_until_nothing_is_left) {
  PlayedMover& a = make("a");
  a.steps = 2;
  turns.enter(a);  // once is enough
  serve();
  EXPECT_EQ(log, (std::vector<std::string>{"a prepares", "a moves", "a settles", "a prepares",
                                           "a moves", "a settles", "a rests"}));
  EXPECT_TRUE(turns.empty());
}

TEST_F(TurnsTest, nobody_has_a_second_turn_before_all_have_had_the_first) {
  constexpr int kMany = 12;
  for (int i = 0; i < kMany; ++i) {
    PlayedMover& one = make(std::to_string(i));
    one.steps = 1000;
    one.takes_ns = 3 * kMs;  // so two steps end a turn, and the round
    one.on_rest = [&] { turns.enter(one); };
  }
  for (int round = 0; round < 3 * kMany; ++round) {
    serve();
    const auto [least, most] = std::minmax_element(
        all.begin(), all.end(), [](const auto& x, const auto& y) { return x->rests < y->rests; });
    EXPECT_LE((*most)->rests - (*least)->rests, 1);
  }
  EXPECT_EQ(all.back()->rests, 3);
}

TEST_F(TurnsTest, all_have_their_turn_in_one_short_round_and_who_enters_again_waits_for_the_next) {
  for (int i = 0; i < 12; ++i) {
    PlayedMover& one = make(std::to_string(i));
    one.steps = 1000;
    one.on_settle = [&] { one.steps = 0; };
    one.on_rest = [&] { turns.enter(one); };
  }
  serve();
  for (const auto& one : all) EXPECT_EQ(one->rests, 1);
  EXPECT_FALSE(turns.empty());
}

TEST_F(TurnsTest, a_mover_may_go_in_each_part_of_a_turn_its_own_or_that_of_another_one) {
  Helpers several(3);  // then six have their turn at once
  for (const char part : {'p', 's', 'r'}) {
    for (std::size_t who = 0; who < 3; ++who) {
      for (std::size_t whom = 0; whom < 3; ++whom) {
        log.clear();
        all.clear();
        for (const char* name : {"a", "b", "c"}) make(name).steps = 2;
        auto& on = part == 'p'   ? all[who]->on_prepare
                   : part == 's' ? all[who]->on_settle
                                 : all[who]->on_rest;
        on = [&, whom] {
          const auto kept = std::move(on);  // the function must outlive its owner
          all[whom].reset();
        };
        if (part == 'p' && who == whom) continue;  // a lane says that it has ended by `false`
        turns.serve(several, &now_ns);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(all[i] == nullptr, i == whom);
          if (all[i] != nullptr) {
            EXPECT_EQ(all[i]->steps, 0) << part << who << whom << i;
          }
        }
        EXPECT_TRUE(turns.empty());
      }
    }
  }
}

TEST_F(TurnsTest, one_thread_has_one_mover_after_the_other_and_several_have_them_in_step) {
  for (const char* name : {"a", "b"}) make(name);
  serve();
  EXPECT_EQ(log[3], "a rests");
  log.clear();
  for (const auto& one : all) {
    one->steps = 1;
    turns.enter(*one);
  }
  Helpers two(2);
  turns.serve(two, &now_ns);
  EXPECT_EQ(log, (std::vector<std::string>{"a prepares", "b prepares", "a moves", "b moves",
                                           "a settles", "b settles", "a rests", "b rests"}));
}

/// Waits in `move` until another one is there too.
struct Meeting : Mover {
  explicit Meeting(int& there_, std::mutex& mutex_, std::set<std::thread::id>& threads_)
      : there(there_), mutex(mutex_), threads(threads_) {}
  bool prepare() override { return steps-- > 0; }
  std::size_t move() override {
    const bool meets = steps == 0;  // in the second step: what is heavy shows in the first one
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    if (meets) ++there;
    while (meets && there < 2) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    return 1U << 20;
  }
  void settle() override {}
  void rest() override {}
  int& there;
  std::mutex& mutex;
  std::set<std::thread::id>& threads;
  int steps = 2;
};

TEST_F(TurnsTest, movers_that_move_much_do_so_at_the_same_time) {
  Helpers two(2);
  int there = 0;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  Meeting a(there, mutex, threads);
  Meeting b(there, mutex, threads);
  turns.enter(a);
  turns.enter(b);
  turns.serve(two, &now_ns);
  EXPECT_EQ(there, 2);
  EXPECT_EQ(threads.size(), 2U);
}

}  // namespace
}  // namespace pccl
