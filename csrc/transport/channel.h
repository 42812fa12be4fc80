// A framed control connection between a peer and the master: what both ends of that connection use.
// The lanes between peers (links.cpp) share its framing and its handshake rules.
//
// The first bytes of either side are an opening of fixed size (magic, protocol version, purpose);
// what is not one, comes too late or has another version is refused, logged once and closed. After
// it: frames (framing.h) with control payloads of at most kControlBytesMax. At the side that
// accepted, kHandshakeBytesMax until the owner calls `trust`, at the latest kHandshakeMs later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace pccl {

class Loop;

/// One connection. All calls and callbacks on the loop's thread. Callbacks are never called from
/// inside a call of Channel, and not after `close`. May be destroyed inside its own callback.
class Channel {
 public:
  virtual ~Channel() = default;
  struct Events {
    std::function<void(std::span<const std::byte> payload)> arrived;
    /// The other side or the network has closed it, or broke the framing; `reason` says what was
    /// seen.
    std::function<void(const std::string& reason)> closed;
  };
  /// Nothing is read before it.
  virtual void set_events(Events events) = 0;
  virtual void send(std::span<const std::byte> payload) = 0;
  /// `room` is called when there were more than `bytes` queued and are not any more. What is queued
  /// counts in `total`, beside that of other channels.
  virtual void watch_queue(std::size_t, std::shared_ptr<std::size_t>, std::function<void()>) {}
  /// Frames up to kControlBytesMax are taken from now on, and the handshake deadline ends.
  virtual void trust() = 0;
  /// Sends what is queued, then closes (at most kHandshakeMs later); goes on when the object is
  /// destroyed. Without it destroying the object closes at once.
  virtual void close() = 0;
  [[nodiscard]] virtual const std::string& remote() const = 0;  // "host:port" of the other side
  [[nodiscard]] virtual const std::string& local_host()
      const = 0;  // our address on that connection
  [[nodiscard]] virtual std::size_t queued_bytes() const = 0;
  /// Of what was sent so far, as much as the other side's machine says that it has: this grows also
  /// where that side reads so slowly that `queued_bytes` stands still. 0 where none ever says so.
  [[nodiscard]] virtual std::uint64_t acknowledged_bytes() const { return 0; }
  /// So far, of messages that are whole and of one that is on its way: a sign of life of the other
  /// side also while a long message takes its time. 0 where none ever comes in parts.
  [[nodiscard]] virtual std::uint64_t received_bytes() const { return 0; }
};

class ChannelListener {
 public:
  virtual ~ChannelListener() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

/// Listens on host:port (0: any). `accepted` gets connections whose opening was right.
[[nodiscard]] Result<std::unique_ptr<ChannelListener>> listen_channels(
    Loop& loop, const std::string& host, std::uint16_t port,
    std::function<void(std::unique_ptr<Channel>)> accepted);

/// Dials "host:port" (resolving names off the loop's thread); `done` is called once, with a
/// connection whose opening was right, or with `unreachable` (text: the address and what was tried
/// and seen for each resolved address) or `refused` (another version, not a pccl master).
/// Destroying the returned object cancels; `done` is not called then.
class Dial {
 public:
  virtual ~Dial() = default;
  /// What has been tried and seen so far; empty: nothing.
  [[nodiscard]] virtual std::string report() const { return ""; }
};
[[nodiscard]] std::unique_ptr<Dial> dial_channel(
    Loop& loop, const std::string& address, std::uint64_t timeout_ms,
    std::function<void(Result<std::unique_ptr<Channel>>)> done);

/// "host:port", "[v6]:port" -> host and port.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
[[nodiscard]] Result<HostPort> parse_address(const std::string& address);

}  // namespace pccl
