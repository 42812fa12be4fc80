// Ticket: where a user's thread meets the engine's.
#include "engine/ticket.h"

#include <atomic>
#include <chrono>
#include <utility>

namespace pccl {

bool Ticket::wait(std::optional<std::uint64_t> timeout_ms) {
  std::unique_lock lock(mutex_);
  if (!timeout_ms) {
    changed_.wait(lock, [&] { return done_; });
    return true;
  }
  return changed_.wait_for(lock, std::chrono::milliseconds(*timeout_ms), [&] { return done_; });
}

bool Ticket::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

Error Ticket::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Ticket::on_done(std::function<void()> function) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(function));
      return;
    }
  }
  function();
}

void Ticket::complete(Error error) {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    done_ = true;
    error_ = std::move(error);
    callbacks.swap(callbacks_);
    changed_.notify_all();
  }
  for (const auto& callback : callbacks) callback();
}

void on_all_done(const Tickets& tickets, std::function<void()> function) {
  struct Countdown {
    std::atomic<std::size_t> left;  // the tickets, and this call
    std::function<void()> function;
  };
  const std::shared_ptr<Countdown> countdown(
      new Countdown{tickets.size() + 1, std::move(function)});
  const auto one_less = [countdown] {
    if (countdown->left.fetch_sub(1) == 1) countdown->function();
  };
  for (const auto& ticket : tickets) ticket->on_done(one_less);
  one_less();
}

}  // namespace pccl
