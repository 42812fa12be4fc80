// Opens links over a third peer, and messages over them. relay_segments.cpp sends and receives
// segments, relay_ending.cpp ends links.
#include "transport/relay.h"

#include <algorithm>
#include <vector>

#include "base/assert.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/loop.h"

namespace pccl {
namespace {

constexpr std::uint64_t kOpenAgainMs = 100;  // for an opening without an answer

}  // namespace

Error RelayLinks::listen(const MakeDirectLinks& make) {
  auto direct = make(*this);
  if (!direct) return direct.error();
  direct_ = std::move(direct).value();
  passage_.emplace(*direct_);
  return {};
}

// ------------------------------------------------------------------------------------ opening

RelayLinks::Far* RelayLinks::find(PeerId peer) {
  const auto found = far_.find(peer);
  return found == far_.end() ? nullptr : &found->second;
}

RelayLinks::Far* RelayLinks::find_up(PeerId peer) {
  Far* far = find(peer);
  return far != nullptr && far->state == State::up ? far : nullptr;
}

RelayLinks::Far* RelayLinks::find_session(PeerId peer, std::uint64_t session) {
  Far* far = find(peer);
  const bool goes_on = far != nullptr && far->state != State::failed;
  return goes_on && far->seal->mine() == session ? far : nullptr;
}

void RelayLinks::open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) {
  end_rest(peer.peer);
  end_leaving(peer.peer);
  Far* far = find(peer.peer);
  if (far == nullptr) return direct_->open(peer, deadline_ms, refusal_tells);
  if (far->state == State::failed) return;  // down will be told
  if (far->state == State::opening) {
    far_.erase(peer.peer);
    return direct_->open(peer, deadline_ms, refusal_tells);
  }
  far->asked = far->via;
  clock_.defer([this, id = peer.peer, serial = far->serial, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    const Far* still = find_up(id);
    if (still != nullptr && still->serial == serial) events_.link_up(id);
  });
}

void RelayLinks::open_via(const Handle& peer, PeerId via, std::uint64_t deadline_ms) {
  PCCL_ASSERT(peer.peer != self(), "a link to itself");
  PCCL_ASSERT(via != self(), "over itself");
  PCCL_ASSERT(via != peer.peer, "over the peer itself");
  if (is_up(peer.peer)) {
    open(peer, deadline_ms, false);
    if (Far* far = find_up(peer.peer)) far->asked = via;
    return;
  }
  end_rest(peer.peer);
  end_leaving(peer.peer);
  if (const Far* far = find(peer.peer)) {
    if (far->state == State::failed) return;  // down will be told
    // The session stays: the link may be up by it at the other end, and another session would end
    // it there.
    if (far->via != via) far_.erase(peer.peer);
  }
  direct_->drop(peer.peer);  // a dial that leads nowhere
  const PeerId id = peer.peer;
  Far& far = far_[id];
  far.handle = peer;
  far.via = far.asked = via;
  far.serial = ++serials_;
  if (trust_.ids_follow_keys && peer_of(peer.key) != id) {
    return fail(far, "the id of peer " + name_of(peer) + " is not that of its key");
  }
  if (!far.seal) {
    std::uint64_t session = 0;
    while (session == 0) {
      const Secret drawn = trust_.secret();
      for (const std::uint8_t byte : drawn.bytes().first<8>()) session = session << 8 | byte;
    }
    far.seal =
        std::make_unique<RelaySeal>(trust_.identity, self(), session, trust_.secret(), peer, via);
  }
  far.deadline = clock_.timer(deadline_ms, 0, [this, id, deadline_ms] {
    Far& late = far_.at(id);
    const bool linked = direct_->is_up(late.via);
    fail(late, "no link over a third peer within " + std::to_string(deadline_ms) + " ms: " +
                   (linked ? "no answer from the other end" : "no link to the third peer"));
  });
  far.again = clock_.timer(kOpenAgainMs, kOpenAgainMs, [this, id] { say_open(id); });
  say_open(id);
}

std::optional<PeerId> RelayLinks::via(PeerId peer) const {
  const auto found = far_.find(peer);
  if (found == far_.end()) return std::nullopt;
  return found->second.via;
}

void RelayLinks::say(Far& far, RelayKind kind, std::span<const std::byte> plain) {
  direct_->send_relay(far.via, far.seal->seal(kind, plain));
}

void RelayLinks::say_open(PeerId peer) {
  const Far& far = far_.at(peer);
  const auto opening = encode_relay_opening(far.seal->opening());
  direct_->send_relay(far.via, encode_relay({RelayKind::open, self(), peer, far.seal->mine(),
                                             far.seal->theirs(), opening}));
}

void RelayLinks::opened(PeerId via, const RelayMessage& message) {
  const auto rest = closing_.find(message.from);
  if (rest != closing_.end() && message.session != rest->second.seal->theirs()) {
    closing_.erase(rest);
  }
  Far* far = find(message.from);
  if (far == nullptr || far->state == State::failed) return;  // the peer repeats it
  if (far->state == State::up) {
    if (message.session == far->seal->theirs() && via == far->via) {
      if (message.number != far->seal->mine()) say_open(message.from);
      return;
    }
    // Over another one it comes late, by a way that the two have left; or it comes early, and is
    // repeated until the owner has heard of that way.
    if (via != far->via && via != far->asked) return;
    return fail(*far, "the peer has lost the link and opened it anew");
  }
  if (via != far->via) return;
  const RelayOpening said = decode_relay_opening(message.rest);
  if (const Error refused = far->seal->hear(message.session, said); refused.failed()) {
    return fail(*far, "peer " + name_of(far->handle) + " cannot be linked to over peer " +
                          to_string(via) + ": " + refused.text);
  }
  say_open(message.from);
  if (message.number != far->seal->mine()) return;
  if (!far->seal->proven_by(said)) return distrust(*far, "changed");
  now_up(*far);
}

