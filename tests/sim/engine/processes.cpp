#include "processes.h"

#include <cstdio>
#include <new>
#include <utility>

#include "memory.h"

namespace pccl::sim {
namespace {

constexpr int kRoundsMax = 10000;  // of functions that defer others, at one moment

class SimTimer final : public Timer {
 public:
  SimTimer(Process& process, std::uint64_t repeat_us, std::function<void()> function)
      : state_(std::make_shared<State>(State{process, repeat_us, std::move(function)})) {}
  ~SimTimer() override { state_->runs = false; }

  void plan(std::uint64_t delay_us) { plan(state_, delay_us); }

 private:
  struct State {
    Process& process;
    std::uint64_t repeat_us;
    std::function<void()> function;
    bool runs = true;
  };
  static void plan(const std::shared_ptr<State>& state, std::uint64_t delay_us) {
    state->process.after(delay_us, [state] {
      if (!state->runs) return;
      if (state->repeat_us > 0) plan(state, state->repeat_us);
      state->function();
    });
  }
  std::shared_ptr<State> state_;
};

}  // namespace

void Time::after(std::uint64_t delay_us, Process* process, std::function<void()> what) {
  // Half of what falls on one moment comes in the order in which it was planned.
  const std::uint64_t order = (chance.below(2) == 0 ? 0 : chance.below(8) << 40) + ++count_;
  entries_.push({now_us_ + delay_us, order, process, std::move(what)});
}

bool Time::step() {
  if (entries_.empty()) return false;
  Entry next = std::move(const_cast<Entry&>(entries_.top()));
  entries_.pop();
  now_us_ = next.at_us;
  note(next.at_us);
  note(next.order);
  if (next.process == nullptr) {
    next.what();
  } else if (next.process->alive_ && next.process->stopped_) {
    next.process->held_.push_back(std::move(next.what));
  } else if (next.process->alive_) {
    next.process->run(next.what);
  }
  return true;
}

void Time::say(const Process* process, const std::string& text) {
  for (const char c : text) note(static_cast<unsigned char>(c));
  if (!trace) return;
  std::printf("%10.3f  %-4s %s\n", static_cast<double>(now_us_) / 1000,
              process == nullptr ? "" : process->name().c_str(), text.c_str());
}

std::unique_ptr<Timer> Process::timer(std::uint64_t delay_ms, std::uint64_t repeat_ms,
                                      std::function<void()> function) {
  auto timer = std::make_unique<SimTimer>(*this, repeat_ms * 1000, std::move(function));
  timer->plan(delay_ms * 1000 + 1);
  return timer;
}

void Process::post(std::function<void()> function) {
  posted_.push_back(std::move(function));
  after(1, [this] {
    if (posted_.empty()) return;
    const auto next = std::move(posted_.front());
    posted_.pop_front();
    next();
  });
}

void Process::wake() {
  stopped_ = false;
  for (auto& what : std::exchange(held_, {})) after(0, std::move(what));
}

void Process::end() {
  alive_ = false;
  held_.clear();
  // They may hold what lives on the process's network: now, as long as that lives.
  std::exchange(deferred_, {}).clear();
  std::exchange(posted_, {}).clear();
}

void Process::run(const std::function<void()>& what) {
  const Process* before = std::exchange(time_.running_, this);
  try {
    const MemoryShortage shortage(short_of_memory ? &time_.chance : nullptr);
    what();
    for (int round = 0; alive_ && !deferred_.empty(); ++round) {
      if (round > kRoundsMax) throw Violation("functions defer each other without end");
      const auto next = std::move(deferred_.front());
      deferred_.pop_front();
      next();
    }
  } catch (const Violation&) {
    throw;
  } catch (const std::bad_alloc&) {
    if (!short_of_memory) throw Violation(name_ + ": bad_alloc");
    if (broke) broke("out of memory", true);
  } catch (const std::exception& thrown) {
    if (broke) broke(thrown.what(), false);
  }
  if (!alive_) deferred_.clear();
  if (alive_ && after_each) after_each();
  time_.running_ = before;
}

}  // namespace pccl::sim
