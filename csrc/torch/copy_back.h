// Where the result of an operation on a temporary belongs.
#pragma once

#include <ATen/core/Tensor.h>

namespace pccl {

/// A result that was received into a temporary: `from` is copied to `to` when the operation
/// succeeds.
struct CopyBack {
  at::Tensor to;
  at::Tensor from;
};

}  // namespace pccl
