// What the transport tests share: running a loop until something holds, bare sockets, captured log
// lines.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "transport/loop.h"
#include "transport/sys.h"

namespace pccl::test {

/// For what takes a moment: a busy machine under a sanitizer may be 50 times slower.
inline constexpr std::uint64_t kTestMs = 60000;

/// Runs the loop until `done()`; false after `timeout_ms`.
inline bool run_until(Loop& loop, const std::function<bool()>& done,
                      std::uint64_t timeout_ms = kTestMs) {
  bool late = false;
  const auto timer = loop.timer(timeout_ms, 0, [&] { late = true; });
  while (!late) {
    if (done()) return true;
    loop.run_once(true);
  }
  return done();
}

class Stopwatch {
 public:
  [[nodiscard]] std::int64_t ms() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A bare TCP client: what a stranger or a hostile process is made of.
class BareClient {
 public:
  BareClient(Loop& loop, std::uint16_t port) {
    socket_ = std::move(new_tcp_socket(loop, AF_INET)).value();
    const auto to = numeric_address("127.0.0.1", port).value();
    ::connect(socket_.fd(), to.raw(), to.length);
  }
  void send(std::span<const std::byte> bytes) {
    ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void send(std::string_view text) { send(bytes_of(text)); }
  [[nodiscard]] int fd() const { return socket_.fd(); }
  /// Reads what is there; true once the other side has closed (or reset) the connection.
  bool closed() {
    std::byte buffer[4096];
    while (true) {
      const auto got = ::recv(socket_.fd(), buffer, sizeof buffer, 0);
      if (got > 0) {
        received.insert(received.end(), buffer, buffer + got);
        continue;
      }
      if (got < 0 && errno == ENOTCONN) return false;  // still connecting
      return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
  }
  std::vector<std::byte> received;

 private:
  Socket socket_;
};

/// run_until for what no event of the loop announces (a bare socket, a time): looks every few
/// milliseconds.
inline bool poll_until(Loop& loop, const std::function<bool()>& done,
                       std::uint64_t timeout_ms = kTestMs) {
  const auto ticks = loop.timer(2, 2, [] {});
  return run_until(loop, done, timeout_ms);
}

/// Collects log lines while it lives.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(text);
    });
  }
  ~LogLines() { set_log_sink({}); }
  [[nodiscard]] std::size_t count(std::string_view part) {
    const std::lock_guard lock(mutex_);
    std::size_t found = 0;
    for (const std::string& line : lines_) found += line.find(part) != std::string::npos ? 1 : 0;
    return found;
  }
  [[nodiscard]] std::string all() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace pccl::test
