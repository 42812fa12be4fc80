// Sits between a dialler and a port: passes on every byte, keeps a copy, and holds the answers back
// or cuts a connection when it is told to.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support.h"
#include "transport/address.h"
#include "transport/listen.h"

namespace pccl::test {

class Tap {
 public:
  /// `most`: of that many connections; a later one finds nobody.
  Tap(Loop& loop, std::uint16_t to, std::size_t most = 100)
      : loop_(loop),
        to_(to),
        most_(most),
        listening_(std::move(listen_on(loop, {"127.0.0.1"}, 0, 0)).value()),
        address_(local_address(listening_[0].fd()).text()) {
    ticks_ = loop.timer(1, 1, [this] { pass(); });
  }
  ~Tap() { end(); }
  Tap(const Tap&) = delete;
  Tap& operator=(const Tap&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }
  /// Is the text among the bytes that went one way over one connection?
  [[nodiscard]] bool has_seen(std::string_view text) const {
    const auto in = [&](const std::vector<std::byte>& bytes) {
      return text_of(bytes).find(text) != std::string::npos;
    };
    return std::any_of(passing_.begin(), passing_.end(),
                       [&](const auto& one) { return in(one->said) || in(one->there.received); });
  }
  /// Bytes that diallers have sent.
  [[nodiscard]] std::size_t said() const {
    std::size_t bytes = 0;
    for (const auto& one : passing_) bytes += one->said.size();
    return bytes;
  }
  [[nodiscard]] std::size_t connections() const { return passing_.size(); }
  /// Cuts one connection, by the order in which they came.
  void cut(std::size_t index) {
    Passing& one = *passing_[index];
    ::shutdown(one.here, SHUT_RDWR);
    ::shutdown(one.there.fd(), SHUT_RDWR);
  }
  /// Cuts all connections, and passes on no more.
  void end() {
    for (const auto& one : passing_) {
      if (one->here >= 0) ::close(std::exchange(one->here, -1));
    }
    ticks_.reset();
  }

  /// Changes one bit of that byte of those that a dialler sends.
  std::optional<std::size_t> changes;
  /// Keeps what the port answers after a dialler's third message, the last one of its handshake.
  bool holds_answers = false;

 private:
  struct Passing {
    Passing(Loop& loop, std::uint16_t to, int here_) : there(loop, to), here(here_) {}
    BareClient there;
    int here;
    std::vector<std::byte> said;
    std::size_t sent = 0;    // of `said`
    std::size_t passed = 0;  // of what has come back
    std::size_t messages = 0;
    std::optional<std::size_t> held_at;
  };

  void pass() {
    while (!listening_.empty()) {
      const int here =
          ::accept4(listening_[0].fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (here < 0) break;
      passing_.push_back(std::make_unique<Passing>(loop_, to_, here));
      if (passing_.size() == most_) listening_.clear();
    }
    for (const auto& one : passing_) pass(*one);
  }
  void pass(Passing& one) {
    std::array<std::byte, 1U << 16> buffer;
    const auto got = ::recv(one.here, buffer.data(), buffer.size(), 0);
    static_cast<void>(one.there.closed());  // reads
    if (got > 0) {
      const auto bytes = std::span(buffer).first(static_cast<std::size_t>(got));
      one.said.insert(one.said.end(), bytes.begin(), bytes.end());
      if (changes && one.sent <= *changes && *changes < one.said.size()) {
        one.said[*changes] ^= std::byte{0x10};
        changes.reset();
      }
      ++one.messages;
      if (one.messages == 3 && holds_answers) one.held_at = one.there.received.size();
    }
    if (one.sent < one.said.size())
      one.sent += one.there.send(std::span(one.said).subspan(one.sent));
    const auto& received = one.there.received;
    const std::size_t end = holds_answers && one.held_at ? *one.held_at : received.size();
    while (one.passed < end) {
      const auto sent =
          ::send(one.here, received.data() + one.passed, end - one.passed, MSG_NOSIGNAL);
      if (sent <= 0) break;
      one.passed += static_cast<std::size_t>(sent);
    }
  }

  Loop& loop_;
  std::uint16_t to_;
  std::size_t most_;
  std::vector<Socket> listening_;
  std::string address_;
  std::vector<std::unique_ptr<Passing>> passing_;
  std::unique_ptr<Timer> ticks_;
};

}  // namespace pccl::test
