// Processes on virtual time: each has a clock, may stop, wake, and end. One queue of what happens
// next in the whole world; what falls on the same moment comes in an order that the seed decides.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fnv.h"
#include "base/random.h"
#include "transport/clock.h"

namespace pccl::sim {

/// What must not be: ends the walk.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Process;

/// Time and chance of one walk.
class Time {
 public:
  explicit Time(std::uint64_t seed) : chance(seed) {}
  Random chance;
  bool trace = false;

  [[nodiscard]] std::uint64_t now_us() const { return now_us_; }
  [[nodiscard]] bool hit(unsigned percent) { return chance.below(100) < percent; }
  [[nodiscard]] std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + chance.below(high - low + 1);
  }
  /// Runs `what` in `delay_us`; of a process: if it lives then, and once it is awake.
  void after(std::uint64_t delay_us, Process* process, std::function<void()> what);
  /// The next thing happens. False: nothing is left.
  bool step();
  void say(const Process* process, const std::string& text);
  /// Of all that has happened and was said so far: a seed gives the same one always.
  [[nodiscard]] std::uint64_t hash() const { return hash_.value(); }
  [[nodiscard]] const Process* running() const { return running_; }

 private:
  friend class Process;
  struct Entry {
    std::uint64_t at_us;
    std::uint64_t order;
    Process* process;
    std::function<void()> what;
    bool operator<(const Entry& other) const {
      return at_us != other.at_us ? at_us > other.at_us : order > other.order;
    }
  };
  void note(std::uint64_t what) { hash_.add(what); }

  std::uint64_t now_us_ = 0;
  std::uint64_t count_ = 0;
  Fnv1a hash_;
  std::priority_queue<Entry> entries_;
  const Process* running_ = nullptr;
};

/// One process and its loop. Ended once and for all by `end`; the object stays until the walk is
/// over, because what is under way still names it.
class Process final : public Clock {
 public:
  Process(Time& time, std::string name) : time_(time), name_(std::move(name)) {}

  [[nodiscard]] std::uint64_t now_ms() const override { return time_.now_us() / 1000 + 1; }
  [[nodiscard]] std::uint64_t boot_ms() const override { return now_ms(); }
  [[nodiscard]] std::unique_ptr<Timer> timer(std::uint64_t delay_ms, std::uint64_t repeat_ms,
                                             std::function<void()> function) override;
  void defer(std::function<void()> function) override { deferred_.push_back(std::move(function)); }
  void post(std::function<void()> function) override;

  void after(std::uint64_t delay_us, std::function<void()> what) {
    time_.after(delay_us, this, std::move(what));
  }
  void stop() { stopped_ = true; }
  void wake();
  void end();
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Time& time() { return time_; }

  /// Called after all that runs in this process.
  std::function<void()> after_each;
  /// Allocations of this process fail for so long (memory.cpp).
  bool short_of_memory = false;
  /// What to do when an exception leaves what runs here; it gets the text.
  std::function<void(const std::string&, bool out_of_memory)> broke;

 private:
  friend class Time;
  void run(const std::function<void()>& what);

  Time& time_;
  std::string name_;
  bool alive_ = true;
  bool stopped_ = false;
  std::deque<std::function<void()>> deferred_;
  std::deque<std::function<void()>> posted_;
  std::vector<std::function<void()>> held_;  // while it is stopped
};

}  // namespace pccl::sim
