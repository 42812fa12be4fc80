// One byte stream between two processes: the only interface by which lanes, channels and handshakes
// use a connection. SocketStream is a socket; TLS (tls_stream.h) and shared memory
// (shared_stream.h) are streams over another one.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/line.h"
#include "transport/poll.h"

namespace pccl {

class OwnArea;
class PeerArea;

/// Why a connection is over whose other side sends no more.
inline constexpr const char* kOtherClosed = "the other side has closed the connection";
inline constexpr std::size_t kGatheredMax = 32;  // frames that are written in one call

/// Used on the loop's thread. No call blocks, and no callback comes from inside a call: readiness
/// is reported from the loop.
class Stream {
 public:
  enum class Outcome : std::uint8_t {
    moved,   // `bytes` bytes were read or written, at least one
    later,   // no byte can be moved now: readiness tells when
    ended,   // (reading) the other side sends no more
    failed,  // `error` says what the system saw
  };
  struct Moved {
    Outcome outcome = Outcome::later;
    std::size_t bytes = 0;
    std::string error;
  };
  using Ready = std::function<void(bool readable, bool writable)>;
  virtual ~Stream() = default;

  /// Reads into the parts in their order. Fewer bytes than fit: no more have arrived yet.
  [[nodiscard]] virtual Moved read(std::span<const iovec> parts) = 0;
  /// Writes from the parts in their order. Written bytes are copied: their memory may be changed
  /// afterwards.
  [[nodiscard]] virtual Moved write(std::span<const iovec> parts) = 0;
  /// As `read` and `write`, on any thread while the loop's waits; one call at a time. When all
  /// is moved `settle` follows on the loop's thread: before that no readiness is reported.
  [[nodiscard]] virtual Moved read_apart(std::span<const iovec> parts) { return read(parts); }
  [[nodiscard]] virtual Moved write_apart(std::span<const iovec> parts) { return write(parts); }
  virtual void settle() {}
  /// Bytes that were written and that the other side's machine has not acknowledged yet.
  [[nodiscard]] virtual std::size_t unacknowledged_bytes() const { return 0; }
  /// Written bytes of which some may never be read there if the connection is lost now: with those
  /// that can be read only together.
  [[nodiscard]] virtual std::size_t undelivered_bytes() const { return unacknowledged_bytes(); }
  /// The way to the other side.
  [[nodiscard]] virtual Line line() const { return {}; }
  /// Suits the connection to its line, once its round trip is known: tune_congestion.
  virtual void tune(bool bbr) { static_cast<void>(bbr); }
  /// Goes by a model from now on, where the system lets it, or by losses again.
  virtual void go_by_model(bool by_model) { static_cast<void>(by_model); }
  /// Sends no faster than this from now on; 0: as fast as it can.
  virtual void pace(std::uint64_t bytes_per_second) { static_cast<void>(bytes_per_second); }
  /// Copies the first bytes that have arrived; `read` still returns them.
  [[nodiscard]] virtual Moved peek(std::span<std::byte> into) = 0;
  /// Do the bytes that have come lie in memory, so that `here` shows them?
  [[nodiscard]] virtual bool in_place() const { return false; }
  /// The bytes that have come, where they lie until `take`; none: `read` tells why. They may change
  /// there, by a fault of the other side: who decides by a byte copies it before.
  [[nodiscard]] virtual std::span<const std::byte> here() { return {}; }
  /// The first bytes of `here` are not needed any more.
  virtual void take(std::size_t bytes) { static_cast<void>(bytes); }
  /// Ends writing: the written bytes arrive, and then the other side reads the end.
  virtual void shut() = 0;

  /// Sets the function that is called at readiness, in place of an earlier one; null: none. It is
  /// not called before `want`. A failure of the stream counts as readable and writable: the next
  /// call returns the failure. The function may destroy the stream.
  virtual void on_ready(Ready ready) = 0;
  virtual void want(bool read, bool write) = 0;

  /// Closes both directions. After that only `open` may be called.
  virtual void close() = 0;
  [[nodiscard]] virtual bool open() const = 0;

