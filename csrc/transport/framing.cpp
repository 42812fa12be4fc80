#include "transport/framing.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/limits.h"
#include "transport/bytes.h"
#include "transport/crc32c.h"

namespace pccl {
namespace {

constexpr std::uint8_t kFlagPayloadCrc = 1;
constexpr std::string_view kNamesNothing = "a frame header with fields that name nothing";

bool known(SegmentKind kind) {
  return kind >= SegmentKind::collective && kind <= SegmentKind::measure;
}

/// What follows the fields of the segment. False: it is no slice of it.
bool decode_slice(std::span<const std::byte> bytes, FrameHeader& header) {
  SegmentHeader& segment = header.segment;
  BytesIn from(bytes);
  segment.slice.number = from.number<std::uint64_t>();
  segment.slice.offset = from.number<std::uint32_t>();
  segment.slice.bytes = header.payload_bytes;
  segment.bytes = from.number<std::uint32_t>();
  const std::uint32_t offset = segment.slice.offset;
  return segment.bytes <= kSegmentBytesMax && offset % kSliceBytes == 0 && offset < segment.bytes &&
         segment.slice.bytes == std::min<std::size_t>(kSliceBytes, segment.bytes - offset);
}

/// The same of a reference.
bool decode_reference(std::span<const std::byte> bytes, FrameHeader& header) {
  SegmentHeader& segment = header.segment;
  BytesIn from(bytes);
  segment.area.generation = from.number<std::uint64_t>();
  segment.area.slot = from.number<std::uint32_t>();
  segment.bytes = from.number<std::uint32_t>();
  return segment.kind == SegmentKind::collective && segment.area.generation != 0 &&
         segment.area.slot < kAreaSlots && segment.bytes > 0 && segment.bytes <= kAreaSlotBytes &&
         !header.has_payload_crc;
}

}  // namespace

SegmentFields encode_segment_fields(const SegmentHeader& header) {
  SegmentFields fields{};
  BytesOut{std::span(fields)}
      .number(header.group.value)
      .number(header.epoch.value)
      .number(header.op.step)
      .number(header.op.index)
      .number(header.offset)
      .number(header.descriptor.count)
      .number(header.channel)
      .number(static_cast<std::uint32_t>(header.descriptor.root))
      .number(static_cast<std::uint8_t>(header.descriptor.kind))
      .number(static_cast<std::uint8_t>(header.descriptor.reduce))
      .number(static_cast<std::uint8_t>(header.descriptor.dtype))
      .number(static_cast<std::uint8_t>(header.kind))
      .number(static_cast<std::uint8_t>(header.descriptor.quantisation));
  return fields;
}

Result<SegmentHeader> decode_segment_fields(const SegmentFields& fields) {
  BytesIn from(fields);
  SegmentHeader s;
  s.group.value = from.number<std::uint64_t>();
  s.epoch.value = from.number<std::uint64_t>();
  s.op.step = from.number<std::uint64_t>();
  s.op.index = from.number<std::uint64_t>();
  s.offset = from.number<std::uint64_t>();
  s.descriptor.count = from.number<std::uint64_t>();
  s.channel = from.number<std::uint32_t>();
  s.descriptor.root = static_cast<std::int32_t>(from.number<std::uint32_t>());
  s.descriptor.kind = static_cast<OpKind>(from.number<std::uint8_t>());
  s.descriptor.reduce = static_cast<ReduceOp>(from.number<std::uint8_t>());
  s.descriptor.dtype = static_cast<DType>(from.number<std::uint8_t>());
  s.kind = static_cast<SegmentKind>(from.number<std::uint8_t>());
  s.descriptor.quantisation = static_cast<Quantisation>(from.number<std::uint8_t>());
  bool sound = known(s.kind) && s.descriptor.quantisation <= kQuantisationLast;
  for (const std::uint8_t byte : from.array<3>()) sound = sound && byte == 0;
  if (!sound) return {ErrorCode::malformed, std::string(kNamesNothing)};
  return s;
}

std::size_t encode_frame_header(const FrameHeader& header, HeaderBytes& out) {
  out.fill(std::byte{0});
  const std::size_t size = header_bytes(header.type);
  BytesOut to{std::span(out).subspan(4)};
  to.number(static_cast<std::uint8_t>(header.type))
      .number(header.has_payload_crc ? kFlagPayloadCrc : std::uint8_t{0})
      .number(std::uint16_t{0})
      .number(header.payload_bytes)
      .number(header.has_payload_crc ? header.payload_crc : 0U);
  if (has_segment(header.type)) {
    const SegmentHeader& s = header.segment;
    const bool routed = header.type == FrameType::routed;
    const SegmentFields fields = routed ? s.route.fields : encode_segment_fields(s);
    std::copy(fields.begin(), fields.end(), out.begin() + kFrameHeaderBytes);
    if (routed) {
      BytesOut{std::span(out).subspan(kSegmentHeaderBytes)}
          .number(s.route.from.value)
          .number(s.route.to.value)
          .number(s.route.session)
          .number(s.route.number);
      std::copy(s.route.tag.begin(), s.route.tag.end(), out.end() - kSealTagBytes);
    } else if (header.type == FrameType::slice) {
      BytesOut{std::span(out).subspan(kSegmentHeaderBytes)}
          .number(s.slice.number)
          .number(s.slice.offset)
          .number(s.bytes);
    } else if (header.type == FrameType::reference) {
      BytesOut{std::span(out).subspan(kSegmentHeaderBytes)}
          .number(s.area.generation)
          .number(s.area.slot)
          .number(s.bytes);
    }
  }
  BytesOut{std::span(out)}.number(crc32c(0, std::span(out).subspan(4, size - 4)));
  return size;
}

Result<std::size_t> frame_header_size(std::span<const std::byte> bytes) {
  if (bytes.size() < 5) return std::size_t{0};
  const auto type = static_cast<FrameType>(bytes[4]);
  switch (type) {
    case FrameType::control:
    case FrameType::segment:
    case FrameType::goodbye:
    case FrameType::relay:
    case FrameType::routed:
    case FrameType::joined:
    case FrameType::slice:
    case FrameType::reference:
      return header_bytes(type);
  }
  return {ErrorCode::malformed,
          "a frame of unknown type " + std::to_string(static_cast<unsigned>(bytes[4]))};
}

Result<FrameHeader> decode_frame_header(std::span<const std::byte> bytes,
                                        std::size_t control_bytes_max) {
  const auto size = frame_header_size(bytes);
  if (!size) return size.error();
  if (size.value() == 0 || bytes.size() != size.value()) {
    return {ErrorCode::malformed, "a frame header that is not as long as its type demands"};
  }
  BytesIn from(bytes);
  if (from.number<std::uint32_t>() != crc32c(0, bytes.subspan(4))) {
    return {ErrorCode::malformed, "the checksum of a frame header does not fit"};
  }
  FrameHeader header;
  header.type = static_cast<FrameType>(from.number<std::uint8_t>());
  const auto flags = from.number<std::uint8_t>();
  const auto zero = from.number<std::uint16_t>();
  header.payload_bytes = from.number<std::uint32_t>();
  header.payload_crc = from.number<std::uint32_t>();
  header.has_payload_crc = (flags & kFlagPayloadCrc) != 0;
  bool sound = (flags & ~kFlagPayloadCrc) == 0 && zero == 0;
  if (!header.has_payload_crc && header.payload_crc != 0) sound = false;
  std::size_t bytes_min = 0;
  std::size_t bytes_max = 0;
  if (header.type == FrameType::control) {
    bytes_min = 1;
    bytes_max = control_bytes_max;
  } else if (header.type == FrameType::relay) {
    bytes_min = kRelayHeadBytes;
    bytes_max = control_bytes_max + kRelayHeadBytes + kSealTagBytes;
  } else if (has_segment(header.type)) {
    bytes_max = header.type == FrameType::reference ? 0 : kSegmentBytesMax;
    SegmentFields fields;
    const auto raw = bytes.subspan(kFrameHeaderBytes, kSegmentFieldsBytes);
    std::copy(raw.begin(), raw.end(), fields.begin());
    if (header.type == FrameType::routed) {
      Route& route = header.segment.route;
      BytesIn behind(bytes.subspan(kSegmentHeaderBytes));
      route.from.value = behind.number<std::uint64_t>();
      route.to.value = behind.number<std::uint64_t>();
      route.session = behind.number<std::uint64_t>();
      route.number = behind.number<std::uint64_t>();
      route.fields = fields;
      std::copy(bytes.end() - kSealTagBytes, bytes.end(), route.tag.begin());
      sound = sound && route.relayed() && route.from != PeerId{};
    } else {
      const auto segment = decode_segment_fields(fields);
      if (!segment) return segment.error();
      header.segment = segment.value();
    }
    header.segment.bytes = header.payload_bytes;
    if (header.type == FrameType::slice) {
      sound = decode_slice(bytes.subspan(kSegmentHeaderBytes), header) && sound;
    } else if (header.type == FrameType::reference) {
      sound = decode_reference(bytes.subspan(kSegmentHeaderBytes), header) && sound;
    }
  }
  if (!sound) return {ErrorCode::malformed, std::string(kNamesNothing)};
  if (header.payload_bytes < bytes_min || header.payload_bytes > bytes_max) {
    return {ErrorCode::malformed, "a frame of " + std::to_string(header.payload_bytes) +
                                      " bytes, the limit is " + std::to_string(bytes_max)};
  }
  return header;
}

}  // namespace pccl
