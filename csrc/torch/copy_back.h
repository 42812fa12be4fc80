// Where the result of an operation on a temporary belongs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "torch/extent.h"

namespace pccl {

/// A result that was received into a temporary: `from` is copied to `to` when the operation
/// succeeds.
struct CopyBack {
  at::Tensor to;
  at::Tensor from;
};

/// The memory to which results are copied.
inline std::vector<Buffer> results_of(const std::vector<CopyBack>& copies) {
  std::vector<Buffer> memory;
  for (const CopyBack& copy : copies) memory.push_back(extent_of(copy.to));
  return memory;
}

}  // namespace pccl
