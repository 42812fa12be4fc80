#include "transport/slices.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"

namespace pccl {
namespace {

static_assert(kSegmentBytesMax / kSliceBytes <= 32, "Open::begun has a bit for each slice");

std::uint32_t bit_of(const SegmentHeader& slice) {
  return 1U << (slice.slice.offset / kSliceBytes);
}

}  // namespace

// ---------------------------------------------------------------------------------------- out

void SlicesOut::cut(Outgoing segment) {
  PCCL_ASSERT(!cuts() && segment.frame.type == FrameType::segment);
  PCCL_ASSERT(segment.payload_bytes() > 0);
  cut_ = ++last_number_;
  open_.emplace(cut_, Open{std::move(segment)});
}

Outgoing SlicesOut::take() {
  PCCL_ASSERT(cuts());
  Open& from = open_.at(cut_);
  const std::uint32_t offset = from.taken;
  const auto whole = static_cast<std::uint32_t>(from.segment.payload_bytes());
  const std::uint32_t bytes = std::min<std::uint32_t>(kSliceBytes, whole - offset);
  Outgoing slice;
  slice.frame.type = FrameType::slice;
  slice.frame.payload_bytes = bytes;
  slice.frame.segment = from.segment.frame.segment;
  slice.frame.segment.slice = {cut_, offset, bytes};
  if (from.segment.owned.empty()) {
    slice.payload = from.segment.payload + offset;
    slice.token = from.segment.token;
  } else {
    const auto begin =
        from.segment.owned.begin() + static_cast<std::ptrdiff_t>(offset - from.copied_from);
    slice.owned.assign(begin, begin + bytes);
    slice.payload = slice.owned.data();
  }
  from.taken += bytes;
  if (from.taken == whole) cut_ = 0;
  return slice;
}

std::optional<Outgoing> SlicesOut::sent(const Outgoing& slice) {
  const auto found = open_.find(slice.frame.segment.slice.number);
  PCCL_ASSERT(found != open_.end(), slice.frame.segment.slice.number);
  Open& of = found->second;
  of.sent += slice.frame.payload_bytes;
  if (of.sent < of.segment.payload_bytes()) return std::nullopt;
  std::optional<Outgoing> segment = std::move(of.segment);
  open_.erase(found);
  return segment;
}

void SlicesOut::cancel(MemoryToken token) {
  for (auto& [number, of] : open_) {
    Outgoing& segment = of.segment;
    if (segment.token != token) continue;
    const auto* begin = segment.payload + of.taken;
    segment.owned.assign(begin, segment.payload + segment.payload_bytes());
    of.copied_from = of.taken;
    segment.payload = nullptr;
    segment.token = 0;
    segment.tells = false;
  }
}

void SlicesOut::clear() {
  open_.clear();
  cut_ = 0;
}

// ---------------------------------------------------------------------------------------- in

Result<std::optional<Placement>> SlicesIn::find(const SegmentHeader& slice) {
  const auto found = open_.find(slice.slice.number);
  if (found == open_.end()) {
    if (open_.size() < kSlicedSegmentsMax) return std::optional<Placement>{};
    return {ErrorCode::malformed, "slices of more than " + std::to_string(kSlicedSegmentsMax) +
                                      " segments, and the rest of none"};
  }
  Open& of = found->second;
  const SegmentHeader& whole = of.segment.header;
  if (whole.bytes != slice.bytes || encode_segment_fields(whole) != encode_segment_fields(slice)) {
    return {ErrorCode::malformed, "a slice of another segment than the one of its number"};
  }
  if ((of.begun & bit_of(slice)) != 0) return {ErrorCode::malformed, "a slice comes twice"};
  of.begun |= bit_of(slice);
  return std::optional<Placement>{of.segment.at};
}

void SlicesIn::place(const SegmentHeader& slice, const Placement& at) {
  SegmentHeader header = slice;
  header.slice = {};
  open_.insert_or_assign(slice.slice.number, Open{{header, at}, bit_of(slice), 0});
}

std::optional<SlicesIn::Whole> SlicesIn::arrived(const SegmentHeader& slice) {
  const auto found = open_.find(slice.slice.number);
  if (found == open_.end()) return std::nullopt;
  Open& of = found->second;
  of.came += slice.slice.bytes;
  if (of.came < of.segment.header.bytes) return std::nullopt;
  const Whole whole = of.segment;
  open_.erase(found);
  return whole;
}

void SlicesIn::cancel(MemoryToken token) {
  for (auto& [number, of] : open_) {
    if (of.segment.at.token == token) of.segment.at = {};
  }
}

Placement place_of_slice(const Placement& segment, const SegmentHeader& slice) {
  Placement at = segment;
  if (at.to != nullptr) at.to += slice.slice.offset;
  return at;
}

}  // namespace pccl
