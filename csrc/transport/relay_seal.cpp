#include "transport/relay_seal.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "transport/framing.h"

namespace pccl {
namespace {

constexpr std::uint64_t kLateBytes = 4 * kRelayWindowBytes;  // that pass a late segment

constexpr const char* kChanged = "changed";
constexpr const char* kRepeated = "repeated";
constexpr const char* kOutOfOrder = "left out, repeated or reordered";
constexpr const char* kLeftOut = "left out";

/// What is authenticated besides a sealed segment, and is in the clear. A message has its head.
std::array<std::byte, 36> beside(const SegmentHeader& header) {
  std::array<std::byte, 36> bytes{};
  BytesOut{std::span(bytes)}
      .number(header.route.from.value)
      .number(header.route.to.value)
      .number(header.route.session)
      .number(header.route.number)
      .number(header.bytes);
  return bytes;
}

bool has_order(const SegmentHeader& header) { return header.bytes <= kSmallSegmentBytesMax; }

}  // namespace

std::string Arrivals::check(std::uint64_t number) const {
  if (number < next_) return late_.contains(number) ? "" : kRepeated;
  return number - next_ > kRelayMissingMax - late_.size() ? kLeftOut : "";
}

void Arrivals::take(std::uint64_t number, std::size_t bytes, std::uint64_t now_ms) {
  bytes_ += bytes;
  if (number < next_) {
    late_.erase(number);
    return;
  }
  for (; next_ < number; ++next_) late_[next_] = {now_ms, bytes_};
  ++next_;
}

bool Arrivals::lost_one(std::uint64_t now_ms) const {
  if (late_.empty()) return false;
  const Late& oldest = late_.begin()->second;
  return now_ms - oldest.since_ms >= kRelayMissingMs && bytes_ - oldest.bytes_before >= kLateBytes;
}

RelaySeal::RelaySeal(const KeyPair& identity, PeerId self, std::uint64_t session,
                     const Secret& fresh, const Handle& other, PeerId via)
    : identity_(identity), fresh_(KeyPair::from(fresh)), via_(via) {
  own_ = {self, identity.public_key(), fresh_->public_key(), session, has_aes()};
  other_.peer = other.peer;
  other_.key = other.key;
}

RelayOpening RelaySeal::opening() const {
  RelayOpening opening{own_.aes, own_.fresh, {}};
  if (keys_) {
    const auto proof = keys_->own_proof.bytes();
    std::copy(proof.begin(), proof.end(), opening.proof.begin());
  }
  return opening;
}

Error RelaySeal::hear(std::uint64_t session, const RelayOpening& said) {
  if (has_keys() && session == other_.session && said.fresh == other_.fresh &&
      said.aes == other_.aes) {
    return {};
  }
  PCCL_ASSERT(fresh_.has_value(), "the link is up");
  if (++heard_ > kRelayOpeningsMax) {
    return {ErrorCode::refused, "it opens the link again and again"};
  }
  other_.session = session;
  other_.fresh = said.fresh;
  other_.aes = said.aes;
  ways_.reset();
  keys_ = route_keys(identity_, *fresh_, own_, other_, via_);
  if (!keys_) return {ErrorCode::refused, "its keys are none, or those of this process"};
  ways_.emplace(*keys_);
  for (Secret* used :
       {&keys_->ordered_out, &keys_->ordered_in, &keys_->loose_out, &keys_->loose_in}) {
    *used = Secret();  // who finds them later could open what was sealed with them
  }
  return {};
}

bool RelaySeal::proven_by(const RelayOpening& said) const {
  return keys_ && keys_->their_proof.same_as(Secret(said.proof));
}

void RelaySeal::settle() { fresh_.reset(); }

std::vector<std::byte> RelaySeal::seal(RelayKind kind, std::span<const std::byte> plain) {
  PCCL_ASSERT(ways_.has_value(), "no keys yet");
  Sealer& sealer = ways_->ordered_out;
  std::vector<std::byte> bytes =
      encode_relay({kind, own_.peer, other_.peer, other_.session, sealer.next(), {}});
  bytes.resize(kRelayHeadBytes + plain.size() + kSealTagBytes);
  const SealPart part{plain.data(), bytes.data() + kRelayHeadBytes, plain.size()};
  const SealTag tag =
      sealer.seal(std::span<const std::byte>(bytes).first(kRelayHeadBytes), {&part, 1});
  std::copy(tag.begin(), tag.end(), bytes.end() - kSealTagBytes);
  return bytes;
}

std::optional<std::vector<std::byte>> RelaySeal::open_late(const RelayMessage& message) {
  if (!ways_ || message.rest.size() < kSealTagBytes) return std::nullopt;
  const auto sealed = message.rest.first(message.rest.size() - kSealTagBytes);
  SealTag tag;
  std::copy(message.rest.end() - kSealTagBytes, message.rest.end(), tag.begin());
  const auto head =
      encode_relay({message.kind, message.from, message.to, message.session, message.number, {}});
  std::vector<std::byte> plain(sealed.size());
  const SealPart part{sealed.data(), plain.data(), sealed.size()};
  if (!ways_->ordered_in.open(message.number, head, {&part, 1}, tag)) return std::nullopt;
  return plain;
}

Result<std::vector<std::byte>> RelaySeal::open(const RelayMessage& message) {
  if (ways_ && message.number != ways_->next_in) return {ErrorCode::refused, kOutOfOrder};
  auto plain = open_late(message);
  if (!plain) return {ErrorCode::refused, kChanged};
  ++ways_->next_in;
  return std::move(*plain);
}

SegmentHeader RelaySeal::seal(const SegmentHeader& header, const std::byte* payload,
                              std::byte* into) {
  PCCL_ASSERT(ways_.has_value(), "no keys yet");
  Sealer& sealer = has_order(header) ? ways_->ordered_out : ways_->loose_out;
  SegmentHeader sealed;
  sealed.bytes = header.bytes;
  sealed.route.from = own_.peer;
  sealed.route.to = other_.peer;
  sealed.route.session = other_.session;
  sealed.route.number = sealer.next();
  const SegmentFields fields = encode_segment_fields(header);
  const std::array<SealPart, 2> parts = {
      SealPart{fields.data(), sealed.route.fields.data(), fields.size()},
      SealPart{payload, into, header.bytes}};
  sealed.route.tag = sealer.seal(beside(sealed), parts);
  return sealed;
}

Result<SegmentHeader> RelaySeal::open(const SegmentHeader& header, std::byte* payload,
                                      std::uint64_t now_ms) {
  const bool ordered = has_order(header);
  const std::uint64_t number = header.route.number;
  if (!ways_) return {ErrorCode::refused, kChanged};
  if (ordered && number != ways_->next_in) return {ErrorCode::refused, kOutOfOrder};
  if (!ordered) {
    if (std::string done = ways_->arrivals.check(number); !done.empty()) {
      return {ErrorCode::refused, std::move(done)};
    }
  }
  SegmentFields fields = header.route.fields;
  const std::array<SealPart, 2> parts = {SealPart{fields.data(), fields.data(), fields.size()},
                                         SealPart{payload, payload, header.bytes}};
  Opener& opener = ordered ? ways_->ordered_in : ways_->loose_in;
  if (!opener.open(number, beside(header), parts, header.route.tag)) {
    return {ErrorCode::refused, kChanged};
  }
  if (ordered) {
    ++ways_->next_in;
  } else {
    ways_->arrivals.take(number, header.bytes, now_ms);
    if (ways_->arrivals.lost_one(now_ms)) return {ErrorCode::refused, kLeftOut};
  }
  auto plain = decode_segment_fields(fields);
  if (plain) plain.value().bytes = header.bytes;
  return plain;
}

}  // namespace pccl
