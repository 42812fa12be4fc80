// Relayed links. Either the input is the peer in between, which passes on, changes, repeats, keeps,
// reorders and makes up what two sound ends say to each other: what an end hears is what the other
// one has said, once each, messages in order. Or the input is some ends, and the peer in between is
// sound: it passes nothing on in the name of another, and keeps bounded memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../../cpp/transport/played_links.h"
#include "input.h"
#include "targets.h"
#include "transport/loop.h"

namespace pccl::fuzz {
namespace {

using test::kBetween;
using test::Passed;
using test::PlayedLinks;

constexpr std::size_t kSmall = 100;  // payload of a segment that has an order, and of one that
constexpr std::size_t kLarge = kSmallSegmentBytesMax + 8;  // has none
constexpr int kActionsMax = 400;

Secret secret_of(std::uint8_t n) {
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  bytes.fill(n);
  return Secret(bytes);
}

/// One end: remembers what it has said, and checks what it hears.
struct End final : LinkEvents {
  KeyPair identity;
  Clock& clock;
  End* other = nullptr;
  PlayedLinks* direct = nullptr;
  std::unique_ptr<Links> links;
  std::uint64_t said = 0;  // messages
  std::uint64_t heard = 0;
  std::map<std::uint64_t, std::vector<std::byte>> sent;  // segments by number
  std::set<std::uint64_t> arrived;
  std::vector<std::byte> memory = std::vector<std::byte>(kLarge);
  std::uint8_t secrets = 0;

  End(Clock& at, std::uint8_t n) : identity(KeyPair::from(secret_of(n))), clock(at), secrets(n) {
    const RelayTrust trust{identity, [this] { return secret_of(secrets += 16); }};
    links = std::move(make_relay_links(clock, *this, trust, [&](DirectEvents& to) {
              auto played = std::make_unique<PlayedLinks>(to, identity.public_key());
              direct = played.get();
              return Result<std::unique_ptr<DirectLinks>>(std::move(played));
            })).value();
  }
  [[nodiscard]] PeerId id() const { return links->self(); }
  void open() { links->open_via({other->id(), {}, other->identity.public_key()}, kBetween, 30000); }
  void say() {
    if (!links->is_up(other->id())) return;
    const std::uint64_t number = ++said;
    std::vector<std::byte> text(sizeof number);
    std::memcpy(text.data(), &number, sizeof number);
    links->send_control(other->id(), std::move(text));
  }
  void send(std::size_t size) {
    if (!links->is_up(other->id()) || sent.size() > 60) return;
    const std::uint64_t number = sent.size() + 1;
    std::vector<std::byte>& bytes = sent[number];
    bytes.assign(size, static_cast<std::byte>(number));
    SegmentHeader header;
    header.group.value = number;
    header.offset = number * 3;
    header.bytes = static_cast<std::uint32_t>(size);
    links->send_segment(other->id(), header, bytes.data(), number, number);
  }

