// The connections of the peers of one run, from their Hello on (reception.h has them before it):
// decodes and encodes, sends heartbeats and watches for silent peers. Knows the newest connection
// of each peer, and nothing of membership: it reports to its owner, run_server.cpp.
//
// Bytes from a connection are untrusted: bad bytes are logged once and end the connection of their
// sender, and of no other peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/line_limit.h"
#include "membership/seen.h"
#include "transport/channel.h"
#include "wire/messages.h"

namespace pccl {
class Clock;
class Timer;
}  // namespace pccl

namespace pccl::master {

inline constexpr std::uint64_t kTickMs = 200;  // between two looks at heartbeats and silence
inline constexpr std::size_t kPeersMax = 2 * kMembersMax;
// Queued for a peer that does not read.
inline constexpr std::size_t kUnreadBytesMax = 2 * kControlBytesMax;
// Of all peers, beyond kAnswerBelowBytes for each of them.
inline constexpr std::size_t kUnreadBytesOfAllMax = 5ULL << 28;
// Queued for a peer; above it the peer's store requests wait.
inline constexpr std::size_t kAnswerBelowBytes = 4U << 20;

/// The calls of Connections to its owner, on the loop's thread. Events of a peer come in order, and
/// from its newest connection only.
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  /// Why a Hello is refused, before anything else happens; code none: it is not. `again`: it would
  /// take the place of the peer's present connection, which stays if it is refused.
  [[nodiscard]] virtual Error refusal(const Hello& hello, bool again) const = 0;
  /// `connection` names this connection of the peer; see Connections::admit.
  virtual void connected(Hello hello, std::uint64_t connection) = 0;
  /// A message of `bytes` bytes after its Hello.
  virtual void message(PeerId peer, PeerToMaster message, std::size_t bytes) = 0;
  /// The peer has read so much that it may be answered again (Connections::has_room).
  virtual void room(PeerId peer) = 0;
  /// The connection of a peer, from `remote`, has closed; the peer may come back.
  virtual void disconnected(PeerId peer, std::string remote, std::string why) = 0;
  /// The connection of a peer was given up, for this reason; the peer will not come back.
  virtual void gone(PeerId peer, std::string why) = 0;
  /// This process was stopped for `late_ms`: no peer is silent because of that time.
  virtual void woke(std::uint64_t late_ms) = 0;
};

class Connections {
 public:
  using Number = std::uint64_t;  // of a connection; never reused, and not 0

  /// `log_prefix`: in front of each log line.
  Connections(pccl::Clock& clock, ConnectionEvents& events, std::uint64_t heartbeat_ms,
              std::uint64_t silence_ms, std::string log_prefix);
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  /// Starts to send heartbeats and to watch for silent peers.
  void begin();
  /// A connection whose first message is this Hello. From now on its owner calls `arrived` and
  /// `closed` with the number; 0: it was refused.
  [[nodiscard]] Number take(std::unique_ptr<Channel> channel, Hello hello);
  void arrived(Number number, std::span<const std::byte> payload);
  void closed(Number number, const std::string& reason);

  /// Sends to the newest connection of a peer; without a connection the message is dropped. A
  /// message beyond the limits of the queue is dropped too, and its peer is gone at the next tick.
  void send(PeerId peer, const MasterToPeer& message);
  void send(const std::vector<PeerId>& peers, const MasterToPeer& message);
  void send_all(const MasterToPeer& message);
  /// Closes after the queue is sent. No event of this peer comes until it connects again.
  void close(PeerId peer);
  void close_all();
  /// Closes at once, drops the queue, and reports that the peer is gone.
  void give_up(PeerId peer, const std::string& why);
  /// From now on the owner's decisions take this connection into account. Older decisions that are
  /// carried out later were meant for the connection before: the owner asks `admitted` first.
  void admit(PeerId peer, std::uint64_t connection);
  /// Has the owner called `admit` for the newest connection of the peer?
  [[nodiscard]] bool admitted(PeerId peer) const;
  /// Peers that are connected.
  [[nodiscard]] std::size_t count() const { return connections_.size(); }
  /// Bytes that are queued for all peers.
  [[nodiscard]] std::size_t queued_bytes() const { return *queued_bytes_; }
  /// Does the peer read fast enough to be answered? If not, `room` is called when it has read.
  [[nodiscard]] bool has_room(PeerId peer) const;
  /// Are all queues empty?
  [[nodiscard]] bool all_sent() const;
  /// Of each peer, where it is and since when it is silent.
  [[nodiscard]] std::map<PeerId, Seen> seen() const;
  /// "10.0.0.2:51000"; empty: not connected.
  [[nodiscard]] std::string remote(PeerId peer) const;

 private:
  struct Connection {
    std::unique_ptr<Channel> channel;
    PeerId peer;
    std::string name;  // of the peer
    bool admitted = false;
    bool overflown = false;  // a message for this peer has been dropped
    std::uint64_t heard_ms = 0;
    std::uint64_t beat_ms = 0;
    std::uint64_t read_ms = 0;  // when the peer last read, or had not much to read
    std::uint64_t acknowledged_before = 0;
    std::uint64_t received_before = 0;
  };
  void refuse(Channel& channel, const std::string& name, const Error& error);
  void queue(Connection& to, std::span<const std::byte> bytes);
  void break_off(Number number, const std::string& text);
  void end(Number number);
  void tick();
  void look_at_clock();

  pccl::Clock& clock_;
  ConnectionEvents& events_;
  const std::uint64_t heartbeat_ms_;
  const std::uint64_t silence_ms_;
  const std::uint64_t tick_ms_;
  const std::string log_prefix_;
  LineLimit refusals_;
  std::shared_ptr<std::size_t> queued_bytes_ = std::make_shared<std::size_t>(0);
  std::map<Number, Connection> connections_;
  std::map<PeerId, Number> peers_;  // newest connection of each
  Number next_ = 1;
  std::uint64_t ticked_ms_ = 0;  // by boot_ms, because the machine may be suspended
  std::unique_ptr<Timer> ticker_;
};

}  // namespace pccl::master
