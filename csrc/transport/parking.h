// Links that peers have dialled and nobody here has asked for yet: complete and proven, unread.
// What was sent over one waits for who opens it. One that is over before that, with nothing but
// goodbyes in it or cut off without one, is let go: its peer may be waiting for that before it
// ends, and its descriptors would be kept for ever.
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

  /// In the place of what this peer has parked before.
  void add(PeerId peer, std::vector<std::unique_ptr<Stream>> lanes);
  /// Its lanes, if they have not been cut off. One that said goodbye is handed out too: its reader
  /// hears how it ended.
  [[nodiscard]] std::optional<std::vector<std::unique_ptr<Stream>>> take(PeerId peer);
  void erase(PeerId peer) { links_.erase(peer); }
  void clear() { links_.clear(); }

 private:
  struct Parked {
    std::vector<std::unique_ptr<Stream>> lanes;
    std::uint64_t order = 0;
  };
  void sweep();

  Loop& loop_;
  std::map<PeerId, Parked> links_;
  std::uint64_t order_ = 0;
  std::unique_ptr<Timer> sweep_;
};

}  // namespace pccl