void RelayLinks::now_up(Far& far) {
  far.state = State::up;
  far.deadline.reset();
  far.again.reset();
  far.seal->settle();
  events_.link_up(far.handle.peer);
}

// --------------------------------------------------------------------------------- what is sent

bool RelayLinks::is_up(PeerId peer) const {
  const auto found = far_.find(peer);
  if (found != far_.end() && found->second.state == State::up) return true;
  return !is_leaving(peer) && direct_->is_up(peer);
}

void RelayLinks::send_control(PeerId peer, std::vector<std::byte> payload) {
  Far* far = find_up(peer);
  if (far == nullptr) {
    if (!is_leaving(peer)) direct_->send_control(peer, std::move(payload));
    return;
  }
  say(*far, RelayKind::control, payload);
}

// ------------------------------------------------------------------------------ what arrives

void RelayLinks::link_up(PeerId peer) {
  if (Far* far = find(peer)) {
    if (far->state == State::failed) return;  // its loss is told, then the owner opens it again
    if (far->state == State::up) return;
    far_.erase(peer);  // there is a direct link now
  }
  std::vector<PeerId> over;
  for (const auto& [id, far] : far_) {
    if (far.via == peer && far.state == State::opening) over.push_back(id);
  }
  for (const PeerId id : over) say_open(id);
  events_.link_up(peer);
}

void RelayLinks::link_down(PeerId peer, const std::string& reason, Down how) {
  const bool left = leaving_.erase(peer) > 0;
  std::erase_if(closing_, [peer](const auto& entry) { return entry.second.via == peer; });
  lost_over(peer, reason);
  passage_->unlink(peer);
  forget_copies(peer);
  if (!left && find(peer) == nullptr) events_.link_down(peer, reason, how);
}

/// Messages and segments of a peer may cost this process an answer: its link ends when very many of
/// these wait for the peer to read.
bool RelayLinks::reads_no_answers(PeerId peer) {
  const std::size_t queued = direct_->queued_message_bytes(peer);
  // What others have sent over this process is no answer.
  if (queued <= kUnreadMessageBytesMax ||
      queued <= kUnreadMessageBytesMax + passage_->waits_for(peer)) {
    return false;
  }
  const std::string how = "it sends and does not read: more than " +
                          std::to_string(kUnreadMessageBytesMax >> 20) +
                          " MiB of messages wait for it here";
  log_warning("the link to peer " + to_string(peer) + " is given up: " + how);
  direct_->give_up(peer, how);
  return true;
}

void RelayLinks::control_arrived(PeerId peer, std::span<const std::byte> payload) {
  if (!is_leaving(peer) && !reads_no_answers(peer)) events_.control_arrived(peer, payload);
}

void RelayLinks::relay_arrived(PeerId peer, std::span<const std::byte> payload) {
  if (reads_no_answers(peer)) return;
  const auto decoded = decode_relay(payload);
  if (!decoded) return direct_->give_up(peer, decoded.error().text);
  const RelayMessage& message = decoded.value();
  if (message.to != self()) return passage_->message(peer, message, payload);
  if (message.kind == RelayKind::open) return opened(peer, message);
  rest_heard(peer, message);
  if (Far* far = find(message.from); far != nullptr && far->via == peer) heard(*far, message);
}

/// A message for the rest of a link that was closed here.
void RelayLinks::rest_heard(PeerId via, const RelayMessage& message) {
  const auto rest = closing_.find(message.from);
  if (rest == closing_.end() || rest->second.via != via) return;
  if (message.kind == RelayKind::credit) {
    take_credit(rest->second, message.number);
    return pay(message.from);
  }
  const bool ends =
      message.kind == RelayKind::cut ||
      (message.kind == RelayKind::down && message.session == rest->second.seal->mine() &&
       rest->second.seal->open_late(message));
  if (ends) closing_.erase(rest);
}

void RelayLinks::heard(Far& far, const RelayMessage& message) {
  if (message.kind == RelayKind::credit) {
    if (far.state == State::up) take_credit(far, message.number);
    return;
  }
  if (message.kind == RelayKind::cut) {
    if (far.state != State::up || far.ends_after) return;  // an opening goes on until its deadline
    return fail(far, reason_of(message.rest));
  }
  // Of an earlier link, or from an end that has not said its key.
  if (find_session(message.from, message.session) != &far || !far.seal->has_keys()) return;
  const auto plain = far.seal->open(message);
  if (!plain) return distrust(far, plain.error().text);
  if (message.kind == RelayKind::down) return went_down(far, plain.value());
  if (far.state == State::opening) now_up(far);  // the sender has our keys
  if (find_session(message.from, message.session) == nullptr) return;
  events_.control_arrived(message.from, plain.value());
}

Result<std::unique_ptr<Links>> make_relay_links(Clock& clock, LinkEvents& events,
                                                const RelayTrust& trust,
                                                const MakeDirectLinks& make) {
  auto links = std::make_unique<RelayLinks>(clock, events, trust);
  if (Error error = links->listen(make); error.failed()) return error;
  return std::unique_ptr<Links>(std::move(links));
}

Result<std::unique_ptr<Links>> make_tcp_links(Loop& loop, LinkEvents& events,
                                              const KeyPair& identity, const LinkOptions& options) {
  return make_relay_links(loop, events, {identity, random_secret}, [&](DirectEvents& direct) {
    return make_direct_links(loop, direct, identity, options);
  });
}

}  // namespace pccl
