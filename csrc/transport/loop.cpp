// The loop over libuv. Its own rules: exceptions of callbacks (broken invariants) stop the loop and
// leave through run(); deferred functions run right after the callback that deferred them, before
// the loop waits.
#include "transport/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "transport/loop_state.h"
#include "transport/sys.h"

namespace pccl {
namespace {
constexpr int kDeferRoundsMax = 64;  // then sockets have their turn again
constexpr int kCloseRoundsMax = 200;
// Then timers (heartbeats) and sockets have their turn: a program may post copies of gigabytes.
constexpr std::uint64_t kPostedTurnNs = 5'000'000;
}  // namespace

void Loop::State::run_posted(Which which) {
  const std::uint64_t until = uv_hrtime() + kPostedTurnNs;
  while (!broken) {
    std::function<void()> function;
    {
      const std::lock_guard lock(posted_mutex);
      if (posted.empty()) return;
      if (uv_hrtime() >= until) break;
      if (which == Which::to_a_long_one && posted.front().runs_long) break;
      function = std::move(posted.front().function);
      posted.pop_front();
    }
    guard(function);
    if (broken) broke = std::move(function);
  }
  uv_async_send(&wake);
}

void Loop::State::run_deferred() {
  for (int round = 0; round < kDeferRoundsMax && !deferred.empty(); ++round) {
    std::vector<std::function<void()>> now;
    now.swap(deferred);
    for (auto& function : now) guard(function);
    now.clear();                               // destructors of the functions may defer more
    if (deferred.empty()) deferred.swap(now);  // keeps the memory: it runs several times a segment
  }
  if (deferred.empty() && turns.empty()) {
    uv_idle_stop(&busy);
  } else {
    uv_idle_start(&busy, [](uv_idle_t*) {});
  }
}

/// Looks at what is watched. If nothing has come, nothing was deferred, and nothing comes while all
/// are told, the loop may wait: else who runs it once would wait although something has happened.
void Loop::State::before_waiting() {
  bool came = !deferred.empty() || !turns.empty();
  const bool handled_before = handled;
  for (std::size_t i = 0; i < watched.size(); ++i) {  // a look may add some, and end some
    guard([&] { came = (watched[i] != nullptr && watched[i]->look()) || came; });
  }
  handled = handled_before || came;
  run_deferred();  // may end watches too
  std::erase(watched, nullptr);
  if (!came && !watched.empty() && may_wait &&
      uv_is_active(reinterpret_cast<uv_handle_t*>(&busy)) == 0) {
    sleeps = true;
    for (Watched* one : watched) came = !one->sleep() || came;
  }
  if (came) uv_idle_start(&busy, [](uv_idle_t*) {});
}

void Loop::State::after_waiting() {
  if (std::exchange(sleeps, false)) {
    for (Watched* one : watched) {
      if (one != nullptr) one->wake();
    }
  }
  if (!turns.empty()) guard([&] { turns.serve(helpers, &uv_hrtime); });
  run_deferred();
}

void Loop::State::rethrow() {
  if (!broken) return;
  const std::exception_ptr thrown = broken;
  broken = nullptr;
  std::rethrow_exception(thrown);
}

Loop::Loop(std::size_t threads) : state_(std::make_unique<State>(threads)) {
  State& s = *state_;
  PCCL_ASSERT(uv_loop_init(&s.uv) == 0, "libuv could not make a loop (out of descriptors?)");
  s.uv.data = &s;
  const int made = uv_async_init(&s.uv, &s.wake, [](uv_async_t* handle) {
    State::of(reinterpret_cast<uv_handle_t*>(handle)).run_posted(State::Which::all);
  });
  PCCL_ASSERT(made == 0, uv_strerror(made));
  uv_prepare_init(&s.uv, &s.before_wait);
  uv_prepare_start(&s.before_wait, [](uv_prepare_t* handle) {
    State::of(reinterpret_cast<uv_handle_t*>(handle)).before_waiting();
  });
  uv_check_init(&s.uv, &s.after_wait);
  uv_check_start(&s.after_wait, [](uv_check_t* handle) {
    State::of(reinterpret_cast<uv_handle_t*>(handle)).after_waiting();
  });
  uv_idle_init(&s.uv, &s.busy);
  s.fds.add(uv_backend_fd(&s.uv));
  s.fds.add(s.uv.async_io_watcher.fd);
  for (const int fd : s.uv.signal_pipefd) {
    if (fd >= 0) s.fds.add(fd);
  }
}

Loop::~Loop() {
  State& s = *state_;
  if (s.fds.in_child()) {
    // The descriptors are closed and their numbers may name something else by now: touch nothing.
    (void)state_.release();
    return;
  }
  s.deferred.clear();
  s.kept.clear();
  s.deferred.clear();
  for (uv_handle_t* handle :
       {reinterpret_cast<uv_handle_t*>(&s.wake), reinterpret_cast<uv_handle_t*>(&s.before_wait),
        reinterpret_cast<uv_handle_t*>(&s.after_wait), reinterpret_cast<uv_handle_t*>(&s.busy)}) {
    uv_close(handle, nullptr);
  }
  for (int round = 0; round < kCloseRoundsMax; ++round) {
    uv_run(&s.uv, UV_RUN_NOWAIT);
    if (uv_loop_close(&s.uv) == 0) return;
    uv_sleep(1);
  }
  // A name that is still being resolved (it cannot be interrupted) will write here when it is done.
  log_debug("a loop was left behind: a name is still being resolved");
  (void)state_.release();
}

void Loop::run() {
  State& s = *state_;
  while (!s.stop_asked) {
    uv_run(&s.uv, UV_RUN_DEFAULT);
    s.rethrow();
  }
  s.stop_asked = false;
}

bool Loop::run_once(bool wait) {
  state_->may_wait = wait;
  state_->handled = false;
  uv_run(&state_->uv, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT);
  state_->may_wait = true;
  state_->run_deferred();  // UV_RUN_ONCE ends with timers
  state_->rethrow();
  return state_->handled;
}

void Loop::run_now(std::function<void()> function, Place place) {
  uv_update_time(&state_->uv);
  state_->add(std::move(function), place);
  state_->run_posted(State::Which::to_a_long_one);
  state_->run_deferred();
  state_->rethrow();
}

void Loop::watch(Watched& one) { state_->watched.push_back(&one); }

void Loop::unwatch(Watched& one) {
  std::replace(state_->watched.begin(), state_->watched.end(), &one,
               static_cast<Watched*>(nullptr));
}

bool Loop::stopping() const { return state_->stop_asked; }

void Loop::wake() { uv_async_send(&state_->wake); }

void Loop::stop() {
  post([this] {
    state_->stop_asked = true;
    uv_stop(&state_->uv);
  });
}

void Loop::post(std::function<void()> function) { post(std::move(function), Place::last); }

void Loop::post(std::function<void()> function, Place place) {
  if (state_->add(std::move(function), place)) wake();
}

bool Loop::State::add(std::function<void()>&& function, Place place) {
  const std::lock_guard lock(posted_mutex);
  if (refuses) return false;  // destroyed by the caller, without the lock
  posted.insert(place == Place::first ? posted.begin() : posted.end(),
                Posted{std::move(function), place == Place::last_and_long});
  return true;
}

void Loop::refuse_posts() {
  std::deque<State::Posted> dropped;
  {
    const std::lock_guard lock(state_->posted_mutex);
    state_->refuses = true;
    dropped.swap(state_->posted);
  }
  dropped.clear();
  state_->broke = nullptr;
}

void Loop::defer(std::function<void()> function) {
  state_->deferred.push_back(std::move(function));
}

void Loop::keep(std::shared_ptr<void> object) {
  const void* key = object.get();
  state_->kept[key] = std::move(object);
}

void Loop::release(const void* object) { state_->kept.erase(object); }

std::uint64_t Loop::now_ms() const { return uv_now(&state_->uv); }
std::uint64_t Loop::boot_ms() const { return pccl::boot_ms(); }
FdRegistry& Loop::registry() const { return state_->fds; }
Turns& Loop::turns() const { return state_->turns; }
Helpers& Loop::helpers() const { return state_->helpers; }
uv_loop_s* Loop::raw() const { return &state_->uv; }

namespace {

class LoopTimer final : public Timer {
 public:
  struct State {
    uv_timer_t uv{};
    std::function<void()> function;
  };
  explicit LoopTimer(State* state) : state_(state) {}
  ~LoopTimer() override {
    if (Loop::State::of(reinterpret_cast<uv_handle_t*>(&state_->uv)).fds.in_child()) return;
    uv_timer_stop(&state_->uv);
    // The timer's function may be running now: it is destroyed with the handle.
    uv_close(reinterpret_cast<uv_handle_t*>(&state_->uv),
             [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
  }

 private:
  State* state_;
};

}  // namespace

std::unique_ptr<Timer> Loop::timer(std::uint64_t delay_ms, std::uint64_t repeat_ms,
                                   std::function<void()> function) {
  auto state = std::make_unique<LoopTimer::State>();
  state->function = std::move(function);
  state->uv.data = state.get();
  // Owned before libuv has heard of it: memory may run out until then.
  auto timer = std::make_unique<LoopTimer>(state.get());
  LoopTimer::State* const started = state.release();
  uv_timer_init(&state_->uv, &started->uv);
  uv_update_time(&state_->uv);  // a callback that ran long must not shorten the delay
  uv_timer_start(
      &started->uv,
      [](uv_timer_t* handle) {
        auto* fired = static_cast<LoopTimer::State*>(handle->data);
        State::of(reinterpret_cast<uv_handle_t*>(handle)).guard(fired->function);
      },
      delay_ms, repeat_ms);
  return timer;
}

}  // namespace pccl
