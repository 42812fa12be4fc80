// The bytes that two processes exchange before the first frame. Pure: bytes in, bytes out; the I/O
// is in talk.h. All numbers are little-endian; a field called zero must be zero.
//
// 1. The opening, first from the dialer, then from the acceptor: 16 bytes.
//      0  8 x    89 70 63 63 6c 0d 0a 1a   (never text: a terminal or a proxy shows at once)
//      8  u32    protocol version
//     12  u8     purpose: 1 channel to a master, 2 lane of a link
//     13  3 x    zero
//    The answer to another version is the acceptor's opening and the end of the connection: both
//    ends can name both versions.
//
// 2. On a lane only. With k = the key of the acceptor (which is in its handle), D and A the
//    two random nonces, C and B the capabilities of dialer and acceptor, and
//    H(x) = HMAC-SHA256(k, x | D | A | dialer | acceptor | link | joins | C | B):
//      dialer    LaneHello  56 bytes: u64 dialer, u64 acceptor, u64 link (random, chosen with its
//                           first lane), u8 joins (0: the first lane, which makes the link; 1: one
//                           more lane of it), 3 x zero, u32 C, 24 x D
//      acceptor  LaneOffer  64 bytes: 24 x A, u32 B, 4 x zero, 32 x H("a")
//      dialer    LaneProof  32 bytes: H("d")
//      acceptor  LaneAnswer  8 bytes: u8 LaneVerdict, 7 x zero
//    A lane joins the link of these two peers that has this number, whichever of the two has
//    dialled that link. For the acceptor the lane is part of the link when the LaneAnswer is sent;
//    the acceptor sends over the lane when the dialer has sent a `joined` frame on it (framing.h).
//    The dialer sends its opening and LaneHello at once. A process that is not `acceptor` answers
//    "another process" in place of the proof: A is zero then, and the first byte of H("a") is 1.
//    Each bit of the capabilities is something that a process can do and an older version cannot.
//    Both sides use the capabilities that both have named; an unknown bit is not an error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/handle.h"
#include "base/ids.h"

namespace pccl {

enum class Purpose : std::uint8_t { channel = 1, lane = 2 };

inline constexpr std::size_t kOpeningBytes = 16;
inline constexpr std::array<std::uint8_t, 8> kMagic = {0x89, 'p', 'c', 'c', 'l', '\r', '\n', 0x1a};

struct Opening {
  std::uint32_t version = 0;
  Purpose purpose = Purpose::channel;
  bool operator==(const Opening&) const = default;
};

using OpeningBytes = std::array<std::byte, kOpeningBytes>;
[[nodiscard]] OpeningBytes encode_opening(const Opening& opening);
/// Reads the opening in kOpeningBytes bytes, of any version; `malformed` if they are no opening.
[[nodiscard]] Result<Opening> decode_opening(std::span<const std::byte> bytes);
/// Can bytes that start like this still become an opening?
[[nodiscard]] bool may_be_opening(std::span<const std::byte> start);

using Nonce = std::array<std::uint8_t, 24>;
using Proof = std::array<std::uint8_t, 32>;

/// What this process can do: the capabilities of its hello and of its offer. No bit has a meaning
/// in version 1 yet.
inline constexpr std::uint32_t kCapabilities = 0;

struct LaneHello {
  PeerId dialer;
  PeerId acceptor;
  std::uint64_t link = 0;
  bool joins = false;
  std::uint32_t capabilities = kCapabilities;
  Nonce nonce{};
  bool operator==(const LaneHello&) const = default;
};
inline constexpr std::size_t kLaneHelloBytes = 56;
[[nodiscard]] std::array<std::byte, kLaneHelloBytes> encode_lane_hello(const LaneHello& hello);
[[nodiscard]] Result<LaneHello> decode_lane_hello(std::span<const std::byte> bytes);

struct LaneOffer {
  Nonce nonce{};
  std::uint32_t capabilities = kCapabilities;
  Proof proof{};
  bool operator==(const LaneOffer&) const = default;
};
inline constexpr std::size_t kLaneOfferBytes = 64;
[[nodiscard]] std::array<std::byte, kLaneOfferBytes> encode_lane_offer(const LaneOffer& offer);
[[nodiscard]] Result<LaneOffer> decode_lane_offer(std::span<const std::byte> bytes);
/// The answer of a process that is not the one that was dialled.
[[nodiscard]] LaneOffer not_the_one();

inline constexpr std::size_t kLaneProofBytes = 32;
enum class LaneVerdict : std::uint8_t {
  accepted = 1,
  wrong_proof = 2,
  no_such_link = 3  // or the link has kLanesMax lanes
};
inline constexpr std::size_t kLaneAnswerBytes = 8;
[[nodiscard]] std::array<std::byte, kLaneAnswerBytes> encode_lane_answer(LaneVerdict verdict);
[[nodiscard]] Result<LaneVerdict> decode_lane_answer(std::span<const std::byte> bytes);

enum class Side : char { acceptor = 'a', dialer = 'd' };
/// H of the comment at the top of this file. Uses nonce and capabilities of the offer.
[[nodiscard]] Proof lane_proof(const LinkKey& key, Side side, const LaneHello& hello,
                               const LaneOffer& offer);
/// Are the two equal? Takes a time that does not depend on where they differ.
[[nodiscard]] bool same_proof(const Proof& a, const Proof& b);

}  // namespace pccl
