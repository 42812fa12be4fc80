// TLS 1.3 over another stream, with a key that both ends hold before (an external PSK, RFC 8446
// section 4.2.11) and a fresh X25519 exchange: both ends are proven, nobody else reads or changes a
// byte, and a key that is stolen later opens nothing that was sent before. No certificates, no
// tickets, no early data. Of transport, OpenSSL appears in
// tls_stream.cpp only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/clock.h"
#include "transport/stream.h"
#include "trust/secrets.h"

namespace pccl {

/// Between construction and the end of the handshake `read` and `write` say `later`; then both are
/// reported as ready. A handshake that fails makes them fail, with a text that says why. Bytes are
/// handed out after they have been authenticated: until then they are not in the reader's memory.
class TlsStream final : public Stream {
 public:
  /// The key of the dialler that calls itself `identity`; nothing: it may not enter.
  using Find = std::function<std::optional<Secret>(std::string_view identity)>;

  static constexpr std::size_t kKeptBytes = 512U << 10;
  /// One key encrypts no more than that, then it is replaced. The limit of AES-GCM is 388 GB (RFC
  /// 8446, section 5.5).
  static constexpr std::uint64_t kBytesOfOneKey = 64ULL << 30;

  /// The dialling end. `identity` is sent in the clear, has 1 to 255 bytes and names both ends:
  /// with names alone a connection could be led back to the dialler (RFC 9257, section 5.1).
  [[nodiscard]] static std::unique_ptr<TlsStream> dial(
      Clock& clock, std::unique_ptr<Stream> under, std::string_view identity, const Secret& key,
      std::uint64_t bytes_of_one_key = kBytesOfOneKey);
  /// The accepting end. `find` is called at most once, from the loop.
  [[nodiscard]] static std::unique_ptr<TlsStream> accept(
      Clock& clock, std::unique_ptr<Stream> under, Find find,
      std::uint64_t bytes_of_one_key = kBytesOfOneKey);
  ~TlsStream() override;

  /// Has the handshake ended well?
  [[nodiscard]] bool established() const;
  /// Has the handshake failed because one end does not hold the key, or has a record come that its
  /// holder has not written? Otherwise the stream below has failed.
  [[nodiscard]] bool refused() const override;
  /// The stream below, for ends that have proven themselves and go on without encryption. Both ends
  /// call it at the same place: what one of them writes next must not come before the other one has
  /// called it. Null if bytes wait to be read or written, or after `read_ahead`.
  [[nodiscard]] static std::unique_ptr<Stream> unwrap(std::unique_ptr<TlsStream> stream);
  /// From now on reads many records in one call on the stream below.
  void read_ahead();

  using Stream::read;
  using Stream::write;
  [[nodiscard]] Moved read(std::span<const iovec> parts) override;
  /// Encrypts and keeps at most kKeptBytes that the stream below does not take yet.
  [[nodiscard]] Moved write(std::span<const iovec> parts) override;
  [[nodiscard]] std::size_t unacknowledged_bytes() const override;
  [[nodiscard]] std::size_t undelivered_bytes() const override;
  [[nodiscard]] Line line() const override;
  void tune(bool bbr) override;
  void go_by_model(bool by_model) override;
  void pace(std::uint64_t bytes_per_second) override;
  [[nodiscard]] Moved peek(std::span<std::byte> into) override;
  void shut() override;
  void on_ready(Ready ready) override;
  void want(bool read, bool write) override;
  [[nodiscard]] Moved read_apart(std::span<const iovec> parts) override;
  [[nodiscard]] Moved write_apart(std::span<const iovec> parts) override;
  void settle() override;
  void close() override;
  [[nodiscard]] bool open() const override;
  [[nodiscard]] std::string remote() const override;
  [[nodiscard]] std::string remote_host() const override;
  [[nodiscard]] std::string local_host() const override;
  [[nodiscard]] Carrier carrier() const override;
  [[nodiscard]] bool same_machine() const override;
  [[nodiscard]] bool loopback() const override;
  [[nodiscard]] bool encrypted() const override { return true; }

 private:
  struct State;
  explicit TlsStream(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;  // lives on while one of its callbacks runs
};

}  // namespace pccl
