// The algorithms, one file for each or for a family of them; selection.cpp picks among them. Each
// takes arguments that fit schedule.h, with size >= 2, and returns the schedule of one rank. All
// are pure, and each is right for every size in bytes (also 0) that its comment allows: selection
// is a matter of speed only.
//
// n: number of contributors, S: bytes of the whole buffer. Costs are in the head of each file.
#pragma once

#include <cstdint>
#include <optional>

#include "base/limits.h"
#include "collectives/schedule.h"

namespace pccl {

[[nodiscard]] Schedule recursive_doubling_all_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule exchange_all_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_all_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule ring_all_reduce(const CollectiveArgs& args);
/// In segments of so many bytes, which fit into a slot.
[[nodiscard]] Schedule area_all_reduce(const CollectiveArgs& args,
                                       std::uint64_t segment_bytes = kAreaSlotBytes);
/// The same; for parts of one size only.
[[nodiscard]] Schedule area_all_gather(const CollectiveArgs& args,
                                       std::uint64_t segment_bytes = kAreaSlotBytes);
[[nodiscard]] Schedule area_reduce_scatter(const CollectiveArgs& args,
                                           std::uint64_t segment_bytes = kAreaSlotBytes);
/// Needs `lines.sites`.
[[nodiscard]] Schedule two_level_all_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule two_level_all_gather(const CollectiveArgs& args);
/// Nothing where sites differ so much that a rank would sum for many others, in too much memory.
[[nodiscard]] std::optional<Schedule> two_level_reduce_scatter(const CollectiveArgs& args);
[[nodiscard]] Schedule quantised_all_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule ring_reduce_scatter(const CollectiveArgs& args);
[[nodiscard]] Schedule ring_all_gather(const CollectiveArgs& args);
[[nodiscard]] Schedule tree_broadcast(const CollectiveArgs& args);
[[nodiscard]] Schedule tree_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule chain_broadcast(const CollectiveArgs& args);
[[nodiscard]] Schedule chain_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_reduce_scatter(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_all_gather(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_gather(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_scatter(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_broadcast(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_reduce(const CollectiveArgs& args);
[[nodiscard]] Schedule direct_barrier(const CollectiveArgs& args);
[[nodiscard]] Schedule pairwise_all_to_all(const CollectiveArgs& args);
[[nodiscard]] Schedule dissemination_barrier(const CollectiveArgs& args);

/// How a quantised all-reduce cuts its values, and how many chunks it has under way at once.
struct QuantisedChunks {
  std::uint64_t values = kQuantisedChunkValues;  // of a chunk at most; a multiple of the block
  std::uint32_t under_way = kQuantisedChunksMax;
};
[[nodiscard]] Schedule quantised_all_reduce(const CollectiveArgs& args, QuantisedChunks chunks);

/// The number of pieces into which a chain cuts S bytes; they travel one behind the other.
[[nodiscard]] std::uint64_t chain_pieces(std::uint64_t bytes, std::uint64_t element_bytes,
                                         std::uint32_t size);

}  // namespace pccl
