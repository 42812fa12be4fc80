// Segments in slices. Over a long line with many connections, which differ in speed, a link cuts
// each large segment into slices of kSliceBytes, and every lane takes the next slice when it can
// send: so no connection is waited for longer than its last slice takes. The other end puts them
// together again; its owner sees whole segments. A slice whose connection is lost, or stuck, goes
// over another one as well: so it may come twice, and the first one that is whole counts.
//
// Used by one link, on the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/framing.h"
#include "transport/lane.h"
#include "transport/transport.h"

namespace pccl {

/// The segments that are on their way out in slices.
class SlicesOut {
 public:
  /// Cuts a frame of kind `segment`, of at least one byte. One at a time: not while `cuts`.
  void cut(Outgoing segment);
  /// Is a slice left to be taken?
  [[nodiscard]] bool cuts() const { return cut_ != 0 || !back_.empty(); }
  /// Takes the next slice, which must be `sent` before the memory of its segment goes.
  [[nodiscard]] Outgoing take();
  /// These are taken next, in this order: slices that a lane has taken and not brought over.
  void put_back(std::vector<Outgoing> slices);
  /// The kernel has taken this slice. Returns the segment if it was the last one.
  [[nodiscard]] std::optional<Outgoing> sent(const Outgoing& slice);
  /// A segment of which a slice has been taken is sent to its end, from a copy; the caller copies
  /// the slices that are taken and not sent. Throws std::bad_alloc.
  void cancel(MemoryToken token);
  void clear();

 private:
  struct Open {
    Outgoing segment;
    std::uint32_t taken = 0;  // bytes of it
    std::uint32_t sent = 0;
    std::uint32_t copied_from = 0;  // `segment.owned` begins with this byte of it
  };
  std::uint64_t last_number_ = 0;
  std::uint64_t cut_ = 0;  // number of the one that is being cut; 0: none
  std::unordered_map<std::uint64_t, Open> open_;
  std::deque<Outgoing> back_;
};

/// The segments that arrive in slices. Their numbers count up from 1.
class SlicesIn {
 public:
  /// The place that the owner has given to the segment of this slice, or none if the slice has come
  /// before; nothing: ask the owner, and tell by `place`. Errors (malformed): no such slice, or
  /// segments of which no more than slices come.
  [[nodiscard]] Result<std::optional<Placement>> find(const SegmentHeader& slice);
  void place(const SegmentHeader& slice, const Placement& at);
  struct Whole {
    SegmentHeader header;
    Placement at;
  };
  struct Arrival {
    bool twice = false;          // other lanes may be reading this slice too: they must drop it
    std::optional<Whole> whole;  // the segment, if this slice was the last one
  };
  /// Have other lanes begun to read this slice, too?
  [[nodiscard]] bool came_twice(const SegmentHeader& slice) const;
  /// The payload of a slice is complete.
  [[nodiscard]] Arrival arrived(const SegmentHeader& slice);
  /// The rest of its segments is dropped.
  void cancel(MemoryToken token);
  void clear() { open_.clear(); }
  /// The number of segments that are not whole, up to the last one that has begun.
  [[nodiscard]] std::size_t size() const { return open_.size(); }

 private:
  struct Open {
    Whole segment;
    // A bit for each slice.
    std::uint32_t begun = 0;  // none: the owner has not been asked
    std::uint32_t twice = 0;
    std::uint32_t came = 0;
  };
  // Of the numbers up to `last_` those that are not here are of segments that have come.
  std::map<std::uint64_t, Open> open_;  // ordered: its keys are the peer's
  std::uint64_t last_ = 0;
};

/// Where a slice of the segment that has this place goes.
[[nodiscard]] Placement place_of_slice(const Placement& segment, const SegmentHeader& slice);

}  // namespace pccl
