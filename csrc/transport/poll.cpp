#include "transport/poll.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/assert.h"
#include "transport/loop_state.h"

namespace pccl {

void Socket::reset() {
  if (fd_ < 0) return;
  if (!registry_->in_child()) {
    const int error = errno;  // of the call that made the owner give up
    registry_->remove(fd_);
    ::shutdown(fd_, SHUT_RDWR);
    ::close(fd_);
    errno = error;
  }
  fd_ = -1;
}

struct Poll::State {
  uv_poll_t uv{};
  Ready ready;
  bool read = false;
  bool write = false;
  bool closed = false;

  void apply() {
    const int events = (read ? UV_READABLE : 0) | (write ? UV_WRITABLE : 0);
    if (events == 0) {
      uv_poll_stop(&uv);
    } else {
      uv_poll_start(&uv, events, [](uv_poll_t* handle, int status, int seen) {
        auto* state = static_cast<State*>(handle->data);
        const bool failed = status < 0;  // libuv has stopped the watch: EPOLLERR
        Loop::State::of(reinterpret_cast<uv_handle_t*>(handle)).guard([&] {
          state->ready(state->read && (failed || (seen & UV_READABLE) != 0),
                       state->write && (failed || (seen & UV_WRITABLE) != 0));
        });
        if (failed && !state->closed) state->apply();
      });
    }
  }
};

Poll::Poll(Loop& loop, int fd, Ready ready) : state_(new State) {
  state_->uv.data = state_;
  state_->ready = std::move(ready);
  const int made = uv_poll_init(loop.raw(), &state_->uv, fd);
  PCCL_ASSERT(made == 0, uv_strerror(made));
}

Poll::~Poll() {
  if (Loop::State::of(reinterpret_cast<uv_handle_t*>(&state_->uv)).fds.in_child()) return;
  state_->closed = true;
  uv_poll_stop(&state_->uv);
  uv_close(reinterpret_cast<uv_handle_t*>(&state_->uv),
           [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
}

void Poll::want(bool read, bool write) {
  if (read == state_->read && write == state_->write) return;
  state_->read = read;
  state_->write = write;
  state_->apply();
}

}  // namespace pccl
