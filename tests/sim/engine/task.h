// Programs as coroutines: what a user's thread would do, as a Task that waits for conditions.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace pccl::sim {

/// Begins when it is awaited, or by `begin`. Its exceptions leave where it was resumed.
class [[nodiscard]] Task {
 public:
  struct promise_type {
    std::coroutine_handle<> then;
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() { return {}; }
    auto final_suspend() noexcept {
      struct Final {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> ended) noexcept {
          const auto then = ended.promise().then;
          return then ? then : std::noop_coroutine();
        }
        void await_resume() noexcept {}
      };
      return Final{};
    }
    void return_void() {}
    void unhandled_exception() { throw; }
  };
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  void begin() { handle_.resume(); }
  [[nodiscard]] bool done() const { return handle_.done(); }

  auto operator co_await() {
    struct Await {
      std::coroutine_handle<promise_type> handle;
      bool await_ready() { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> then) {
        handle.promise().then = then;
        return handle;
      }
      void await_resume() {}
    };
    return Await{handle_};
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace pccl::sim
