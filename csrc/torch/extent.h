// Where the elements of tensors lie, to see whether two of them share memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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

/// Memory in many places.
class Extents {
 public:
  explicit Extents(std::vector<Buffer> places) : places_(std::move(places)) {
    std::erase_if(places_, [](const Buffer& place) { return place.bytes == 0; });
    std::sort(places_.begin(), places_.end(),
              [](const Buffer& a, const Buffer& b) { return a.data < b.data; });
    for (const Buffer& place : places_) end_ = std::max(end_, place.data + place.bytes);
  }

  [[nodiscard]] bool empty() const { return places_.empty(); }
  /// Does one place of this overlap one of the other?
  [[nodiscard]] bool touches(const Extents& other) const {
    if (places_.empty() || other.places_.empty()) return false;
    if (places_.front().data >= other.end_ || other.places_.front().data >= end_) return false;
    // In the order of their beginnings: each has to begin behind the ends of the other's before it.
    std::byte* own_end = nullptr;
    std::byte* other_end = nullptr;
    auto theirs = other.places_.begin();
    for (const Buffer& own : places_) {
      for (; theirs != other.places_.end() && theirs->data < own.data; ++theirs) {
        if (theirs->data < own_end) return true;
        other_end = std::max(other_end, theirs->data + theirs->bytes);
      }
      if (own.data < other_end) return true;
      own_end = std::max(own_end, own.data + own.bytes);
    }
    return theirs != other.places_.end() && theirs->data < own_end;
  }

 private:
  std::vector<Buffer> places_;  // by their beginnings; none is empty
  std::byte* end_ = nullptr;    // of the last one to end
};

}  // namespace pccl
