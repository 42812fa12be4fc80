// Frames: after the handshake every connection carries frames, in both directions. Pure: bytes in,
// headers out. All numbers are little-endian; a field called zero must be zero.
//
//   every frame                          segment frames go on with
//    0  u32  CRC32C of the header          16  u64  group
//            from byte 4 to its end        24  u64  epoch
//    4  u8   type (FrameType)              32  u64  operation: step
//    5  u8   flags: 1 = payload CRC        40  u64  operation: index
//    6  u16  zero                          48  u64  offset in the range of the step
//    8  u32  payload bytes                 56  u64  descriptor: count
//   12  u32  CRC32C of the payload,        64  u32  channel
//            zero without the flag         68  u32  descriptor: root (two's complement)
//                                          72  u8   descriptor: kind
//                                          73  u8   descriptor: reduction
//                                          74  u8   descriptor: type of the elements
//                                          75  u8   kind of the segment
//                                          76  4 x zero
//   routed segments (a third peer passes them on) have bytes 16 to 79 and the payload sealed
//   (relay_seal.h), and go on with
//   80  u64  from: the peer that sends
//   88  u64  to: the peer that receives
//   96  u64  session: the receiver's
//  104  u64  number
//  112  16 x tag of the seal
//   slices of segments have bytes 16 to 79 as the segment, and go on with
//   80  u64  number of the sliced segment, any that no unfinished one of the direction has
//   88  u32  offset of the slice in the segment, a multiple of kSliceBytes
//   92  u32  bytes of the whole segment
//   references to segments, whose payload lies in the sender's area (area.h), have no payload, and
//   go on with
//   80  u64  generation of the slot, not 0
//   88  u32  slot
//   92  u32  bytes of the segment, 1 to those of a slot
// The header is 16 bytes long, that of a segment 80, of a slice or reference 96, of a routed
// segment 128. The payload follows it at once. Limits: control 1..kControlBytesMax bytes, on a lane
// 1..kPeerMessageBytesMax, relay kRelayHeadBytes to kRelayBytesMax, segments 0..kSegmentBytesMax,
// slices kSliceBytes or what is left of the segment, but not 0, goodbye and joined 0. A
// goodbye is the last frame of a sender: a connection that ends after it has ended in good order,
// without it the peer is lost. Joined is the first frame of the side that has dialled one more lane
// of an existing link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/limits.h"
#include "transport/transport.h"
#include "trust/sealer.h"

namespace pccl {

enum class FrameType : std::uint8_t {
  control = 1,
  segment = 2,
  goodbye = 3,
  relay = 4,
  routed = 5,
  joined = 6,
  slice = 7,
  reference = 8
};

inline constexpr std::size_t kFrameHeaderBytes = 16;
inline constexpr std::size_t kSegmentHeaderBytes = 80;
inline constexpr std::size_t kSegmentFieldsBytes = kSegmentHeaderBytes - kFrameHeaderBytes;
inline constexpr std::size_t kSliceHeaderBytes = 96;
inline constexpr std::size_t kRoutedHeaderBytes = 128;
inline constexpr std::size_t kRelayHeadBytes = 40;
/// Of a relay frame: a message between peers, sealed, behind a head.
inline constexpr std::size_t kRelayBytesMax =
    kRelayHeadBytes + kPeerMessageBytesMax + kSealTagBytes;

/// Does a frame of this type carry a segment, a slice of one, or a reference to one? The others
/// carry a message, or nothing.
[[nodiscard]] constexpr bool has_segment(FrameType type) {
  return type == FrameType::segment || type == FrameType::routed || type == FrameType::slice ||
         type == FrameType::reference;
}

[[nodiscard]] constexpr bool has_message(FrameType type) {
  return type == FrameType::control || type == FrameType::relay;
}

struct FrameHeader {
  FrameType type = FrameType::control;
  bool has_payload_crc = false;
  std::uint32_t payload_bytes = 0;
  std::uint32_t payload_crc = 0;
  SegmentHeader segment;  // if the frame carries one: segment.bytes == payload_bytes, of a slice
                          // segment.slice.bytes, of a reference that of the slot (payload_bytes 0);
                          // of a routed one `bytes` and `route` alone
};

/// Does the payload of this frame belong to an operation, or to shared state?
[[nodiscard]] constexpr bool has_data(const FrameHeader& header) {
  return has_segment(header.type) && header.segment.kind != SegmentKind::measure;
}

/// Bytes of the whole header of a frame of that type.
[[nodiscard]] constexpr std::size_t header_bytes(FrameType type) {
  if (type == FrameType::routed) return kRoutedHeaderBytes;
  if (type == FrameType::slice || type == FrameType::reference) return kSliceHeaderBytes;
  return type == FrameType::segment ? kSegmentHeaderBytes : kFrameHeaderBytes;
}

/// Bytes 16 to 79 of the header of a segment.
using SegmentFields = std::array<std::byte, kSegmentFieldsBytes>;
[[nodiscard]] SegmentFields encode_segment_fields(const SegmentHeader& header);
/// Without bytes and route.
[[nodiscard]] Result<SegmentHeader> decode_segment_fields(const SegmentFields& fields);

using HeaderBytes = std::array<std::byte, kRoutedHeaderBytes>;
/// Writes the header of a frame; returns its length.
std::size_t encode_frame_header(const FrameHeader& header, HeaderBytes& out);

/// The length of the header that starts with these bytes; 0 if they are too few to tell
/// (kFrameHeaderBytes are enough). An unknown type is `malformed`.
[[nodiscard]] Result<std::size_t> frame_header_size(std::span<const std::byte> bytes);
/// Reads one whole header. `malformed` if the bytes are not as many as frame_header_size says, or
/// if a control payload exceeds `control_bytes_max`.
[[nodiscard]] Result<FrameHeader> decode_frame_header(std::span<const std::byte> bytes,
                                                      std::size_t control_bytes_max);

}  // namespace pccl
