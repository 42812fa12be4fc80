#include "transport/slices.h"

#include <algorithm>
#include <iterator>
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

/// Of all slices of this segment.
std::uint32_t bits_of_all(const SegmentHeader& segment) {
  const std::size_t slices = (segment.bytes + kSliceBytes - 1) / kSliceBytes;
  return slices >= 32 ? ~0U : (1U << slices) - 1;
}

}  // namespace

// ---------------------------------------------------------------------------------------- out

void SlicesOut::cut(Outgoing segment) {
  PCCL_ASSERT(!cuts() && segment.frame.type == FrameType::segment);
  PCCL_ASSERT(segment.payload_bytes() > 0);
  open_.emplace(last_number_ + 1, Open{std::move(segment)});
  cut_ = ++last_number_;
}

Outgoing SlicesOut::take() {
  PCCL_ASSERT(cuts());
  if (!back_.empty()) {
    Outgoing slice = std::move(back_.front());
    back_.pop_front();
    return slice;
  }
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

void SlicesOut::put_back(std::vector<Outgoing> slices) {
  back_.insert(back_.begin(), std::move_iterator(slices.begin()), std::move_iterator(slices.end()));
}

std::optional<Outgoing> SlicesOut::sent(const Outgoing& slice) {
  if (slice.copy != Outgoing::Copy::first) return std::nullopt;
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
  for (Outgoing& slice : back_) {
    if (slice.token == token) own_payload(slice);
  }
}

void SlicesOut::clear() {
  open_.clear();
  back_.clear();
  cut_ = 0;
}

// ---------------------------------------------------------------------------------------- in

Result<std::optional<Placement>> SlicesIn::find(const SegmentHeader& slice) {
  const std::uint64_t number = slice.slice.number;
  if (number > last_) {
    if (number - last_ > kSlicedSegmentsMax - open_.size()) {
      return {ErrorCode::malformed, "slices of more than " + std::to_string(kSlicedSegmentsMax) +
                                        " segments, and the rest of none"};
    }
    while (last_ < number) open_.emplace(++last_, Open{});  // slices of the others come later
  }
  const auto found = open_.find(number);
  if (found == open_.end()) return std::optional(Placement{});
  Open& of = found->second;
  if (of.begun == 0) return std::optional<Placement>{};
  const SegmentHeader& whole = of.segment.header;
  if (whole.bytes != slice.bytes || encode_segment_fields(whole) != encode_segment_fields(slice)) {
    return {ErrorCode::malformed, "a slice of another segment than the one of its number"};
  }
  const std::uint32_t bit = bit_of(slice);
  if ((of.came & bit) != 0) return std::optional(Placement{});
  of.twice |= of.begun & bit;
  of.begun |= bit;
  return std::optional(of.segment.at);
}

void SlicesIn::place(const SegmentHeader& slice, const Placement& at) {
  const auto found = open_.find(slice.slice.number);
  if (found == open_.end()) return;  // the owner has ended the link when it was asked
  SegmentHeader header = slice;
  header.slice = {};
  found->second = Open{{header, at}, bit_of(slice)};
}

bool SlicesIn::came_twice(const SegmentHeader& slice) const {
  const auto found = open_.find(slice.slice.number);
  return found != open_.end() && (found->second.twice & bit_of(slice)) != 0;
}

SlicesIn::Arrival SlicesIn::arrived(const SegmentHeader& slice) {
  const auto found = open_.find(slice.slice.number);
  if (found == open_.end()) return {};
  Open& of = found->second;
  const std::uint32_t bit = bit_of(slice);
  if ((of.came & bit) != 0) return {};
  of.came |= bit;
  Arrival arrival{came_twice(slice), {}};
  if (of.came != bits_of_all(of.segment.header)) return arrival;
  arrival.whole = of.segment;
  open_.erase(found);
  return arrival;
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
