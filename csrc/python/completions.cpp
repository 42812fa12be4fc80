#include "python/completions.h"

#include <chrono>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"

namespace pccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdleThreadMs{10000};

thread_local bool runs_callbacks = false;

}  // namespace

bool Completions::inside() { return runs_callbacks; }

void Completions::run(std::function<void()> task, bool apart) {
  const std::lock_guard lock(mutex_);
  if (apart && running_) return run_apart(std::move(task));
  tasks_.push_back(std::move(task));
  if (running_) {
    added_.notify_one();
    return;
  }
  running_ = start([keep = shared_from_this()] { keep->loop(); });
  if (running_ || this == spare().get()) return;
  for (auto& waiting : std::exchange(tasks_, {})) spare()->run(std::move(waiting));
}

/// Called with the lock. The task has one owner, the thread that runs it, and its contents are
/// released before `drain` sees its end.
void Completions::run_apart(std::function<void()> task) {
  const auto held = std::make_shared<std::function<void()>>(std::move(task));
  const bool started = start([keep = shared_from_this(), held] {
    run_task(std::exchange(*held, nullptr));
    const std::lock_guard done(keep->mutex_);
    --keep->apart_;
    keep->idle_.notify_all();
  });
  if (started) {
    ++apart_;
  } else {
    spare()->run(std::move(*held));
  }
}

const std::shared_ptr<Completions>& Completions::spare() {
  static const auto& one = *new auto(std::make_shared<Completions>("pccl-spare", /*stays=*/true));
  return one;
}

bool Completions::keep_spare() {
  Completions& one = *spare();
  const std::lock_guard lock(one.mutex_);
  if (!one.running_) one.running_ = one.start([] { spare()->loop(); });
  return one.running_;
}

/// Detached: the last reference may go on any thread, this one included, and none may block there.
bool Completions::start(std::function<void()> body) {
  try {
    std::thread([name = thread_name_, signals = signals_, b = std::move(body)] {
      pthread_sigmask(SIG_SETMASK, &signals, nullptr);
      pthread_setname_np(pthread_self(), name);
      runs_callbacks = true;
      b();
    }).detach();
    return true;
  } catch (const std::system_error& error) {
    log_error(std::string("no thread for callbacks, another one takes them over: ") + error.what());
    return false;
  }
}

void Completions::run_task(std::function<void()> task) {
  try {
    task();
  } catch (const std::exception& error) {
    log_error(std::string("an exception left a callback: ") + error.what());
  }
}

void Completions::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool due = added_.wait_for(lock, kIdleThreadMs, [&] { return !tasks_.empty(); });
    if (!due && stays_) continue;
    if (!due) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    run_task(std::move(task));  // its contents are released without the lock
    lock.lock();
    busy_ = false;
    if (tasks_.empty()) idle_.notify_all();
  }
  running_ = false;
}

bool Completions::drain(std::uint64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, milliseconds(timeout_ms),
                        [&] { return tasks_.empty() && !busy_ && apart_ == 0; });
}

}  // namespace pccl
