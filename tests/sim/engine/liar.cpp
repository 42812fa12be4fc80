#include "liar.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "../../cpp/wire/random_message.h"
#include "base/limits.h"
#include "member.h"
#include "transport/framing.h"
#include "transport/relay_message.h"
#include "wire/codec.h"

namespace pccl::sim {
namespace {

constexpr std::size_t kSeenMax = 16;
constexpr std::size_t kGroupsMax = 4;
constexpr std::uint64_t kLiesMax = 20000;  // of one walk: one that lies without end only takes time

FramePointer frame_of(FrameType type, std::vector<std::byte> bytes) {
  auto frame = std::make_shared<Frame>();
  frame->type = type;
  frame->size = bytes.size();
  frame->bytes = std::move(bytes);
  return frame;
}

/// Does the framing of a lane take this header?
bool passes(FrameType type, const SegmentHeader& header) {
  FrameHeader frame;
  frame.type = type;
  frame.payload_bytes = header.bytes;
  frame.segment = header;
  HeaderBytes bytes;
  const std::size_t size = encode_frame_header(frame, bytes);
  return decode_frame_header(std::span<const std::byte>(bytes).first(size), kPeerMessageBytesMax)
      .ok();
}

}  // namespace

std::uint64_t Liar::lies_from(std::uint64_t seed) { return mixed(seed, 11); }

Liar::Liar(std::uint64_t seed) : chance_(lies_from(seed)) {
  constexpr std::uint64_t kPercents[] = {0, 0, 1, 5, 20, 60};
  for (auto& percent : lies_percent_) percent = kPercents[chance_.below(std::size(kPercents))];
}

std::string Liar::about() const {
  std::string text = "lies in";
  constexpr const char* kSubjects[] = {"reports", "messages", "segments", "relays"};
  for (std::size_t i = 0; i < 4; ++i) {
    text += " " + std::to_string(lies_percent_[i]) + " % of its " + kSubjects[i];
  }
  return text;
}

bool Liar::lies_about(Subject subject) {
  if (!begun || lies_ > kLiesMax) return false;
  if (chance_.below(100) >= lies_percent_[static_cast<std::size_t>(subject)]) return false;
  ++lies_;
  return true;
}

// ------------------------------------------------------------------------------ what it draws from

std::uint64_t Liar::near(std::uint64_t n) {
  switch (chance_.below(7)) {
    case 0:
      return n + 1;
    case 1:
      return n - 1;
    case 2:
      return n + chance_.below(1000);
    case 3:
      return chance_.next() >> chance_.below(64);
    case 4:
      return 0;
    case 5:
      return n * 2;
    default:
      return n;
  }
}

GroupId Liar::some_group() {
  if (groups_.empty() || chance_.below(8) == 0) return GroupId{near(0)};
  return groups_[chance_.below(groups_.size())];
}
EpochId Liar::some_epoch() {
  return chance_.below(3) != 0 ? known_.epoch : EpochId{near(known_.epoch.value)};
}
OpKey Liar::some_op() {
  if (chance_.below(2) == 0) return known_.next;
  return {near(known_.next.step), near(known_.next.index)};
}
PeerId Liar::someone() {
  if (others.empty() || chance_.below(8) == 0) return PeerId{near(who.value)};
  return others[chance_.below(others.size())];
}

void Liar::learn(const Frame& frame) {
  if (has_segment(frame.type)) {
    if (seen_.size() == kSeenMax) seen_.erase(seen_.begin());
    seen_.push_back(frame.header);
    const GroupId group = frame.header.group;
    if (std::find(groups_.begin(), groups_.end(), group) == groups_.end()) {
      if (groups_.size() == kGroupsMax) groups_.erase(groups_.begin());
      groups_.push_back(group);
    }
    known_.epoch = std::max(known_.epoch, frame.header.epoch);
    known_.next = frame.header.op;
  }
}

// ------------------------------------------------------------------------------------- to a master

std::vector<std::vector<std::byte>> Liar::to_master(std::span<const std::byte> said) {
  std::vector<std::byte> own(said.begin(), said.end());
  auto decoded = decode_peer_to_master(said);
  if (!decoded) return {own};
  known_.peers = others;
  known_.peers.push_back(who);
  bool greets = false;
  const auto learn_from = [&](const Report& report) {
    known_.epoch = std::max(known_.epoch, report.accepted);
    known_.next = report.issued;
  };
  if (const auto* hello = std::get_if<Hello>(&decoded.value())) {
    greets = true;
    learn_from(hello->report);
  }
  if (const auto* ready = std::get_if<Ready>(&decoded.value())) learn_from(ready->report);
  std::vector<std::vector<std::byte>> out;
  const auto put = [&](const PeerToMaster& message) {
    try {
      out.push_back(encode(message));
    } catch (const BrokenInvariant&) {  // the wire does not take it
    }
  };
  if (lies_about(Subject::reports)) {
    if (greets || chance_.below(8) != 0) put(spoiled(decoded.value(), known_, chance_));
  } else {
    out.push_back(own);
  }
  if (out.empty() && greets) out.push_back(own);
  while (!greets && out.size() < 4 && lies_about(Subject::reports)) {
    if (chance_.below(3) != 0) {
      put(invented(known_, chance_));
    } else {
      const std::size_t kind = chance_.below(std::variant_size_v<PeerToMaster>);
      put(test::random_message<PeerToMaster>(chance_, kind));
    }
  }
  return out;
}

// -------------------------------------------------------------------------------------- to a peer

template <typename T>
void Liar::spoil_field(T& field) {
  if constexpr (std::is_same_v<T, GroupId>) {
    field = some_group();
  } else if constexpr (std::is_same_v<T, EpochId>) {
    field = some_epoch();
  } else if constexpr (std::is_same_v<T, OpKey>) {
    field = some_op();
  } else if constexpr (std::is_same_v<T, bool>) {
    field = !field;
  } else if constexpr (std::is_integral_v<T>) {
    field = static_cast<T>(near(static_cast<std::uint64_t>(field)));
  } else if constexpr (std::is_same_v<T, Digest>) {
    field[0] ^= 1;
  } else if constexpr (std::is_same_v<T, Error>) {
    field = {ErrorCode::mismatch, "it says so"};
  }
}

std::vector<std::byte> Liar::spoiled_message(std::span<const std::byte> said) {
  std::vector<std::byte> own(said.begin(), said.end());
  if (chance_.below(100) == 0 && !own.empty()) {  // no message at all
    own[chance_.below(own.size())] ^= std::byte{1};
    return own;
  }
  auto decoded = decode_peer_to_peer(said);
  if (!decoded) return own;
  std::visit(
      [&](auto& message) {
        using M = std::decay_t<decltype(message)>;
        M::fields(message, [&](std::string_view, auto& field, auto...) {
          if (chance_.below(3) == 0) spoil_field(field);
        });
      },
      decoded.value());
  try {
    return encode(decoded.value());
  } catch (const BrokenInvariant&) {
    return own;
  }
}

/// A message that nobody waits for.
FramePointer Liar::message() {
  const std::size_t kind = chance_.below(std::variant_size_v<PeerToPeer>);
  PeerToPeer made = test::random_message<PeerToPeer>(chance_, kind);
  std::visit(
      [&](auto& m) {
        using M = std::decay_t<decltype(m)>;
        M::fields(m, [&](std::string_view, auto& field, auto...) {
          using F = std::decay_t<decltype(field)>;
          constexpr bool kNames =
              std::is_same_v<F, GroupId> || std::is_same_v<F, EpochId> || std::is_same_v<F, OpKey>;
          if constexpr (kNames) spoil_field(field);
        });
      },
      made);
  return frame_of(FrameType::control, encode(made));
}

void Liar::spoil(SegmentHeader& header) {
  SegmentHeader h = header;
  for (std::uint64_t changes = 1 + chance_.below(3); changes > 0; --changes) {
    switch (chance_.below(10)) {
      case 0:
        h.kind = static_cast<SegmentKind>(1 + chance_.below(5));
        break;
      case 1:
        h.group = some_group();
        break;
      case 2:
        h.epoch = some_epoch();
        break;
      case 3:
        h.op = some_op();
        break;
      case 4:
        h.channel = static_cast<std::uint32_t>(near(h.channel));
        break;
      case 5:
        h.offset = near(h.offset);
        break;
      case 6:
        h.descriptor.count = near(h.descriptor.count);
        break;
      case 7:
        h.descriptor.root = static_cast<std::int32_t>(near(0));
        break;
      case 8:
        h.descriptor.kind = static_cast<OpKind>(chance_.below(16));
        break;
      default:
        h.descriptor.dtype = static_cast<DType>(chance_.below(16));
        h.descriptor.reduce = static_cast<ReduceOp>(chance_.below(8));
        h.descriptor.quantisation = static_cast<Quantisation>(h.descriptor.reduce);
    }
  }
  const FrameType type = h.route.relayed() ? FrameType::routed : FrameType::segment;
  if (passes(type, h)) header = h;
}

/// Other bytes than those of the tensor, perhaps more or fewer.
void Liar::spoil_payload(Frame& frame) {
  std::size_t size = frame.size;
  if (chance_.below(3) == 0) {
    size = std::min<std::size_t>(near(size), kSegmentBytesMax);
  }
  frame.bytes.assign(size, static_cast<std::byte>(chance_.below(256)));
  frame.from = nullptr;
  frame.size = size;
  frame.header.bytes = static_cast<std::uint32_t>(size);
}

FramePointer Liar::segment(const SegmentHeader& like) {
  auto frame = std::make_shared<Frame>();
  frame->type = FrameType::segment;
  frame->header = like;
  frame->header.route = {};
  if (chance_.below(3) != 0) spoil(frame->header);
  if (chance_.below(8) == 0) {
    frame->header.route = {chance_.below(2) == 0 ? who : someone(), someone(),
                           near(frame->header.offset)};
    if (passes(FrameType::routed, frame->header)) {
      frame->type = FrameType::routed;
    } else {
      frame->header.route = {};
    }
  }
  frame->size = like.bytes;
  spoil_payload(*frame);
  return frame;
}

FramePointer Liar::relay() {
  RelayMessage made;
  made.kind = static_cast<RelayKind>(1 + chance_.below(5));
  made.from = chance_.below(3) != 0 ? who : someone();
  made.to = someone();
  made.session = near(chance_.below(2) == 0 ? 0 : lies_);
  made.number = near(chance_.below(4));
  std::vector<std::byte> rest;
  if (made.kind == RelayKind::control) rest = message()->bytes;
  if (made.kind == RelayKind::open) {
    rest.assign(kRelayOpeningBytes, static_cast<std::byte>(chance_.below(256)));
    rest[0] = static_cast<std::byte>(chance_.below(2));
    std::fill(rest.begin() + 1, rest.begin() + 8, std::byte{0});
  }
  if (made.kind == RelayKind::down) rest.assign(chance_.below(40), std::byte{'x'});
  if (made.kind == RelayKind::cut) rest.assign(chance_.below(20), std::byte{'x'});
  made.rest = rest;
  return frame_of(FrameType::relay, encode_relay(made));
}

std::vector<FramePointer> Liar::to_peer(FramePointer said) {
  learn(*said);
  std::vector<FramePointer> out;
  if (has_segment(said->type)) {
    if (!said->header.route.relayed() && lies_about(Subject::segments)) {
      const std::uint64_t how = chance_.below(4);
      if (how != 0) spoil(said->header);
      if (how != 1) spoil_payload(*said);
    }
  } else if (said->type == FrameType::control && lies_about(Subject::messages)) {
    said->bytes = spoiled_message(said->bytes);
    said->size = said->bytes.size();
  } else if (said->type == FrameType::relay && lies_about(Subject::relays)) {
    if (said->bytes.size() > 8)
      said->bytes[8 + chance_.below(said->bytes.size() - 8)] ^= std::byte{1};
  }
  out.push_back(std::move(said));
  while (out.size() < 4 && lies_about(Subject::messages)) out.push_back(message());
  while (out.size() < 4 && !seen_.empty() && lies_about(Subject::segments)) {
    out.push_back(segment(seen_[chance_.below(seen_.size())]));
  }
  while (out.size() < 4 && lies_about(Subject::relays)) out.push_back(relay());
  return out;
}

}  // namespace pccl::sim
