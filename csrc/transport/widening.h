// Looks at a link while it is busy, lets it use as many bulk lanes as LaneCount wants, and dials
// those that it has not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/limits.h"
#include "transport/lane_count.h"
#include "transport/loop.h"

namespace pccl {

/// Bulk lanes of one link that this side asks for. More would have less than a few segments each of
/// an operation of 256 MiB, and the slowest of them would be waited for.
inline constexpr std::size_t kWidestLanes = 32;
static_assert(kWidestLanes < kLanesMax);

/// What the bulk lanes of a link carry.
struct LinkLoad {
  bool sends = false;           // something waits to be sent, or to be acknowledged
  bool full = false;            // so it does on half of the lanes: this is no end of an operation
  std::uint64_t delivered = 0;  // bytes that the other side's machine has acknowledged, so far
  std::uint64_t round_trip_us = 0;
  std::size_t lanes = 0;    // bulk lanes that are there
  std::size_t joining = 0;  // bulk lanes on their way
};

/// Used on the loop's thread.
class Widening {
 public:
  struct Calls {
    std::function<LinkLoad()> load;
    std::function<void(std::size_t bulk_lanes)> use;
    std::function<void(std::size_t more)> dial;
  };
  /// `least`: bulk lanes that a link has without this class. `dials`: this side has dialled the
  /// link, so it dials more lanes at once. The other one waits a while: both ends may want more,
  /// and a lane serves both.
  Widening(Loop& loop, std::size_t least, bool dials, Calls calls)
      : loop_(loop),
        least_(least),
        dials_(dials),
        calls_(std::move(calls)),
        count_(least, kWidestLanes) {}

  /// The link has something to send.
  void wake();
  /// A lane that was dialled has joined, or has not.
  void joined() { reached_ = true; }
  void refused();

 private:
  void look();
  void dial(const LinkLoad& load);

  Loop& loop_;
  const std::size_t least_;
  const bool dials_;
  Calls calls_;
  LaneCount count_;
  LinkLoad last_;
  std::uint64_t last_ms_ = 0;
  std::uint64_t lacks_since_ms_ = 0;  // 0: has all lanes that it wants
  std::uint64_t not_before_ms_ = 0;
  bool reached_ = false;  // this side can dial the peer
  std::unique_ptr<Timer> timer_;
};

}  // namespace pccl
