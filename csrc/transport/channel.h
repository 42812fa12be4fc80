// A framed control connection between a peer and the master; both ends use this file.
// The lanes between peers (links.cpp) share its framing and its handshake rules.
//
// The first bytes of either side are an opening of fixed size (magic, protocol version, purpose). A
// connection with other first bytes, with a late opening or with another version is refused, logged
// once and closed. After the opening the master's offer, and TLS if the master takes tokens
// (entrance.h); then frames (framing.h) with control payloads of at most
// kControlBytesMax. The side that has accepted the connection takes at most kHandshakeBytesMax
// until its owner calls `trust`, which must be within kHandshakeMs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/entrance.h"

namespace pccl {

class Loop;

inline constexpr std::size_t kLargeBytesMax = 512U << 20;
inline constexpr std::uint64_t kLargeWaitMs = 120000;
inline constexpr std::uint64_t kLargeLookMs = 5000;
inline constexpr std::size_t kLargeLookBytesMin = 5U << 20;

/// One connection. All calls and callbacks on the loop's thread. Callbacks are never called from
/// inside a call of Channel, and not after `close`. May be destroyed inside its own callback.
class Channel {
 public:
  virtual ~Channel() = default;
  struct Events {
    std::function<void(std::span<const std::byte> payload)> arrived;
    /// The other side or the network has closed the connection, or the framing was broken; `reason`
    /// says what was seen.
    std::function<void(const std::string& reason)> closed;
  };
  /// Starts reading: no frame is read before.
  virtual void set_events(Events events) = 0;
  virtual void send(std::span<const std::byte> payload) = 0;
  /// `room` is called when the queue, which held more than `bytes`, does not any more. Queued bytes
  /// are added to `total`, which other channels share.
  virtual void watch_queue(std::size_t, std::shared_ptr<std::size_t>, std::function<void()>) {}
  /// From now on frames of up to kControlBytesMax are taken, and the handshake has no deadline.
  virtual void trust() = 0;
  /// Sends the queue, then closes, at most kHandshakeMs later; destroying the object does not stop
  /// this. Without this call destroying the object closes the connection at once.
  virtual void close() = 0;
  [[nodiscard]] virtual const std::string& remote() const = 0;  // "host:port" of the other side
  /// Who has dialled this channel; at the dialling side, and without TLS, nobody is known.
  [[nodiscard]] virtual Caller caller() const { return {}; }
  // Our address on that connection.
  [[nodiscard]] virtual const std::string& local_host() const = 0;
  [[nodiscard]] virtual std::size_t queued_bytes() const = 0;
  /// Bytes that the other side's machine has acknowledged so far. They grow even while that side
  /// reads so slowly that `queued_bytes` stays as it is. 0 if the connection cannot tell.
  [[nodiscard]] virtual std::uint64_t acknowledged_bytes() const { return 0; }
  /// A large message of the other side waits here for room (ChannelLimits): nothing is read, and
  /// silence is not the other side's.
  [[nodiscard]] virtual bool held_back() const { return false; }
  /// Bytes that have arrived so far, of whole messages and of one that is on its way: a sign of
  /// life of the other side while a long message takes its time. 0 if messages never come in parts.
  [[nodiscard]] virtual std::uint64_t received_bytes() const { return 0; }
};

/// The limits of what the channels of one listener receive together. A message of more than
/// kHandshakeBytesMax takes its length from `large_bytes_max`, in order of arrival, once
/// kHandshakeBytesMax of it have come; its connection is not read until the length is granted. No
/// peer holds others up for long: while a message waits, one that is granted and comes slower than
/// `look_bytes_min` in each `look_ms` ends its connection.
struct ChannelLimits {
  std::size_t large_bytes_max = kLargeBytesMax;
  std::uint64_t wait_ms = kLargeWaitMs;  // then a connection that waits for room ends
  std::uint64_t look_ms = kLargeLookMs;
  std::size_t look_bytes_min = kLargeLookBytesMin;
};

class ChannelListener {
 public:
  virtual ~ChannelListener() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

/// Listens on host:port (0: any). `accepted` gets connections whose opening was right and that have
/// come in by `entrance`; null: anybody may, and nothing is encrypted.
[[nodiscard]] Result<std::unique_ptr<ChannelListener>> listen_channels(
    Loop& loop, const std::string& host, std::uint16_t port,
    std::function<void(std::unique_ptr<Channel>)> accepted, const ChannelLimits& limits = {},
    std::shared_ptr<const Entrance> entrance = nullptr);

/// Dials "host:port" (resolving names off the loop's thread); `done` is called once, with a
/// connection whose opening was right and that has entered with `entry`, or with `unreachable` or
/// `refused` (another version, not a pccl master, no entrance with these tokens). The text says
/// what was seen at each resolved address; it does not name `address` itself. Destroying the
/// returned object cancels; `done` is not called then.
class Dial {
 public:
  virtual ~Dial() = default;
  /// What was seen at the address so far, as an error says it; empty: nothing yet.
  [[nodiscard]] virtual std::string report() const { return ""; }
  /// Did a master answer that this process cannot enter: no token, another one, another master's?
  [[nodiscard]] virtual bool kept_out() const { return false; }
};
[[nodiscard]] std::unique_ptr<Dial> dial_channel(
    Loop& loop, const std::string& address, std::uint64_t timeout_ms,
    std::function<void(Result<std::unique_ptr<Channel>>)> done, const Entry& entry = {});

}  // namespace pccl
