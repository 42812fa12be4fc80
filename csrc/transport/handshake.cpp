#include "transport/handshake.h"

#include <algorithm>
#include <vector>

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

std::string other_version(const Opening& there) {
  return "it speaks protocol version " + std::to_string(there.version) + ", this process " +
         std::to_string(kProtocolVersion);
}

std::uint32_t lane_capabilities(Plaintext allowed, bool loopback, bool local) {
  const bool plain = allowed == Plaintext::all || (allowed == Plaintext::loopback && loopback);
  return (plain ? capability::kPlain : 0) | (local ? capability::kSharedMemory : 0);
}

std::array<std::byte, kLaneHelloBytes> encode_lane_hello(const LaneHello& hello) {
  std::array<std::byte, kLaneHelloBytes> out{};
  BytesOut(out)
      .array(hello.dialer)
      .number(hello.acceptor.value)
      .number(hello.link)
      .number(static_cast<std::uint8_t>(hello.joins ? 1 : 0))
      .number(static_cast<std::uint8_t>(hello.fills ? 1 : 0))
      .array(std::array<std::uint8_t, 2>{})
      .number(hello.capabilities);
  return out;
}

Result<LaneHello> decode_lane_hello(std::span<const std::byte> bytes) {
  BytesIn from(bytes);
  LaneHello hello;
  hello.dialer = from.array<32>();
  hello.acceptor.value = from.number<std::uint64_t>();
  hello.link = from.number<std::uint64_t>();
  const auto joins = from.number<std::uint8_t>();
  hello.joins = joins == 1;
  const auto fills = from.number<std::uint8_t>();
  hello.fills = fills == 1;
  const auto zero = from.array<2>();
  hello.capabilities = from.number<std::uint32_t>();
  if (!all_zero(zero) || joins > 1 || fills > 1) {
    return {ErrorCode::malformed, "a lane hello with fields that name nothing"};
  }
  return hello;
}

std::array<std::byte, kLaneOfferBytes> encode_lane_offer(const LaneOffer& offer) {
  std::array<std::byte, kLaneOfferBytes> out{};
  BytesOut(out)
      .number(static_cast<std::uint8_t>(offer.another ? 2 : 1))
      .array(std::array<std::uint8_t, 3>{})
      .number(offer.capabilities);
  return out;
}

Result<LaneOffer> decode_lane_offer(std::span<const std::byte> bytes) {
  BytesIn from(bytes);
  const auto process = from.number<std::uint8_t>();
  const auto zero = from.array<3>();
  if (process < 1 || process > 2 || !all_zero(zero)) {
    return {ErrorCode::malformed, "a lane offer with fields that name nothing"};
  }
  return LaneOffer{process == 2, from.number<std::uint32_t>()};
}

std::array<std::byte, kLaneAnswerBytes> encode_lane_answer(LaneVerdict verdict) {
  std::array<std::byte, kLaneAnswerBytes> out{};
  out[0] = static_cast<std::byte>(verdict);
  return out;
}

Result<LaneVerdict> decode_lane_answer(std::span<const std::byte> bytes) {
  BytesIn from(bytes);
  const auto verdict = from.number<std::uint8_t>();
  if (verdict < 1 || verdict > 2 || !all_zero(from.array<7>())) {
    return {ErrorCode::malformed, "a lane answer with fields that name nothing"};
  }
  return static_cast<LaneVerdict>(verdict);
}

Secret lane_secret(const Secret& shared, const LaneHello& hello, const PublicKey& acceptor,
                   const LaneOffer& offer, std::string_view place) {
  std::vector<std::byte> said(kLaneHelloBytes + kLaneOfferBytes + acceptor.size());
  const auto hello_bytes = encode_lane_hello(hello);
  const auto offer_bytes = encode_lane_offer(offer);
  std::copy(offer_bytes.begin(), offer_bytes.end(),
            std::copy(hello_bytes.begin(), hello_bytes.end(), said.begin()));
  BytesOut(std::span(said).last(acceptor.size())).array(acceptor);
  const auto here = std::as_bytes(std::span(place));
  said.insert(said.end(), here.begin(), here.end());
  return derive(shared, kLaneIdentity, said);
}

}  // namespace pccl
