// Links that peers have dialled and nobody here has asked for yet: proven and unread, with the
// lanes that have joined them. What was sent over one waits for who opens it. One that is over
// before that, with nothing but goodbyes in it or cut off without one, is let go: its peer may be
// waiting for that before it ends, and its descriptors would be kept for ever.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "transport/loop.h"
#include "transport/stream.h"

namespace pccl {

/// On the loop's thread. Holds kMembersMax links; the oldest goes when there is one more.
class Parking {
 public:
  explicit Parking(Loop& loop) : loop_(loop) {}

  struct Parked {
    std::uint64_t link = 0;  // its number
    std::vector<std::unique_ptr<Stream>> lanes;
    std::uint64_t order = 0;
  };
  /// In the place of what this peer has parked before.
  void add(PeerId peer, std::uint64_t link, std::unique_ptr<Stream> lane);
  /// Is there a link of this number, with room for one more lane?
  [[nodiscard]] bool takes_lane(PeerId peer, std::uint64_t link) const;
  void join(PeerId peer, std::unique_ptr<Stream> lane);
  /// The peer's link, if it has not been cut off. One that said goodbye is handed out too: its
  /// reader hears how it ended.
  [[nodiscard]] std::optional<Parked> take(PeerId peer);
  void erase(PeerId peer) { links_.erase(peer); }
  void clear() { links_.clear(); }

 private:
  void sweep();

  Loop& loop_;
  std::map<PeerId, Parked> links_;
  std::uint64_t order_ = 0;
  std::unique_ptr<Timer> sweep_;
};

}  // namespace pccl
