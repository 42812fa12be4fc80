// The messages of the two ends of a relayed link and of the peer between them: the payload of a
// relay frame. Pure: bytes in, fields out. All numbers are little-endian; zero must be zero.
//
//    0  u8   kind (RelayKind)
//    1  7 x  zero
//    8  u64  from: the peer that sends
//   16  u64  to
//   24  u64  session
//   32  u64  number
//   40  the rest: the payload of a control message, or why a link is down
//
//   kind         session                   number
//   1 open       the sender's, random      the receiver's as the sender knows it; 0: not yet
//   2 control    the receiver's            0
//   3 down       the receiver's; 0: any    segments sent before it, which come first; 0: none
//   4 credit     0                         bytes that the peer between them has passed on
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "transport/bytes.h"
#include "transport/framing.h"

namespace pccl {

/// What a segment counts in the window of a relayed link, at its sender and at the peer in between:
/// a short one costs memory too.
[[nodiscard]] constexpr std::uint64_t relay_cost(std::uint64_t bytes) {
  return std::max<std::uint64_t>(bytes, kKeptBytesMin);
}

enum class RelayKind : std::uint8_t { open = 1, control = 2, down = 3, credit = 4 };

struct RelayMessage {
  RelayKind kind = RelayKind::open;
  PeerId from;
  PeerId to;
  std::uint64_t session = 0;
  std::uint64_t number = 0;
  std::span<const std::byte> rest;  // borrowed
};

[[nodiscard]] inline std::vector<std::byte> encode_relay(const RelayMessage& m) {
  std::vector<std::byte> bytes(kRelayHeadBytes + m.rest.size());
  BytesOut{std::span(bytes)}
      .number(static_cast<std::uint8_t>(m.kind))
      .array(std::array<std::uint8_t, 7>{})
      .number(m.from.value)
      .number(m.to.value)
      .number(m.session)
      .number(m.number);
  std::copy(m.rest.begin(), m.rest.end(), bytes.begin() + kRelayHeadBytes);
  return bytes;
}

/// Reads a whole payload, whose size the frame's limits have bounded. `rest` points into it.
[[nodiscard]] inline Result<RelayMessage> decode_relay(std::span<const std::byte> bytes) {
  const Error malformed{ErrorCode::malformed, "a relay message with fields that name nothing"};
  if (bytes.size() < kRelayHeadBytes) return malformed;
  BytesIn in(bytes);
  RelayMessage m;
  m.kind = static_cast<RelayKind>(in.number<std::uint8_t>());
  bool sound = m.kind >= RelayKind::open && m.kind <= RelayKind::credit;
  for (const std::uint8_t byte : in.array<7>()) sound = sound && byte == 0;
  m.from.value = in.number<std::uint64_t>();
  m.to.value = in.number<std::uint64_t>();
  m.session = in.number<std::uint64_t>();
  m.number = in.number<std::uint64_t>();
  m.rest = bytes.subspan(kRelayHeadBytes);
  sound = sound && m.from != PeerId{} && m.to != PeerId{} && m.from != m.to;
  if (m.kind == RelayKind::control) sound = sound && !m.rest.empty();
  if (m.kind == RelayKind::open || m.kind == RelayKind::credit) sound = sound && m.rest.empty();
  if (!sound) return malformed;
  return m;
}

}  // namespace pccl
