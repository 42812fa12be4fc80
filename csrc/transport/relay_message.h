// The messages of the two ends of a relayed link and of the peer between them: the payload of a
// relay frame. Pure: bytes in, fields out; relay_seal.h seals. All numbers are little-endian; zero
// must be zero.
//
//    0  u8   kind (RelayKind)
//    1  7 x  zero
//    8  u64  from: the peer that sends
//   16  u64  to
//   24  u64  session
//   32  u64  number
//   40  the rest
//
//   kind       session         number                       rest
//   1 open     the sender's,   the receiver's as the        RelayOpening: u8 1: the processor has
//              random          sender knows it; 0: not yet  AES, 7 x zero, 32 x fresh public key,
//                                                           32 x proof (zero while number is)
//   2 control  the receiver's  that of the seal             a control message, sealed; 16 x tag
//   3 down     the receiver's  that of the seal             u64 segments sent before it, which come
//                                                           first (0: none), why; sealed; 16 x tag
//   4 credit   0               bytes passed on              none
//   5 cut      0               0                            why, from the peer in between
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

enum class RelayKind : std::uint8_t { open = 1, control = 2, down = 3, credit = 4, cut = 5 };

/// What an end says of itself when it opens a relayed link (trust/route_keys.h).
struct RelayOpening {
  bool aes = false;
  PublicKey fresh{};
  PublicKey proof{};  // RouteKeys::own_proof; zero: the sender has not heard from the receiver yet
};
inline constexpr std::size_t kRelayOpeningBytes = 72;

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

[[nodiscard]] inline std::array<std::byte, kRelayOpeningBytes> encode_relay_opening(
    const RelayOpening& opening) {
  std::array<std::byte, kRelayOpeningBytes> bytes{};
  BytesOut{std::span(bytes)}
      .number(static_cast<std::uint8_t>(opening.aes ? 1 : 0))
      .array(std::array<std::uint8_t, 7>{})
      .array(opening.fresh)
      .array(opening.proof);
  return bytes;
}

/// Reads the rest of an `open` that decode_relay has taken.
[[nodiscard]] inline RelayOpening decode_relay_opening(std::span<const std::byte> bytes) {
  BytesIn in(bytes);
  RelayOpening opening;
  opening.aes = in.number<std::uint8_t>() == 1;
  (void)in.array<7>();
  opening.fresh = in.array<32>();
  opening.proof = in.array<32>();
  return opening;
}

/// Reads a whole payload, whose size the frame's limits have bounded. `rest` points into it.
[[nodiscard]] inline Result<RelayMessage> decode_relay(std::span<const std::byte> bytes) {
  const Error malformed{ErrorCode::malformed, "a relay message with fields that name nothing"};
  if (bytes.size() < kRelayHeadBytes) return malformed;
  BytesIn in(bytes);
  RelayMessage m;
  m.kind = static_cast<RelayKind>(in.number<std::uint8_t>());
  bool sound = m.kind >= RelayKind::open && m.kind <= RelayKind::cut;
  for (const std::uint8_t byte : in.array<7>()) sound = sound && byte == 0;
  m.from.value = in.number<std::uint64_t>();
  m.to.value = in.number<std::uint64_t>();
  m.session = in.number<std::uint64_t>();
  m.number = in.number<std::uint64_t>();
  m.rest = bytes.subspan(kRelayHeadBytes);
  sound = sound && m.from != PeerId{} && m.to != PeerId{} && m.from != m.to;
  if (m.kind == RelayKind::control) sound = sound && m.rest.size() > kSealTagBytes;
  if (m.kind == RelayKind::down) sound = sound && m.rest.size() >= 8 + kSealTagBytes;
  if (m.kind == RelayKind::credit) sound = sound && m.rest.empty();
  if (m.kind == RelayKind::open) {
    sound = sound && m.rest.size() == kRelayOpeningBytes && m.rest[0] <= std::byte{1} &&
            std::all_of(m.rest.begin() + 1, m.rest.begin() + 8,
                        [](std::byte byte) { return byte == std::byte{0}; });
  }
  if (!sound) return malformed;
  return m;
}

}  // namespace pccl
