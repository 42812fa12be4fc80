// The acceptor's side of links: whoever proves to hold this process's key brings lane after lane of
// a link; a complete one is handed on. Nothing is known here about which peers are wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/handle.h"
#include "transport/gate.h"
#include "transport/handshake.h"

namespace pccl {

/// On the loop's thread. `arrived` comes from the loop, with the streams of all lanes in their
/// order.
class LaneGate {
 public:
  using Arrived = std::function<void(PeerId dialer, std::vector<std::unique_ptr<Stream>> lanes)>;
  /// May this peer, which has the larger id, dial now? Asked with the first lane of a link.
  using MayDial = std::function<bool(PeerId dialer)>;
  LaneGate(Loop& loop, PeerId self, const LinkKey& key, std::vector<Socket> listening,
           std::uint64_t user_timeout_ms, Arrived arrived, MayDial may_dial);
  LaneGate(const LaneGate&) = delete;
  LaneGate& operator=(const LaneGate&) = delete;

  [[nodiscard]] std::uint16_t port() const { return gate_.port(); }
  void close();
  /// Forgets lanes of a link that is not complete.
  void forget(PeerId dialer) { incomplete_.erase(dialer); }
  /// Some lanes of a link are here.
  [[nodiscard]] bool has_lanes_of(PeerId dialer) const { return incomplete_.contains(dialer); }

 private:
  struct Incomplete {
    std::uint64_t link = 0;
    std::uint64_t since_ms = 0;
    std::vector<std::unique_ptr<Stream>> lanes;
    std::size_t count = 0;
  };
  void greeted(const std::shared_ptr<Talk>& talk, std::span<const std::byte> bytes);
  void proven(const std::shared_ptr<Talk>& talk, const LaneHello& hello, const LaneOffer& offer,
              std::span<const std::byte> bytes);
  void collect(const LaneHello& hello, std::unique_ptr<Stream> stream);
  void sweep();

  Loop& loop_;
  PeerId self_;
  LinkKey key_;
  Arrived arrived_;
  MayDial may_dial_;
  std::map<PeerId, Incomplete> incomplete_;
  std::unique_ptr<Timer> sweep_;
  Gate gate_;
};

}  // namespace pccl
