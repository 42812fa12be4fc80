// A socket and the loop's watch over its readiness. The sockets are no libuv streams, because
// cancelling has to know exactly which bytes of a frame have been sent and received.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "transport/fd_registry.h"
#include "transport/loop.h"

namespace pccl {

/// Owns a descriptor that its loop's registry knows. Not copyable; moved like a unique_ptr.
class Socket {
 public:
  Socket() = default;
  Socket(Loop& loop, int fd) : registry_(&loop.registry()), fd_(fd) { registry_->add(fd); }
  Socket(Socket&& other) noexcept : registry_(other.registry_), fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      reset();
      registry_ = other.registry_;
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Socket() { reset(); }

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  /// Ends the connection, even if a forked child still holds the descriptor, and closes.
  void reset();

 private:
  FdRegistry* registry_ = nullptr;
  int fd_ = -1;
};

/// Watches one descriptor, level-triggered. Destroy it before the descriptor is closed; it may be
/// destroyed inside its own callback. An error on the socket counts as readable and writable: the
/// next call returns the error.
class Poll {
 public:
  using Ready = std::function<void(bool readable, bool writable)>;
  Poll(Loop& loop, int fd, Ready ready);
  ~Poll();
  Poll(const Poll&) = delete;
  Poll& operator=(const Poll&) = delete;

  void want(bool read, bool write);

 private:
  struct State;
  State* state_;
};

}  // namespace pccl
