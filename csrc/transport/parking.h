// Links that peers have dialled and that this process has not opened yet: proven and unread, with
// the lanes that have joined them. Data sent over a parked link waits until the link is opened. A
// parked link that has ended, and holds nothing but goodbyes or was cut off without one, is closed:
// its peer may wait for that before it ends, and the descriptors would be kept for ever.
//
// Anybody can make a key pair, so ids bound nothing: the descriptors do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/handle.h"
#include "base/ids.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/refusals.h"
#include "transport/stream.h"

namespace pccl {

/// Used on the loop's thread. Holds kMembersMax links, of as many lanes as this process uses for a
/// link, and half of the process's descriptors; beyond that the oldest link of the network that has
/// most lanes here goes. A lane without room is dialled again when the link is wanted.
class Parking {
 public:
  Parking(Loop& loop, std::size_t lanes_of_link);

  struct Parked {
    PublicKey key{};         // of the peer
    std::uint64_t link = 0;  // its number
    std::vector<std::unique_ptr<Stream>> lanes;
    std::uint64_t order = 0;
    std::string host;  // of the peer
  };
  /// Parks a link in the place of an earlier one of this peer.
  void add(const LaneHello& hello, std::unique_ptr<Stream> lane);
  /// Is a link of this peer and number parked, with room for one more lane?
  [[nodiscard]] bool takes_lane(const LaneHello& hello) const;
  void join(const LaneHello& hello, std::unique_ptr<Stream> lane);
  /// Takes out the peer's link, if it has not been cut off. A link with a goodbye is handed out
  /// too: its reader then receives the goodbye.
  [[nodiscard]] std::optional<Parked> take(const Handle& peer);
  void erase(PeerId peer) { links_.erase(peer); }
  void clear() { links_.clear(); }

 private:
  void sweep();
  void make_room();

  Loop& loop_;
  std::size_t lanes_of_link_;
  std::size_t lanes_max_;
  Refusals refusals_;
  std::map<PeerId, Parked> links_;
  std::uint64_t order_ = 0;
  std::unique_ptr<Timer> sweep_;
};

}  // namespace pccl
