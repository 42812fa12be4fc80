// One byte stream between two processes: all that lanes, channels and handshakes know of what
// carries them. TcpStream is the one that there is; TLS, shared memory or another system's sockets
// are one file each beside it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "transport/poll.h"

namespace pccl {

/// On the loop's thread. Nothing blocks, and no call comes back into its caller: readiness is told
/// from the loop.
class Stream {
 public:
  enum class Outcome : std::uint8_t {
    moved,   // `bytes` of them, at least one
    later,   // none now: readiness says when
    ended,   // the other side sends no more; of reading alone
    failed,  // `error` says what the system saw
  };
  struct Moved {
    Outcome outcome = Outcome::later;
    std::size_t bytes = 0;
    std::string error;
  };
  using Ready = std::function<void(bool readable, bool writable)>;
  virtual ~Stream() = default;

  /// Into the parts in their order. Fewer bytes than there is room: that was all there is now.
  [[nodiscard]] virtual Moved read(std::span<const iovec> parts) = 0;
  /// From the parts in their order. What it took is its own: the memory may be changed afterwards.
  [[nodiscard]] virtual Moved write(std::span<const iovec> parts) = 0;
  /// Of what `write` has taken, as much as the other side's machine does not have yet.
  [[nodiscard]] virtual std::size_t unacknowledged_bytes() const { return 0; }
  /// The first bytes, which stay there to be read.
  [[nodiscard]] virtual Moved peek(std::span<std::byte> into) = 0;
  /// Sends no more; what was written arrives, and then the other side reads the end.
  virtual void shut() = 0;

  /// `ready` is told about readiness, in the place of an earlier one; null: nobody is. A failure of
  /// the stream counts as both: the next call shows it. Tells nothing before `want`. The callback
  /// may destroy the stream.
  virtual void on_ready(Ready ready) = 0;
  virtual void want(bool read, bool write) = 0;

  /// Both directions at once. All calls but `open` are over then.
  virtual void close() = 0;
  [[nodiscard]] virtual bool open() const = 0;

  [[nodiscard]] virtual std::string remote() const = 0;  // "host:port" of the other side
  [[nodiscard]] virtual std::string remote_host() const = 0;
  [[nodiscard]] virtual std::string local_host() const = 0;
  /// Both ends are on one machine: no checksums of payloads are needed.
  [[nodiscard]] virtual bool same_machine() const = 0;

  [[nodiscard]] Moved write(std::span<const std::byte> bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return write(std::span(&part, 1));
  }
  [[nodiscard]] Moved read(std::span<std::byte> into) {
    const iovec part{into.data(), into.size()};
    return read(std::span(&part, 1));
  }
};

/// A connected, non-blocking stream socket.
class TcpStream : public Stream {
 public:
  TcpStream(Loop& loop, Socket socket) : loop_(loop), socket_(std::move(socket)) {}

  using Stream::read;
  using Stream::write;
  [[nodiscard]] Moved read(std::span<const iovec> parts) override;
  [[nodiscard]] Moved write(std::span<const iovec> parts) override;
  [[nodiscard]] std::size_t unacknowledged_bytes() const override;
  [[nodiscard]] Moved peek(std::span<std::byte> into) override;
  void shut() override;
  void on_ready(Ready ready) override;
  void want(bool read, bool write) override;
  void close() override;
  [[nodiscard]] bool open() const override { return socket_.open(); }
  [[nodiscard]] std::string remote() const override;
  [[nodiscard]] std::string remote_host() const override;
  [[nodiscard]] std::string local_host() const override;
  [[nodiscard]] bool same_machine() const override;

 private:
  Loop& loop_;
  Socket socket_;
  std::unique_ptr<Poll> poll_;  // goes before the socket that it watches
};

}  // namespace pccl
