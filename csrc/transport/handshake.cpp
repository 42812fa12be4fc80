#include "transport/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

#include "base/assert.h"
#include "base/protocol.h"
#include "transport/bytes.h"

namespace pccl {
namespace {

template <std::size_t N>
bool all_zero(const std::array<std::uint8_t, N>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t b) { return b == 0; });
}

}  // namespace

OpeningBytes encode_opening(const Opening& opening) {
  OpeningBytes out{};
  BytesOut(out)
      .array(kMagic)
      .number(opening.version)
      .number(static_cast<std::uint8_t>(opening.purpose));
  return out;
}

bool may_be_opening(std::span<const std::byte> start) {
  for (std::size_t i = 0; i < std::min(start.size(), kMagic.size()); ++i) {
    if (static_cast<std::uint8_t>(start[i]) != kMagic[i]) return false;
  }
  return true;
}

Result<Opening> decode_opening(std::span<const std::byte> bytes) {
  if (bytes.size() != kOpeningBytes || !may_be_opening(bytes)) {
    return {ErrorCode::malformed, "not an opening of pccl"};
  }
  BytesIn from(bytes.subspan(kMagic.size()));
  Opening opening;
  opening.version = from.number<std::uint32_t>();
  const auto purpose = from.number<std::uint8_t>();
  const auto zero = from.array<3>();
  // Another version may have other purposes, so the purpose is checked in our version only.
  if (opening.version == kProtocolVersion && (purpose < 1 || purpose > 2 || !all_zero(zero))) {
    return {ErrorCode::malformed, "an opening with fields that name nothing"};
  }
  opening.purpose = static_cast<Purpose>(purpose);
  return opening;
}

std::array<std::byte, kLaneHelloBytes> encode_lane_hello(const LaneHello& hello) {
  std::array<std::byte, kLaneHelloBytes> out{};
  BytesOut(out)
      .number(hello.dialer.value)
      .number(hello.acceptor.value)
      .number(hello.link)
      .number(static_cast<std::uint8_t>(hello.joins ? 1 : 0))
      .array(std::array<std::uint8_t, 3>{})
      .number(hello.capabilities)
      .array(hello.nonce);
  return out;
}

Result<LaneHello> decode_lane_hello(std::span<const std::byte> bytes) {
  BytesIn from(bytes);
  LaneHello hello;
  hello.dialer.value = from.number<std::uint64_t>();
  hello.acceptor.value = from.number<std::uint64_t>();
  hello.link = from.number<std::uint64_t>();
  const auto joins = from.number<std::uint8_t>();
  hello.joins = joins == 1;
  const auto zero = from.array<3>();
  hello.capabilities = from.number<std::uint32_t>();
  hello.nonce = from.array<24>();
  if (!all_zero(zero) || joins > 1) {
    return {ErrorCode::malformed, "a lane hello with fields that name nothing"};
  }
  return hello;
}

std::array<std::byte, kLaneOfferBytes> encode_lane_offer(const LaneOffer& offer) {
  std::array<std::byte, kLaneOfferBytes> out{};
  BytesOut(out)
      .array(offer.nonce)
      .number(offer.capabilities)
      .array(std::array<std::uint8_t, 4>{})
      .array(offer.proof);
  return out;
}

Result<LaneOffer> decode_lane_offer(std::span<const std::byte> bytes) {
  BytesIn from(bytes);
  LaneOffer offer;
  offer.nonce = from.array<24>();
  offer.capabilities = from.number<std::uint32_t>();
  const auto zero = from.array<4>();
  offer.proof = from.array<32>();
  if (!all_zero(zero)) {
    return {ErrorCode::malformed, "a lane offer with fields that name nothing"};
  }
  return offer;
}

LaneOffer not_the_one() {
  LaneOffer offer;
  offer.capabilities = 0;
  offer.proof[0] = 1;
  return offer;
}

std::array<std::byte, kLaneAnswerBytes> encode_lane_answer(LaneVerdict verdict) {
  std::array<std::byte, kLaneAnswerBytes> out{};
  out[0] = static_cast<std::byte>(verdict);
  return out;
}

Result<LaneVerdict> decode_lane_answer(std::span<const std::byte> bytes) {
  BytesIn from(bytes);
  const auto verdict = from.number<std::uint8_t>();
  if (verdict < 1 || verdict > 3 || !all_zero(from.array<7>())) {
    return {ErrorCode::malformed, "a lane answer with fields that name nothing"};
  }
  return static_cast<LaneVerdict>(verdict);
}

Proof lane_proof(const LinkKey& key, Side side, const LaneHello& hello, const LaneOffer& offer) {
  std::array<std::byte, 1 + 24 + 24 + 8 + 8 + 8 + 1 + 4 + 4> text{};
  BytesOut(text)
      .number(static_cast<std::uint8_t>(side))
      .array(hello.nonce)
      .array(offer.nonce)
      .number(hello.dialer.value)
      .number(hello.acceptor.value)
      .number(hello.link)
      .number(static_cast<std::uint8_t>(hello.joins ? 1 : 0))
      .number(hello.capabilities)
      .number(offer.capabilities);
  Proof proof{};
  unsigned length = 0;
  const auto* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(), &length);
  PCCL_ASSERT(made != nullptr, "OpenSSL made no HMAC-SHA256");
  PCCL_ASSERT(length == proof.size(), length);
  return proof;
}

bool same_proof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace pccl
