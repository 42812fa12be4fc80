// Element-wise reductions over spans: memory in, memory out, nothing else.
//
// float16 and bfloat16 are added in float32 with one rounding (to nearest even) per call. min and
// max propagate NaN. bool is logical: sum, max and bor are "or", product, min and band are "and",
// bxor is "xor"; results are 0 or 1. Integers wrap. No fused multiply-add (compiled with
// -ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/dispatch.h"

namespace pccl {

/// Can elements of `dtype` be reduced by `op`? (Bitwise: integers and bool. avg: not bool.
/// Moved-only types: never. complex: sum, product, avg.)
[[nodiscard]] bool reducible(DType dtype, ReduceOp op);

/// to[i] = a[i] op b[i] for `count` elements. `to` may be `a` or `b`, and does not overlap them
/// otherwise. avg adds; finish_average divides. Requires reducible(dtype, op).
void reduce_into(void* to, const void* a, const void* b, std::size_t count, DType dtype,
                 ReduceOp op);

/// data[i] /= contributors: floats in their own precision (16-bit ones through float32), integers
/// truncate toward zero. Requires reducible(dtype, ReduceOp::avg).
void finish_average(void* data, std::size_t count, DType dtype, std::uint64_t contributors);

/// Copies with non-temporal stores where the CPU has them: for what is not read again soon.
/// `to` and `from` do not overlap.
void copy_streaming(void* to, const void* from, std::size_t bytes,
                    InstructionSet set = instruction_sets().back());

}  // namespace pccl