  [[nodiscard]] virtual std::string remote() const = 0;  // "host:port" of the other side
  [[nodiscard]] virtual std::string remote_host() const = 0;
  [[nodiscard]] virtual std::string local_host() const = 0;
  /// What the bytes go through in the end.
  enum class Carrier : std::uint8_t { tcp, unix_socket, shared_memory };
  [[nodiscard]] virtual Carrier carrier() const { return Carrier::tcp; }
  /// Passes the area of this process (area.h) to the other one, which may read it from then on.
  /// Where no area can be passed nothing happens. Once.
  virtual void lend(std::shared_ptr<OwnArea> own) { static_cast<void>(own); }
  /// The area of the other process, which this one has mapped; null: none.
  [[nodiscard]] virtual std::shared_ptr<const PeerArea> peer_area() const { return nullptr; }
  /// Has the other process mapped the area of this one?
  [[nodiscard]] virtual bool lends() const { return false; }
  /// Of the socket, for what no stream does; -1: it has none.
  [[nodiscard]] virtual int descriptor() const { return -1; }
  /// Are both ends on one machine? Then payloads need no checksums.
  [[nodiscard]] virtual bool same_machine() const = 0;
  /// Are both ends loopback addresses? Then no byte leaves the machine, whatever addresses mean
  /// elsewhere.
  [[nodiscard]] virtual bool loopback() const { return false; }
  /// Has something come that the other side cannot have sent? Then its system says of bytes that
  /// they have arrived which nobody can read.
  [[nodiscard]] virtual bool refused() const { return false; }
  /// Is every byte authenticated before it is read? Then payloads need no checksums.
  [[nodiscard]] virtual bool encrypted() const { return false; }

  [[nodiscard]] Moved write(std::span<const std::byte> bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return write(std::span(&part, 1));
  }
  [[nodiscard]] Moved read(std::span<std::byte> into) {
    const iovec part{into.data(), into.size()};
    return read(std::span(&part, 1));
  }
};

/// For people.
[[nodiscard]] constexpr std::string_view carrier_name(const Stream& stream) {
  switch (stream.carrier()) {
    case Stream::Carrier::tcp:
      return stream.encrypted() ? "TCP, encrypted" : "TCP";
    case Stream::Carrier::unix_socket:
      return "a unix socket";
    case Stream::Carrier::shared_memory:
      return "shared memory";
  }
  return "";
}

/// A connected, non-blocking stream socket: of TCP, or a unix socket.
class SocketStream : public Stream {
 public:
  SocketStream(Loop& loop, Socket socket);

  using Stream::read;
  using Stream::write;
  [[nodiscard]] Moved read(std::span<const iovec> parts) override;
  [[nodiscard]] Moved write(std::span<const iovec> parts) override;
  [[nodiscard]] std::size_t unacknowledged_bytes() const override;
  [[nodiscard]] Line line() const override;
  void tune(bool bbr) override;
  void go_by_model(bool by_model) override;
  void pace(std::uint64_t bytes_per_second) override;
  [[nodiscard]] Moved peek(std::span<std::byte> into) override;
  void shut() override;
  void on_ready(Ready ready) override;
  void want(bool read, bool write) override;
  void close() override;
  [[nodiscard]] bool open() const override { return socket_.open(); }
  [[nodiscard]] std::string remote() const override;
  [[nodiscard]] std::string remote_host() const override;
  [[nodiscard]] std::string local_host() const override;
  [[nodiscard]] Carrier carrier() const override { return carrier_; }
  [[nodiscard]] int descriptor() const override { return socket_.fd(); }
  [[nodiscard]] bool same_machine() const override;
  [[nodiscard]] bool loopback() const override;

 private:
  Loop& loop_;
  Socket socket_;
  const Carrier carrier_;
  const std::string remote_host_;
  bool has_bbr_ = false;        // since `tune` or `go_by_model`
  std::unique_ptr<Poll> poll_;  // goes before the socket that it watches
};

}  // namespace pccl
