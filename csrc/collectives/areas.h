// What the algorithms of ranks that read each other's memory (transport/area.h) have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/builder.h"

namespace pccl {

/// The last round, in which each rank tells all others, by an empty segment, that these steps are
/// complete, after which it reads nothing from their areas any more. So no rank is done before its
/// area has been read.
inline void tell_all_read(Builder& b, const CollectiveArgs& args, std::uint32_t channel,
                          const std::vector<std::uint32_t>& steps, std::uint64_t turn) {
  const Range nothing = scratch(0, 0);
  for (std::uint32_t d = 1; d < args.size; ++d) {
    b.send(before(args.rank, d, args.size), channel, nothing, Order{steps});
    b.set_turn(b.recv(around(args.rank, d, args.size), channel, nothing),
               static_cast<std::uint32_t>(turn));
  }
}

/// The turn of the last round, where all segments of `bytes`, one at least, have the turns before
/// it.
inline std::uint64_t last_turn(std::uint64_t bytes, std::uint64_t segment_bytes) {
  return std::max<std::uint64_t>(divide_up(bytes, segment_bytes), 1) + 1;
}

inline Schedule in_areas(Schedule schedule, std::uint32_t rows, std::uint32_t depth,
                         std::uint64_t segment_bytes) {
  schedule.area_rows = rows;
  schedule.area_depth = depth;
  schedule.segment_bytes = segment_bytes;
  return schedule;
}

}  // namespace pccl