  void link_up(PeerId peer) override { require(peer == other->id(), "a link to the other end"); }
  void link_down(PeerId, const std::string& reason, Down) override {
    require(!reason.empty(), "a reason");
  }
  void control_arrived(PeerId, std::span<const std::byte> payload) override {
    std::uint64_t number = 0;
    require(payload.size() == sizeof number, "what was said has not changed its size");
    std::memcpy(&number, payload.data(), sizeof number);
    require(number > heard && number <= other->said, "each message once, in order");
    heard = number;
  }
  Placement segment_header(PeerId, const SegmentHeader& header) override {
    const auto of = other->sent.find(header.group.value);
    require(of != other->sent.end() && header.bytes == of->second.size() &&
                header.offset == 3 * header.group.value,
            "a header that the other end has sent");
    return {memory.data(), 1, header.group.value};
  }
  void segment_arrived(PeerId, const SegmentHeader& header, const Placement&) override {
    const std::vector<std::byte>& bytes = other->sent.at(header.group.value);
    require(std::equal(bytes.begin(), bytes.end(), memory.begin()), "the bytes that were sent");
    require(arrived.insert(header.group.value).second, "each segment once");
  }
  void segment_sent(PeerId, std::uint64_t) override {}
};

RelayMessage made_up(Input& in, PeerId from, PeerId to, std::uint64_t session,
                     std::span<const std::byte>& rest) {
  RelayMessage message{static_cast<RelayKind>(1 + in.below(5)), from, to, 0, 0, {}};
  message.session = in.flag() ? session : in.number<std::uint64_t>();
  message.number = in.flag() ? in.below(8) : in.number<std::uint64_t>();
  rest = in.take(message.kind == RelayKind::open ? kRelayOpeningBytes : in.below(60));
  if (message.kind == RelayKind::credit) message.session = 0, rest = {};
  if (message.kind == RelayKind::cut) message.session = message.number = 0;
  message.rest = rest;
  return message;
}

void change(Input& in, Passed& frame) {
  switch (in.below(5)) {
    case 0:
      if (!frame.bytes.empty()) frame.bytes[in.below(frame.bytes.size())] ^= std::byte{1};
      return;
    case 1:
      frame.header.group.value ^= in.byte();
      return;
    case 2:
      frame.header.route.number += in.byte();
      return;
    case 3:
      if (frame.is_segment()) frame.header.route.session ^= in.byte();
      return;
    default:
      frame.bytes.resize(std::min<std::size_t>(frame.bytes.size(), in.below(200)));
      if (frame.is_segment()) frame.header.bytes = static_cast<std::uint32_t>(frame.bytes.size());
  }
}

void lying_relay(Input& in) {
  Loop loop;
  End a(loop, 1), b(loop, 2);
  a.other = &b;
  b.other = &a;
  a.open();
  b.open();
  std::vector<Passed> kept;
  std::uint64_t session = 0;
  const auto take = [&](End& from, Passed& frame) {
    if (from.direct->sent.empty()) return false;
    frame = std::move(from.direct->sent.front());
    from.direct->sent.pop_front();
    if (frame.is_segment()) {
      from.direct->was_sent(frame);
    } else {
      session = frame.message().session;
    }
    return true;
  };
  for (int actions = 0; !in.ended() && actions < kActionsMax; ++actions) {
    const std::uint8_t what = in.byte();
    End& end = (what & 1) != 0 ? a : b;
    Passed frame;
    switch ((what >> 1) % 16) {
      case 0:
        end.say();
        break;
      case 1:
        end.send(kSmall);
        break;
      case 2:
        end.send(kLarge);
        break;
      case 3:
      case 4:
        for (std::size_t n = 1 + in.below(8); n > 0 && take(end, frame); --n) {
          end.other->direct->hear(frame);
          loop.run_once(false);
        }
        break;
      case 5:
        if (take(end, frame)) {
          change(in, frame);
          end.other->direct->hear(frame);
        }
        break;
      case 6:
        if (take(end, frame)) kept.push_back(frame);
        break;
      case 7:
        if (!kept.empty()) end.direct->hear(kept[in.below(kept.size())]);
        break;
      case 8:
        if (take(end, frame)) {
          end.other->direct->hear(frame);
          end.other->direct->hear(frame);
        }
        break;
      case 9: {
        std::span<const std::byte> rest;
        const RelayMessage message = made_up(in, end.other->id(), end.id(), session, rest);
        end.direct->hear({encode_relay(message), {}});
        break;
      }
      case 10:
        end.links->close(end.other->id());
        break;
      case 11:
        end.links->drop(end.other->id());
        break;
      case 12:
        if (!end.links->is_up(end.other->id())) end.open();
        break;
      case 13:
        end.links->cancel(in.below(end.sent.size() + 1));
        break;
      case 14: {  // a segment of which the header comes now, and the rest after something else
        if (!take(end, frame) || !frame.is_segment()) break;
        const Placement at = end.other->direct->begin(frame);
        end.other->say();
        if (in.flag()) end.other->links->drop(end.id());
        if (at.to != nullptr && !in.flag()) end.other->direct->finish(frame, at);
        break;
      }
      default:
        end.direct->hear(
            {encode_relay(
                 {RelayKind::credit, end.other->id(), end.id(), 0, in.number<std::uint32_t>(), {}}),
             {}});
    }
    loop.run_once(false);
  }
}

/// Ends that lie, and a sound peer in between.
struct Between final : LinkEvents {
  void link_up(PeerId) override {}
  void link_down(PeerId, const std::string&, Down) override {}
  void control_arrived(PeerId, std::span<const std::byte>) override {}
  Placement segment_header(PeerId, const SegmentHeader&) override { return {}; }
  void segment_arrived(PeerId, const SegmentHeader&, const Placement&) override {}
  void segment_sent(PeerId, std::uint64_t) override {}
};

void lying_ends(Input& in) {
  Loop loop;
  Between events;
  const KeyPair identity = KeyPair::from(secret_of(3));
  PlayedLinks* direct = nullptr;
  const RelayTrust trust{identity, [] { return secret_of(9); }};
  const auto links = std::move(make_relay_links(loop, events, trust, [&](DirectEvents& to) {
                       auto played = std::make_unique<PlayedLinks>(to, identity.public_key());
                       direct = played.get();
                       return Result<std::unique_ptr<DirectLinks>>(std::move(played));
                     })).value();
  std::set<PeerId> up = {PeerId{11}, PeerId{12}, PeerId{13}};
  direct->also_up = [&](PeerId peer) { return up.contains(peer); };
  const auto someone = [&] { return PeerId{11 + in.below(4)}; };
  for (int actions = 0; !in.ended() && actions < kActionsMax; ++actions) {
    const PeerId from = someone();
    const PeerId says = in.below(8) == 0 ? someone() : from;
    const PeerId to = in.below(8) == 0 ? links->self() : someone();
    const std::size_t before = direct->sent.size();
    switch (in.below(6)) {
      case 0:
      case 1: {
        std::span<const std::byte> rest;
        direct->hear({encode_relay(made_up(in, says, to, 5, rest)), {}}, from);
        break;
      }
      case 2:
      case 3: {
        Passed frame;
        frame.header.route = {says, to, in.below(4), in.below(4)};
        frame.bytes.resize(in.flag() ? kLarge : in.below(200));
        frame.header.bytes = static_cast<std::uint32_t>(frame.bytes.size());
        const Placement at = direct->begin(frame, from);
        if (!in.flag()) direct->finish(frame, at, from);
        break;
      }
      case 4:
        if (in.flag()) {
          links->close(from);
          up.erase(from);
        } else {
          up.insert(from);
        }
        break;
      default:
        if (!direct->sent.empty()) {
          const Passed frame = std::move(direct->sent.front());
          direct->sent.pop_front();
          if (frame.is_segment()) direct->was_sent(frame);
          continue;
        }
    }
    for (std::size_t i = before; i < direct->sent.size(); ++i) {
      const Passed& frame = direct->sent[i];
      if (frame.is_segment()) {
        require(up.contains(frame.over) && frame.header.route.to == frame.over &&
                    frame.header.route.from == from,
                "to its receiver, and nothing in another's name");
        continue;
      }
      const RelayMessage message = frame.message();
      if (message.kind == RelayKind::credit || message.kind == RelayKind::cut) continue;
      require(message.from == from && message.to == frame.over, "nothing in another's name");
    }
    loop.run_once(false);
  }
}

}  // namespace

void relays(Bytes input) {
  Input in(input);
  if (in.flag()) return lying_ends(in);
  lying_relay(in);
}

}  // namespace pccl::fuzz
