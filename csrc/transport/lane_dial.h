// The dialler's side of lanes: connects and proves the first lane of a link, which finds the
// address that works, or one more lane of a link that is there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/handle.h"
#include "transport/connector.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/stream.h"
#include "transport/talk.h"
#include "transport/transport.h"
#include "trust/secrets.h"

namespace pccl {

/// What a process dials with.
struct Dialler {
  const KeyPair& identity;
  Plaintext plaintext;
  std::uint64_t user_timeout_ms;
  bool local = false;          // a process of this machine by its unix socket
  bool small_packets = false;  // from the beginning
  bool only_peer = false;      // it has no other ones
};

/// Dials one lane: to the unix socket of the peer if it is a process of this machine, else, or if
/// no peer proves itself there, to the first of several addresses at which the process proves to be
/// the peer. Some paths (tunnels, networks that drop what ICMP would say of it) swallow packets of
/// full size without a word, so that a link would be up and carry no data: a first lane sends a
/// filler that takes such packets, and where they have no answer the dial goes on with small ones.
/// Callbacks come from the loop and may destroy the dial.
class LaneDial {
 public:
  struct Failure {
    std::string what;
    bool refused = false;  // no process listens at any address
    bool final = false;    // a process answered, and trying again cannot succeed
  };
  struct Events {
    /// `address`: empty for the unix socket.
    std::function<void(std::unique_ptr<Stream> stream, const std::string& address)> proven;
    std::function<void(const Failure& failure)> failed;
  };
  /// `hello`: without capabilities, which depend on the address.
  LaneDial(Loop& loop, const Dialler& dialler, const Handle& to, const LaneHello& hello,
           Events events);
  ~LaneDial();
  LaneDial(const LaneDial&) = delete;
  LaneDial& operator=(const LaneDial&) = delete;

  [[nodiscard]] std::string report() const;
  /// Have packets of full size had no answer at the address that is tried now?
  [[nodiscard]] bool swallows() const {
    return connector_ && connector_->small_packets() && !dialler_.small_packets;
  }
  [[nodiscard]] bool talks() const { return talk_ != nullptr; }
  /// The peer has our proof: it may have taken the lane for its own.
  [[nodiscard]] bool has_proven() const { return talk_ && proven_; }

 private:
  void connect();
  void connected(Socket socket, const std::string& address);
  void opened(std::span<const std::byte> bytes);
  void offered(std::span<const std::byte> bytes);
  void protect();
  void look_for_packets_later(std::uint64_t after_ms);
  void look_for_packets();
  void proven();
  void answered(std::span<const std::byte> bytes);
  void next(const std::string& why, bool final);
  void drop_talk();

  Loop& loop_;
  Dialler dialler_;
  Handle to_;
  LaneHello hello_;
  LaneOffer offer_;
  Events events_;
  std::shared_ptr<Talk> talk_;
  std::string address_;  // empty: the unix socket
  bool proven_ = false;  // in this talk
  bool final_ = false;
  bool offered_ = false;         // in this talk
  std::unique_ptr<Timer> look_;  // until the fillers have passed in both directions
  std::string seen_locally_;
  std::unique_ptr<Connector> connector_;  // null: the unix socket comes first
};

/// Dials one more lane of an existing link until the lane has joined or the time is over. Callbacks
/// come from the loop and may destroy the object.
class LaneJoin {
 public:
  struct Events {
    std::function<void(std::unique_ptr<Stream> stream)> joined;
    std::function<void(const std::string& why)> given_up;
  };
  LaneJoin(Loop& loop, const Dialler& dialler, const Handle& to, const LaneHello& hello,
           std::uint64_t deadline_ms, Events events);
  LaneJoin(const LaneJoin&) = delete;
  LaneJoin& operator=(const LaneJoin&) = delete;

 private:
  void dial();
  void failed(const std::string& why);

  Loop& loop_;
  Dialler dialler_;
  Handle to_;
  LaneHello hello_;
  Events events_;
  std::uint64_t backoff_ms_ = 0;
  std::string last_failure_;
  std::unique_ptr<LaneDial> dial_;
  std::unique_ptr<Timer> retry_;
  std::unique_ptr<Timer> deadline_;
};

}  // namespace pccl
