// What collectives take over long lines, by each algorithm: the time until a byte has come through
// all steps, and the time of the bytes on the line that all ranks may have in common.
//
// Pure, and in whole nanoseconds: all ranks compute the same numbers. So numbers and formulas here
// are a part of the protocol (PROTOCOL.md, Lines). Over short lines other things decide
// (selection.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "base/lines.h"

namespace pccl {

/// An exchange of three and more keeps so many bytes at each rank, at most; of each other one
/// kKeptBytesMin at least.
inline constexpr std::uint64_t kExchangedBytesMax = 4U << 20;
/// The same where the rate of the lines is known.
inline constexpr std::uint64_t kMeasuredExchangedBytesMax = 16U << 20;

enum class AllReduceBy : std::uint8_t { exchange, doubling, direct, two_levels, ring };

/// So little that recursive doubling may be taken, and a ring may not where no rate is known.
[[nodiscard]] bool is_little(std::uint64_t bytes, std::uint32_t size);
/// Bytes of a segment where so many go from one rank to another. On a short line they go in several
/// segments, so that a rank adds up one of them while the next one is on its way.
[[nodiscard]] std::uint64_t segment_bytes_of(std::uint64_t bytes, const Lines& lines);

/// Nanoseconds; ~0: not by this one. `bytes`: of the tensor; `size`: ranks, 2 or more. Lines: 1 s
/// at most. Two levels need sites.
[[nodiscard]] std::uint64_t all_reduce_ns(AllReduceBy by, std::uint64_t bytes, std::uint32_t size,
                                          const Lines& lines);
/// The fastest; the ring unless it takes a tenth more than another one, or `is_little` forbids it,
/// or two ranks may exchange.
[[nodiscard]] AllReduceBy fastest_all_reduce(std::uint64_t bytes, std::uint32_t size,
                                             const Lines& lines);
/// Broadcast and reduce: is it faster, by a tenth, if all data go between the root and each other
/// rank than along a tree?
[[nodiscard]] bool direct_beats_tree(std::uint64_t bytes, std::uint32_t size, const Lines& lines);
/// All-gather and reduce-scatter in two levels: the most bytes that leave a site, or come to it.
/// `parts`: their bytes, by rank.
[[nodiscard]] std::uint64_t crossing_bytes(const std::vector<std::uint64_t>& parts,
                                           const Sites& sites);
/// All-gather and reduce-scatter: are two levels faster, by a tenth, than the direct way and than
/// the ring? `parts`: their bytes, by rank. Without sites never.
[[nodiscard]] bool two_levels_gather_first(const std::vector<std::uint64_t>& parts,
                                           const Lines& lines);
/// All-gather and reduce-scatter are halves of an all-reduce, and chosen like it: is the direct one
/// faster, by a tenth? `bytes`: of all parts. Where each rank has a line of its own the two send as
/// many bytes over it: there the direct way loses little if the line is slower than it is taken to
/// be, and wins much if it is not.
[[nodiscard]] bool direct_beats_ring(std::uint64_t bytes, std::uint32_t size, const Lines& lines);

}  // namespace pccl
