// The place of a segment in a range of known size. Every arriving segment is checked here, once,
// before a byte of it is placed: offset and length come from another process and may be anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/limits.h"

namespace pccl {

// `whole`, in all of them: bytes of each segment but the last one.

/// Number of segments of a range of so many bytes. A range of no bytes has one segment, an empty
/// one.
[[nodiscard]] constexpr std::uint64_t segments_of(std::uint64_t bytes,
                                                  std::uint64_t whole = kSegmentBytesMax) {
  return bytes == 0 ? 1 : (bytes - 1) / whole + 1;
}

/// Bytes of this segment of a range; `segment` is below segments_of(bytes, whole).
[[nodiscard]] constexpr std::uint32_t bytes_of_segment(std::uint64_t bytes, std::uint64_t segment,
                                                       std::uint64_t whole = kSegmentBytesMax) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(whole, bytes - segment * whole));
}

/// Does [offset, offset + length) lie in a range of `bytes`? Nothing here can overflow.
[[nodiscard]] constexpr bool lies_inside(std::uint64_t bytes, std::uint64_t offset,
                                         std::uint64_t length) {
  return offset <= bytes && length <= bytes - offset;
}

/// The segment of a range of `bytes` that a header names by offset and length; nothing if the range
/// has no such segment.
[[nodiscard]] constexpr std::optional<std::uint64_t> segment_at(
    std::uint64_t bytes, std::uint64_t offset, std::uint32_t length,
    std::uint64_t whole = kSegmentBytesMax) {
  const std::uint64_t segment = offset / whole;
  if (offset % whole != 0 || !lies_inside(bytes, offset, length)) return {};
  if (segment >= segments_of(bytes, whole)) return {};
  if (length != bytes_of_segment(bytes, segment, whole)) return {};
  return segment;
}

/// The segments of a range that have been given a place, and the number that are whole.
class SegmentSet {
 public:
  SegmentSet() = default;
  explicit SegmentSet(std::uint64_t bytes)
      : taken_(static_cast<std::size_t>(segments_of(bytes))), left_(taken_.size()) {}

  /// Takes a segment. False: it was taken before, so it comes twice.
  [[nodiscard]] bool take(std::uint64_t segment) {
    if (taken_[static_cast<std::size_t>(segment)]) return false;
    taken_[static_cast<std::size_t>(segment)] = true;
    return true;
  }
  /// A segment that was taken is whole now. True: all segments are.
  [[nodiscard]] bool arrived() { return --left_ == 0; }

 private:
  std::vector<bool> taken_;
  std::size_t left_ = 0;
};

}  // namespace pccl
