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
// 2. On a lane only, with C and B the capabilities of dialer and acceptor:
//      dialer    LaneHello  56 bytes: 32 x public key of the dialer, u64 acceptor, u64 link
//      (random,
//                           chosen with its first lane), u8 joins (0: the first lane, which makes
//                           the link; 1: one more lane of it), u8 fills, 2 x zero, u32 C
//      dialer    if it fills: 9,216 bytes of any value
//      acceptor  LaneOffer   8 bytes: u8 (1: this is the acceptor; 2: another process), 3 x zero,
//                           u32 B
//      acceptor  if the dialer fills, and this is the acceptor: 9,216 bytes of any value
//      both      a TLS 1.3 handshake (tls_stream.h) with the key lane_secret(...), which only the
//                holders of the two private keys know and which depends on hello and offer
//      acceptor  LaneAnswer  8 bytes, under TLS: u8 LaneVerdict, 7 x zero
//    A lane joins the link of these two peers that has this number, whichever of the two has
//    dialled that link. For the acceptor the lane is part of the link when the LaneAnswer is sent;
//    the acceptor sends over the lane when the dialer has sent a `joined` frame on it (framing.h).
//    The dialer sends its opening and LaneHello at once. A process that is not `acceptor` offers
//    "another process", and closes. The filler shows that packets of full size pass in both
//    directions, before a link is up that could carry small messages only (lane_dial.h).
//    Each bit of the capabilities is something that a process can do and an older version cannot.
//    Both sides use the capabilities that both have named; an unknown bit is not an error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/handle.h"
#include "base/ids.h"
#include "transport/transport.h"
#include "trust/secrets.h"

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
/// Why this process does not speak to one with that opening, of another version.
[[nodiscard]] std::string other_version(const Opening& there);
/// Can bytes that start like this still become an opening?
[[nodiscard]] bool may_be_opening(std::span<const std::byte> start);

/// The bits of capabilities that version 1 knows.
namespace capability {
/// This lane may go on without encryption after the LaneAnswer.
inline constexpr std::uint32_t kPlain = 1;
/// This lane, over a unix socket, may go on through shared memory (shared_stream.h).
inline constexpr std::uint32_t kSharedMemory = 2;
}  // namespace capability
/// Of a lane with both ends at loopback addresses, or not; `local`: over a unix socket, whose ends
/// count as loopback addresses.
[[nodiscard]] std::uint32_t lane_capabilities(Plaintext allowed, bool loopback, bool local);
/// What follows from the capabilities that both ends have named: does the lane go on through shared
/// memory, and does it go on without TLS? Only processes of this user read that memory, and they
/// could read the tensors, too; so there is nothing to encrypt.
[[nodiscard]] constexpr bool goes_shared(std::uint32_t agreed) {
  return (agreed & capability::kSharedMemory) != 0;
}
[[nodiscard]] constexpr bool goes_plain(std::uint32_t agreed) {
  return goes_shared(agreed) || (agreed & capability::kPlain) != 0;
}

struct LaneHello {
  PublicKey dialer{};
  PeerId acceptor;
  std::uint64_t link = 0;
  bool joins = false;
  std::uint32_t capabilities = 0;
  bool fills = false;
  bool operator==(const LaneHello&) const = default;
};
inline constexpr std::size_t kLaneHelloBytes = 56;
[[nodiscard]] std::array<std::byte, kLaneHelloBytes> encode_lane_hello(const LaneHello& hello);
[[nodiscard]] Result<LaneHello> decode_lane_hello(std::span<const std::byte> bytes);

struct LaneOffer {
  bool another = false;  // the process is not the one that the dialer looks for
  std::uint32_t capabilities = 0;
  bool operator==(const LaneOffer&) const = default;
};
/// More than one packet of the largest size that is usual (a jumbo frame).
inline constexpr std::size_t kFillerBytes = 9216;
inline constexpr std::size_t kLaneOfferBytes = 8;
[[nodiscard]] std::array<std::byte, kLaneOfferBytes> encode_lane_offer(const LaneOffer& offer);
[[nodiscard]] Result<LaneOffer> decode_lane_offer(std::span<const std::byte> bytes);

enum class LaneVerdict : std::uint8_t {
  accepted = 1,
  no_such_link = 2  // or the link has kLanesMax lanes
};
inline constexpr std::size_t kLaneAnswerBytes = 8;
[[nodiscard]] std::array<std::byte, kLaneAnswerBytes> encode_lane_answer(LaneVerdict verdict);
[[nodiscard]] Result<LaneVerdict> decode_lane_answer(std::span<const std::byte> bytes);

/// The names under which TLS knows this key; the key itself says between which processes.
inline constexpr std::string_view kLaneIdentity = "pccl1 lane";
/// The key of a lane's TLS handshake: from the secret that the two key pairs share
/// (KeyPair::shared_with) and from all that the two ends have said before in the clear. `place`: of
/// a lane over a unix socket, the local_place of both ends; else empty.
[[nodiscard]] Secret lane_secret(const Secret& shared, const LaneHello& hello,
                                 const PublicKey& acceptor, const LaneOffer& offer,
                                 std::string_view place = {});

}  // namespace pccl
