// Quantisation: float32 as fewer bits, block by block, for sums over slow links.
//
// Each block has its own parameters, so one huge value spoils the precision of its block alone. A
// block with a NaN or an infinity, or (integers) whose largest and smallest value are further apart
// than the largest float32, arrives as NaN as a whole; f16 and bf16 have no blocks, and keep NaNs
// and infinities where they are. Codes, and the values that are made of them, are the same bits on
// every CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"

namespace pccl {

/// What a value becomes, and how far it may be off, with `range` for the largest less the smallest
/// value of its block and `most` for the largest magnitude there (rounding of float32 beside it):
enum class Quantisation : std::uint8_t {
  int8_minmax,      // 0..255 between smallest and largest: range / 510
  int8_zero_point,  // 0..255, and zero stays zero; range reaches to zero: range / 255
  int4_minmax,      // 0..15: range / 30
  f16,              // its magnitude / 2048 (from 2^-14 on); from 65520 on: infinity
  bf16,             // its magnitude / 256
  f8_e4m3,          // its magnitude / 16, or most / 2^18 where that is more
  f8_e5m2,          // its magnitude / 8, or most / 2^32 where that is more
};

/// Values in a block; the last one of a sequence may have fewer.
inline constexpr std::size_t kQuantisedBlock = 256;

/// Bytes that `count` values take.
[[nodiscard]] std::size_t quantised_bytes(std::size_t count, Quantisation how);

/// `to` has quantised_bytes(count, how) bytes; the memory does not overlap.
void quantise(std::byte* to, const float* from, std::size_t count, Quantisation how,
              InstructionSet set = instruction_sets().back());
/// to[i] = value i of `from`.
void dequantise(float* to, const std::byte* from, std::size_t count, Quantisation how,
                InstructionSet set = instruction_sets().back());
/// to[i] += value i of `from`, rounded once.
void add_dequantised(float* to, const std::byte* from, std::size_t count, Quantisation how,
                     InstructionSet set = instruction_sets().back());

}  // namespace pccl
