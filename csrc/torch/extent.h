// Where the elements of a tensor lie, to see whether two tensors share memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "engine/request.h"

namespace pccl {

/// From the first element to the last, with what lies between them and is not the tensor's. Of the
/// tensor's device, and for comparisons alone: a lazy copy stays one.
inline Buffer extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;  // element
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  auto* begin = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));  // NOLINT
  return {begin, static_cast<std::uint64_t>(last + 1) * tensor.element_size()};
}

}  // namespace pccl
