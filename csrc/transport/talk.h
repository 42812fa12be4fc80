// A connection before it is proven: messages of fixed size, in turn, within kHandshakeMs. Reads no
// byte beyond the expected message, so that the stream can be handed on, or protected by TLS,
// between two messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/loop.h"
#include "transport/stream.h"
#include "transport/tls_stream.h"

namespace pccl {

/// How a talk has ended that was not taken.
struct TalkEnd {
  enum class How : std::uint8_t {
    failed,      // this side has ended it, or was told to: its reason
    looked,      // the other side has closed it without having sent a byte
    gone,        // the other side has closed it, or its process has ended
    not_pccl,    // the other side's bytes are not those of pccl
    not_proven,  // one of the ends does not hold the key
  };
  How how = How::failed;
  std::string reason;

  /// What a dialler says of the address.
  [[nodiscard]] std::string at_dialled() const {
    return (how == How::not_pccl ? "another program listens there: " : "") + reason;
  }
};
/// What a dialler says of an address when it has waited in vain.
inline constexpr const char* kNoAnswer =
    "connected, but no answer: the process there is stopped, or another program listens there";

/// On the loop's thread. Callbacks come from the loop, never from inside a call. They may release
/// the last reference to the talk.
class Talk : public std::enable_shared_from_this<Talk> {
 public:
  using Got = std::function<void(std::span<const std::byte>)>;
  Talk(Loop& loop, std::unique_ptr<Stream> stream, std::uint64_t deadline_ms);
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  /// Called once at most, when the connection ended, broke or was too slow. Not after `take`.
  void on_failed(std::function<void(const TalkEnd&)> failed) { failed_ = std::move(failed); }
  /// Called once, from inside the call that takes (`taken`) or drops the talk, or in which it has
  /// failed.
  void on_over(std::function<void(bool taken)> over) { over_ = std::move(over); }
  /// Sends some bytes, a dozen KB at most, which a new connection takes at once.
  void send(std::span<const std::byte> bytes);
  /// Calls `got` with the next `size` bytes. `plausible` is called with each beginning of them;
  /// false ends the talk before the rest has come.
  void expect(std::size_t size, Got got,
              std::function<bool(std::span<const std::byte>)> plausible = nullptr);
  /// Sends no more, and waits for the other side's end, so that the sent bytes arrive; then the
  /// talk fails.
  void finish();
  /// Takes the deadline away: from now on the owner decides how long to wait, and drops the talk.
  void wait() { deadline_.reset(); }
  /// Goes on under TLS: `make` makes the one stream over the other; `done` is called when the
  /// handshake has ended well. `unproven`: the reason if it fails because an end does not hold the
  /// key.
  using Make = std::function<std::unique_ptr<TlsStream>(std::unique_ptr<Stream>)>;
  void protect(const Make& make, std::string unproven, std::function<void()> done);
  /// `plain`: the stream below TLS (TlsStream::unwrap), null if it must not be used.
  [[nodiscard]] std::unique_ptr<Stream> take(bool plain = false);
  [[nodiscard]] bool over() const { return !stream_ || !stream_->open(); }
  /// Has no byte come?
  [[nodiscard]] bool silent() const { return silent_; }
  [[nodiscard]] std::string remote_host() const { return stream_->remote_host(); }
  [[nodiscard]] std::uint64_t trip_us() const { return stream_->line().trip_us; }
  [[nodiscard]] std::size_t unacknowledged_bytes() const { return stream_->unacknowledged_bytes(); }
  /// Has nothing come of the message that is expected, and is nothing there to be read?
  [[nodiscard]] bool waits_for_all();
  [[nodiscard]] bool loopback() const { return stream_->loopback(); }
  [[nodiscard]] bool local() const { return stream_->carrier() == Stream::Carrier::unix_socket; }
  void fail(std::string reason) { end({TalkEnd::How::failed, std::move(reason)}); }  // deferred
  void drop();  // at once, without a callback

 private:
  void listen();
  void ready();
  void end(TalkEnd end);
  void protection_ended();
  void tell_over(bool taken);
  void leave(bool taken);

  Loop& loop_;
  std::unique_ptr<Stream> stream_;  // null once it is taken
  TlsStream* tls_ = nullptr;        // `stream_`, once it is protected
  std::function<void()> protected_;
  std::string unproven_;
  std::unique_ptr<Timer> deadline_;
  std::function<void(const TalkEnd&)> failed_;
  std::function<void(bool)> over_;
  std::vector<std::byte> have_;
  std::size_t want_ = 0;
  Got got_;
  std::function<bool(std::span<const std::byte>)> plausible_;
  bool finishing_ = false;
  bool silent_ = true;
};

}  // namespace pccl
