// Brings calls of other threads to the engine's thread, as functions that the driver runs. Every
// call ends: if the engine stops before a function has run, its caller gets an error that says so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "engine/driver.h"
#include "engine/ticket.h"
#include "transport/loop.h"

namespace pccl {

/// Thread-safe but for `start`.
class Calls {
 public:
  using Cost = Driver::Cost;
  /// Within which the driving thread has to answer a question. One function that was posted (a copy
  /// of gigabytes) holds it up at most.
  static constexpr std::uint64_t kAnswerMs = 30'000;

  /// From now on `loop` is driven. `broken`: called when a bug has stopped the loop.
  void start(Loop& loop, std::function<void(const Error&)> broken);

  /// Posts a function. False: no thread will run it.
  bool post(std::function<void()> function, Cost cost = Cost::small) const;
  /// Posts a function that completes the ticket which it is given.
  template <typename F>
  [[nodiscard]] std::shared_ptr<Ticket> posted(F function, Cost cost = Cost::small) const {
    auto ticket = std::make_shared<Ticket>();
    owe([ticket, f = std::move(function)]() mutable { f(ticket); },
        [ticket](const Error& error) { ticket->complete(error); }, cost);
    return ticket;
  }
  /// If `function` is destroyed before it has run to its end, `otherwise` is called with the
  /// reason.
  template <typename F, typename Otherwise>
  void owe(F function, Otherwise otherwise, Cost cost = Cost::small) const {
    auto owed =
        std::make_shared<Owed<F, Otherwise>>(std::move(function), std::move(otherwise), ending_);
    post([owed = std::move(owed)] { owed->run(); }, cost);
  }
  /// What `function` returns, which runs on the thread that drives; an error: it has not run within
  /// `limit_ms`, or never will. It may still run after that, so it keeps to what it owns.
  template <typename F>
  [[nodiscard]] Result<std::invoke_result_t<F&>> ask(F function, Cost cost = Cost::small,
                                                     std::uint64_t limit_ms = kAnswerMs) const {
    using Answer = std::invoke_result_t<F&>;
    if (driver_ && driver_->is_current()) return function();
    auto promise = std::make_shared<std::promise<Answer>>();
    auto answer = promise->get_future();
    const bool posted = post([promise = std::move(promise),
                              f = std::move(function)]() mutable { promise->set_value(f()); },
                             cost);
    if (!posted) return error();
    if (answer.wait_for(std::chrono::milliseconds(limit_ms)) != std::future_status::ready) {
      return Error{ErrorCode::timed_out,
                   "the engine's thread is busy, and has not answered within " +
                       std::to_string(limit_ms / 1000) + " s"};
    }
    try {
      return answer.get();
    } catch (const std::future_error&) {  // the function was destroyed without having run
      return error();
    }
  }
  /// As `ask`, of a function that has no answer.
  void carry_out(std::function<void()> function) const {
    static_cast<void>(ask([f = std::move(function)] {
      f();
      return true;
    }));
  }
  /// As Engine::wait.
  bool wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms) const;

  /// Functions that are posted from now on do not run, except `last`. False: that was so already.
  bool stop(std::function<void()> last = nullptr);
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// The error of each call that has not been carried out.
  [[nodiscard]] Error error() const { return ending_->error(); }
  /// May this thread wait for the end of the loop?
  [[nodiscard]] bool can_join() const { return driver_ && !forked_ && !driver_->is_current(); }
  /// Waits until the loop has ended.
  void join() { driver_->join(); }
  /// In a forked child.
  void forked();

 private:
  /// The reason why no function runs any more. Shared with the posted functions, which may outlive
  /// this object.
  class Ending {
   public:
    explicit Ending(Error error) : error_(std::move(error)) {}
    void set(Error error) {
      const std::lock_guard lock(mutex_);
      error_ = std::move(error);
    }
    [[nodiscard]] Error error() const {
      const std::lock_guard lock(mutex_);
      return error_;
    }

   private:
    mutable std::mutex mutex_;
    Error error_;
  };

  template <typename F, typename Otherwise>
  class Owed {
   public:
    Owed(F function, Otherwise otherwise, std::shared_ptr<const Ending> ending)
        : function_(std::move(function)),
          otherwise_(std::move(otherwise)),
          ending_(std::move(ending)) {}
    ~Owed() {
      if (!ran_) otherwise_(ending_->error());
    }
    Owed(const Owed&) = delete;
    Owed& operator=(const Owed&) = delete;
    void run() {
      function_();
      ran_ = true;
    }

   private:
    F function_;
    Otherwise otherwise_;
    std::shared_ptr<const Ending> ending_;
    bool ran_ = false;
  };

  mutable std::optional<Driver> driver_;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> forked_ = false;
  std::shared_ptr<Ending> ending_ =
      std::make_shared<Ending>(Error{ErrorCode::closed, "the engine has been closed"});
  std::shared_ptr<Ending> forked_ending_ = std::make_shared<Ending>(Error{
      ErrorCode::closed, "the group belongs to the parent process: a forked child cannot use it"});
};

}  // namespace pccl
