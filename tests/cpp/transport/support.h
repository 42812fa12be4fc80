// What the transport tests share: running a loop until something holds, bare sockets, captured log
// lines.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "transport/address.h"
#include "transport/listen.h"
#include "transport/loop.h"
#include "transport/stream.h"
#include "transport/tls_stream.h"

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
  BareClient(Loop& loop, std::uint16_t port, const std::string& from = "127.0.0.1") : loop_(loop) {
    Socket socket = std::move(new_tcp_socket(loop, AF_INET)).value();
    fd_ = socket.fd();
    const auto own = numeric_address(from, 0).value();
    EXPECT_EQ(::bind(fd_, own.raw(), own.length), 0);
    const auto to = numeric_address("127.0.0.1", port).value();
    ::connect(fd_, to.raw(), to.length);
    stream_ = std::make_unique<SocketStream>(loop, std::move(socket));
  }
  /// Returns how many bytes were taken.
  std::size_t send(std::span<const std::byte> bytes) { return stream_->write(bytes).bytes; }
  void send(std::string_view text) { send(bytes_of(text)); }
  [[nodiscard]] int fd() const { return fd_; }
  /// Goes on under TLS, as one that dials; without it with `unprotect`.
  TlsStream& protect(std::string_view identity, const Secret& key) {
    auto tls = TlsStream::dial(loop_, std::move(stream_), identity, key);
    TlsStream& made = *tls;
    stream_ = std::move(tls);
    return made;
  }
  void unprotect() {
    auto* tls = static_cast<TlsStream*>(stream_.release());
    stream_ = TlsStream::unwrap(std::unique_ptr<TlsStream>(tls));
    ASSERT_NE(stream_, nullptr);
  }
  /// Reads what is there; true once the other side has closed (or reset) the connection.
  bool closed() {
    std::array<std::byte, 4096> buffer;
    while (true) {
      const Stream::Moved got = stream_->read(buffer);
      received.insert(received.end(), buffer.data(), buffer.data() + got.bytes);
      if (got.outcome == Stream::Outcome::moved) continue;
      if (got.outcome == Stream::Outcome::failed && errno == ENOTCONN) return false;  // connecting
      return got.outcome != Stream::Outcome::later;
    }
  }
  std::vector<std::byte> received;

 private:
  Loop& loop_;
  int fd_ = -1;
  std::unique_ptr<Stream> stream_;
};

/// run_until for what no event of the loop announces (a bare socket, a time): looks every few
/// milliseconds.
inline bool poll_until(Loop& loop, const std::function<bool()>& done,
                       std::uint64_t timeout_ms = kTestMs) {
  const auto ticks = loop.timer(2, 2, [] {});
  return run_until(loop, done, timeout_ms);
}

/// Runs the loop for so long.
inline void pass(Loop& loop, std::uint64_t ms) {
  const Stopwatch watch;
  poll_until(loop, [&] { return watch.ms() >= static_cast<std::int64_t>(ms); });
}

/// Collects log lines of this level and above while it lives.
class LogLines {
 public:
  explicit LogLines(LogLevel from = LogLevel::info) {
    set_log_level(from);
    set_log_sink([this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(text);
    });
  }
  ~LogLines() {
    set_log_sink({});
    set_log_level(before_);
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
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
  const LogLevel before_ = log_level();
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace pccl::test
