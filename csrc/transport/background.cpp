#include "transport/background.h"

#include <exception>
#include <utility>

#include "base/assert.h"
#include "transport/loop_state.h"

namespace pccl {

struct SignalWatch::State {
  uv_signal_t uv{};
  std::function<void()> function;
};

SignalWatch::SignalWatch(Loop& loop, int signal, std::function<void()> function)
    : state_(new State) {
  state_->function = std::move(function);
  state_->uv.data = state_;
  const int made = uv_signal_init(loop.raw(), &state_->uv);
  PCCL_ASSERT(made == 0, uv_strerror(made));
  const int started = uv_signal_start(
      &state_->uv,
      [](uv_signal_t* handle, int) {
        auto* watch = static_cast<State*>(handle->data);
        Loop::State::of(reinterpret_cast<uv_handle_t*>(handle)).guard(watch->function);
      },
      signal);
  PCCL_ASSERT(started == 0, uv_strerror(started));
}

SignalWatch::~SignalWatch() {
  uv_signal_stop(&state_->uv);
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->uv),
           [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
}

namespace {

struct Job {
  uv_work_t uv{};
  Loop::State* loop = nullptr;
  std::function<void()> work;
  std::function<void()> done;
  std::exception_ptr thrown;
};

}  // namespace

void run_in_background(Loop& loop, std::function<void()> work, std::function<void()> done) {
  auto* job = new Job;
  job->loop = &Loop::State::of(loop);
  job->work = std::move(work);
  job->done = std::move(done);
  job->uv.data = job;
  const int queued = uv_queue_work(
      loop.raw(), &job->uv,
      [](uv_work_t* request) {
        auto* running = static_cast<Job*>(request->data);
        try {
          running->work();
        } catch (...) {
          running->thrown = std::current_exception();
        }
      },
      [](uv_work_t* request, int) {
        const std::unique_ptr<Job> ended(static_cast<Job*>(request->data));
        ended->loop->guard([&] {
          if (ended->thrown) std::rethrow_exception(ended->thrown);
          ended->done();
        });
      });
  if (queued != 0) delete job;
  PCCL_ASSERT(queued == 0, uv_strerror(queued));
}

}  // namespace pccl
