#include "transport/helpers.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "transport/threads.h"

namespace pccl {
namespace {

using SteadyClock = YieldGuard::Clock;

// A thread looks for so long before it sleeps: being woken takes as long.
constexpr std::chrono::microseconds kLooksFor{50};
constexpr int kLooksAtOnce = 64;  // between two looks at the clock

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr std::uint32_t round_of(std::uint64_t open) {
  return static_cast<std::uint32_t>(open >> 32);
}
constexpr std::uint32_t untaken(std::uint64_t open) { return static_cast<std::uint32_t>(open); }

/// Waits until `value` is another one than `seen`, and returns it.
template <typename Value>
Value changed(const std::atomic<Value>& value, Value seen) {
  const SteadyClock::time_point until = SteadyClock::now() + kLooksFor;
  do {
    for (int look = 0; look < kLooksAtOnce; ++look) {
      const Value now = value.load(std::memory_order_acquire);
      if (now != seen) return now;
      pause_briefly();
    }
  } while (SteadyClock::now() < until);
  value.wait(seen, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

Helpers::Helpers(std::size_t threads) : wanted_(std::max<std::size_t>(threads, 1) - 1) {
  CPU_ZERO(&cores_);
  ::sched_getaffinity(0, sizeof cores_, &cores_);
}

Helpers::~Helpers() {
  stops_.store(true, std::memory_order_relaxed);
  open_.fetch_add(std::uint64_t{1} << 32, std::memory_order_release);
  open_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Helpers::start() {
  const std::uint32_t round = round_of(open_.load(std::memory_order_relaxed));
  threads_.reserve(wanted_);
  try {
    while (threads_.size() < wanted_) {
      threads_.push_back(start_thread("pccl-helper", [this, round] { run(round); }));
    }
  } catch (const std::system_error& error) {
    log_warning("the engine goes on with " + std::to_string(1 + threads_.size()) +
                " threads, because the system starts no more: " + error.what());
    wanted_ = threads_.size();
  }
}

/// `round`: the last one that needs no help.
void Helpers::run(std::uint32_t round) {
  if (CPU_COUNT(&cores_) > 0) ::sched_setaffinity(0, sizeof cores_, &cores_);
  while (true) {
    // Within a round the number of pieces changes: only the next round is news.
    std::uint64_t open = open_.load(std::memory_order_acquire);
    while (round_of(open) == round) open = changed(open_, open);
    if (stops_.load(std::memory_order_relaxed)) return;
    round = round_of(open);
    work_off(round);
  }
}

void Helpers::work_off(std::uint32_t round) {
  std::uint64_t open = open_.load(std::memory_order_acquire);
  while (round_of(open) == round && untaken(open) > 0) {
    // Who has taken a piece knows that its round lasts until the piece is done.
    if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acq_rel)) continue;
    work_on(untaken(open) - 1);
    open = open_.load(std::memory_order_acquire);
  }
}

void Helpers::work_on(std::size_t piece) {
  try {
    (*work_)(piece);
  } catch (...) {
    const std::lock_guard lock(thrown_mutex_);
    thrown_ = std::current_exception();
  }
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_one();
}

void Helpers::each(std::size_t count, const std::function<void(std::size_t)>& work) {
  if (count > 1 && threads_.size() < wanted_) start();
  if (count <= 1 || threads_.empty() || !guard_.open(SteadyClock::now())) {
    for (std::size_t piece = 0; piece < count; ++piece) work(piece);
    return;
  }
  work_ = &work;
  const auto pieces = static_cast<std::uint32_t>(count);
  left_.store(pieces, std::memory_order_relaxed);
  const std::uint32_t round = round_of(open_.load(std::memory_order_relaxed)) + 1;
  open_.store((std::uint64_t{round} << 32) | pieces, std::memory_order_release);
  open_.notify_all();
  work_off(round);
  const SteadyClock::time_point done = SteadyClock::now();
  for (std::uint32_t left = left_.load(std::memory_order_acquire); left > 0;) {
    left = changed(left_, left);
  }
  guard_.took(done, SteadyClock::now());
  work_ = nullptr;
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

}  // namespace pccl
