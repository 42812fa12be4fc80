// The acceptor's side of lanes: a peer that proves to be the one that it says brings a lane, the
// first one of a link or one more of an existing link. This file does not know which peers are
// wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/handle.h"
#include "transport/gate.h"
#include "transport/handshake.h"
#include "transport/transport.h"
#include "trust/secrets.h"

namespace pccl {

/// The owner of a gate, which answers its questions and takes its lanes. Called from the loop.
class LaneGateOwner {
 public:
  virtual ~LaneGateOwner() = default;
  /// May this peer dial the first lane of a link now?
  [[nodiscard]] virtual bool may_dial(const LaneHello& hello) = 0;
  /// Is there a link of this number to the peer, with room for one more lane?
  [[nodiscard]] virtual bool takes_lane(const LaneHello& hello) = 0;
  /// A lane is proven, and `may_dial` or, if it joins, `takes_lane` has just said yes.
  virtual void lane_arrived(const LaneHello& hello, std::unique_ptr<Stream> stream) = 0;
};

/// On the loop's thread.
class LaneGate {
 public:
  LaneGate(Loop& loop, LaneGateOwner& owner, const KeyPair& identity, Plaintext plaintext,
           std::vector<Socket> listening);
  LaneGate(const LaneGate&) = delete;
  LaneGate& operator=(const LaneGate&) = delete;

  [[nodiscard]] std::uint16_t port() const { return gate_.port(); }
  void close() { gate_.close(); }

 private:
  void greeted(const std::shared_ptr<Talk>& talk, std::span<const std::byte> bytes);
  void offer(const std::shared_ptr<Talk>& talk, const LaneHello& hello);
  void proven(const std::shared_ptr<Talk>& talk, const LaneHello& hello, const LaneOffer& offer);

  Loop& loop_;
  LaneGateOwner& owner_;
  KeyPair identity_;
  PeerId self_;
  Plaintext plaintext_;
  Gate gate_;
};

}  // namespace pccl
