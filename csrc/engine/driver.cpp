#include "engine/driver.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "base/log.h"
#include "engine/poll_budget.h"
#include "transport/threads.h"

namespace pccl {
namespace {

// Without a caller for this long the engine's own thread drives: what arrives then waits no longer.
constexpr std::chrono::milliseconds kStandByMs{1};

// A caller that waits while another one drives looks this often whether the loop has ended.
constexpr std::uint64_t kDriverLookMs = 1000;

// 13 us instead of 40 for 4 bytes at 2 ranks, 59 instead of 146 at 4 (two cores).
constexpr std::chrono::microseconds kPollUs{100};

std::optional<std::uint64_t> left_until(
    std::optional<std::chrono::steady_clock::time_point> deadline) {
  if (!deadline) return {};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      *deadline - std::chrono::steady_clock::now());
  return static_cast<std::uint64_t>(std::max<std::int64_t>(left.count(), 0));
}

}  // namespace

Driver::Driver(Loop& loop, std::function<void(const std::string&)> broken)
    : loop_(loop), broken_(std::move(broken)) {
  state_->thread = start_thread("pccl-engine", [this] { run(); });
}

// ------------------------------------------------------------------------------- who drives

void Driver::enter(Lock& lock, User user) {
  state_->user = user;
  current_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  lock.unlock();
}

void Driver::leave(Lock& lock) {
  if (loop_.stopping()) loop_.refuse_posts();
  lock.lock();
  State& s = *state_;
  s.user = User::none;
  current_.store({}, std::memory_order_relaxed);
  if (loop_.stopping()) s.ended = true;
  if (s.waiting > 0) s.called = true;  // a waiting thread needs another thread that drives, soon
  if (s.wanted > 0 || s.ended) s.freed.notify_all();
  if (s.asleep || s.called || s.ended) s.stand_by.notify_one();
}

void Driver::guard(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& e) {
    say_broken(e.what());
    loop_.refuse_posts();
    const Lock lock(state_->mutex);
    state_->ended = true;
  }
}

/// Where memory has run out it may do so here, too. Then callers that wait learn from `ended` that
/// no outcome comes.
void Driver::say_broken(const char* what) noexcept {
  try {
    log_error(std::string("the engine has stopped, this is a bug in pccl: ") + what);
  } catch (const std::bad_alloc&) {
    log_error(what);
  }
  try {
    broken_(what);
  } catch (const std::exception& again) {
    log_error(again.what());
  }
}

void Driver::run() {
  Lock lock(state_->mutex);
  for (;;) {
    stand_by(lock);
    if (state_->ended) return;
    enter(lock, User::engine);
    guard([this] { loop_.run_once(/*wait=*/true); });
    leave(lock);
  }
}

/// Returns when the engine's thread has to drive: at once, or, after a caller has driven, when
/// none has come back for a while.
void Driver::stand_by(Lock& lock) {
  State& s = *state_;
  while (!s.ended && (s.wanted > 0 || s.user == User::waiter || s.used)) {
    if (s.called && s.wanted == 0 && s.user == User::none) break;
    s.used = false;
    s.stand_by.wait_for(lock, kStandByMs);
    if (s.user == User::waiter && !s.used) {
      // A long wait: its end wakes us.
      sleep_until(lock, [&] { return s.user != User::waiter; });
      s.used = true;
    }
  }
  // A program that posts and posts must not keep us from driving: its functions are queued now.
  s.called = true;
  sleep_until(lock, [&] { return s.user == User::none; });
  s.used = false;
  s.called = false;
}

template <typename Condition>
void Driver::sleep_until(Lock& lock, Condition condition) {
  State& s = *state_;
  s.asleep = true;
  s.stand_by.wait(lock, [&] { return s.ended || condition(); });
  s.asleep = false;
}

// ------------------------------------------------------------------------------- callers

void Driver::post(std::function<void()> function, Cost cost) {
  const auto place = cost == Cost::look    ? Loop::Place::first
                     : cost == Cost::large ? Loop::Place::last_and_long
                                           : Loop::Place::last;
  {
    Lock lock(state_->mutex);
    State& s = *state_;
    const bool free = s.user == User::none && !s.ended;
    if (free && cost != Cost::large && !s.called) {
      enter(lock, User::poster);
      guard([&] { loop_.run_now(std::move(function), place); });
      return leave(lock);
    }
    // A poster that runs the loop now leaves what is large to the engine's thread, and tells it.
    if (free || (s.user == User::poster && cost == Cost::large)) s.called = true;
    if (free) s.stand_by.notify_one();
  }
  loop_.post(std::move(function), place);
}

bool Driver::wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms) {
  if (ticket.done()) return true;
  std::optional<Clock::time_point> deadline;
  if (timeout_ms) deadline = Clock::now() + std::chrono::milliseconds(*timeout_ms);
  Lock lock(state_->mutex);
  State& s = *state_;
  if (s.user == User::engine) {
    ++s.wanted;
    loop_.wake();
    const auto free = [&] { return s.user != User::engine || s.ended; };
    if (deadline) {
      s.freed.wait_until(lock, *deadline, free);
    } else {
      s.freed.wait(lock, free);
    }
    --s.wanted;
  }
  while (s.user != User::none && !s.ended) {  // another caller drives, for us too
    ++s.waiting;
    lock.unlock();
    const auto left_ms = left_until(deadline);
    const bool done = ticket.wait(left_ms ? std::min(*left_ms, kDriverLookMs) : kDriverLookMs);
    lock.lock();
    --s.waiting;
    if (done || left_ms.value_or(kDriverLookMs) == 0) return done;
  }
  if (s.ended) return ticket.done();
  s.used = true;
  enter(lock, User::waiter);
  guard([&] { drive_until(ticket, deadline); });
  leave(lock);
  return ticket.done();
}

/// Polls for a moment, and again after every sleep, while that finds something often enough.
void Driver::drive_until(const Ticket& ticket, std::optional<Clock::time_point> deadline) {
  YieldGuard& yields = state_->yields;
  auto now = Clock::now();
  auto polls_until = now + kPollUs;
  PollBudget polls(now);
  while (!ticket.done() && !loop_.stopping() && (!deadline || now < *deadline)) {
    const bool poll = now < polls_until && polls.left(now) && yields.open(now);
    const bool handled = loop_.run_once(/*wait=*/!poll);
    if (ticket.done()) return;
    if (poll && !handled) polls.missed();
    if (poll) yields.yield();
    now = Clock::now();
    if (!poll) polls_until = now + kPollUs;
  }
}

// ------------------------------------------------------------------------------- end

bool Driver::ended() const {
  const Lock lock(state_->mutex);
  return state_->ended;
}

void Driver::join() {
  if (!state_) return;
  const std::lock_guard one(state_->joining);
  if (state_->thread.joinable()) state_->thread.join();
}

void Driver::forget() {
  // Neither a thread that does not exist here nor a locked mutex can be destroyed.
  static_cast<void>(state_.release());
}

}  // namespace pccl
