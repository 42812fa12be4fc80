// Quantisation: float32 as fewer bits, block by block, for sums over slow links.
//
// Each block has its own parameters, so one huge value spoils the precision of its block alone. A
// block with a NaN or an infinity, or (integers) whose largest and smallest value are further apart
// than the largest float32, arrives as NaN as a whole; f16 and bf16 have no blocks, and keep NaNs
// and infinities where they are. Codes, and the values that are made of them, are the same bits on
// every CPU.
#pragma once

#include <cstddef>

#include "base/quantisation.h"
#include "kernels/dispatch.h"

namespace pccl {

/// In all of these `how` is not `none`. `to` has quantised_bytes(count, how) bytes; the memory does
/// not overlap.
void quantise(std::byte* to, const float* from, std::size_t count, Quantisation how,
              InstructionSet set = instruction_sets().back());
/// to[i] = value i of `from`.
void dequantise(float* to, const std::byte* from, std::size_t count, Quantisation how,
                InstructionSet set = instruction_sets().back());
/// to[i] += value i of `from`, rounded once.
void add_dequantised(float* to, const std::byte* from, std::size_t count, Quantisation how,
                     InstructionSet set = instruction_sets().back());
/// to[i] += from[i] - value i of `codes`.
void add_error(float* to, const float* from, const std::byte* codes, std::size_t count,
               Quantisation how);

}  // namespace pccl
