// Opens links over a third peer and sends over them. relay_ending.cpp ends them.
#include "transport/relay.h"

#include <algorithm>
#include <vector>

#include "base/assert.h"
#include "base/limits.h"
#include "base/log.h"
#include "transport/loop.h"
#include "transport/sys.h"

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
  return goes_on && far->mine == session ? far : nullptr;
}

void RelayLinks::open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) {
  end_rest(peer.peer);
  end_leaving(peer.peer);
  const Far* far = find(peer.peer);
  if (far == nullptr) return direct_->open(peer, deadline_ms, refusal_tells);
  if (far->state == State::failed) return;  // down will be told
  if (far->state == State::opening) {
    far_.erase(peer.peer);
    return direct_->open(peer, deadline_ms, refusal_tells);
  }
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
  if (is_up(peer.peer)) return open(peer, deadline_ms, false);
  end_rest(peer.peer);
  end_leaving(peer.peer);
  if (const Far* far = find(peer.peer)) {
    if (far->state == State::failed) return;  // down will be told
    // The session stays: the link may be up by it at the other end, and another session would end
    // it there.
    if (far->via != via) far_.erase(peer.peer);
  }
  direct_->drop(peer.peer);  // a dial that leads nowhere
  Far& far = far_[peer.peer];
  far.handle = peer;
  far.via = via;
  far.serial = ++serials_;
  while (far.mine == 0) far.mine = sessions_.next();
  const PeerId id = peer.peer;
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

void RelayLinks::say(const Far& far, RelayKind kind, std::uint64_t session, std::uint64_t number,
                     std::span<const std::byte> rest) {
  direct_->send_relay(far.via,
                      encode_relay({kind, self(), far.handle.peer, session, number, rest}));
}

void RelayLinks::say_open(PeerId peer) {
  const Far& far = far_.at(peer);
  say(far, RelayKind::open, far.mine, far.theirs);
}

void RelayLinks::opened(PeerId via, const RelayMessage& message) {
  const auto rest = closing_.find(message.from);
  if (rest != closing_.end() && message.session != rest->second.theirs) closing_.erase(rest);
  Far* far = find(message.from);
  if (far == nullptr || far->state == State::failed) return;  // the peer repeats it
  if (far->state == State::up) {
    if (message.session == far->theirs && via == far->via) {
      if (message.number != far->mine) say_open(message.from);
      return;
    }
    return fail(*far, "the peer has lost the link and opened it anew");
  }
  if (via != far->via) return;
  far->theirs = message.session;
  say_open(message.from);
  if (message.number == far->mine) now_up(*far);
}

void RelayLinks::now_up(Far& far) {
  far.state = State::up;
  far.deadline.reset();
  far.again.reset();
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
  say(*far, RelayKind::control, far->theirs, 0, payload);
}

void RelayLinks::send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                              MemoryToken token, std::uint64_t cookie) {
  Far* far = find_up(peer);
  if (far == nullptr) {
    if (!is_leaving(peer)) direct_->send_segment(peer, header, payload, token, cookie);
    return;
  }
  far->queue.push_back({header, payload, token, cookie});
  far->queued_bytes += relay_cost(header.bytes);
  pump(*far);
}

void RelayLinks::pump(Far& far) {
  while (!far.queue.empty()) {
    Queued next = far.queue.front();
    const std::size_t out = far.handed_bytes + far.on_the_way;
    const std::size_t cost = relay_cost(next.header.bytes);
    if (out > 0 && out + cost > kRelayWindowBytes) return;
    far.queue.pop_front();
    far.queued_bytes -= cost;
    far.handed_bytes += cost;
    ++far.sent;
    next.header.route = {self(), far.handle.peer, far.theirs};
    far.handed.push_back(next);
    direct_->send_segment(far.via, next.header, next.payload, next.token, next.cookie);
  }
}

void RelayLinks::routed_sent(PeerId to, MemoryToken token, std::uint64_t cookie) {
  if (Passage::owns(token)) return passage_->sent(token);
  for (auto* fars : {&far_, &closing_}) {
    const auto found = fars->find(to);
    if (found == fars->end()) continue;
    Far& far = found->second;
    const auto sent = std::find_if(far.handed.begin(), far.handed.end(), [&](const Queued& q) {
      return q.token == token && q.cookie == cookie;
    });
    if (sent == far.handed.end()) continue;  // of an earlier link
    far.handed_bytes -= relay_cost(sent->header.bytes);
    far.on_the_way += relay_cost(sent->header.bytes);
    far.handed.erase(sent);
    if (fars == &far_) events_.segment_sent(to, cookie);
    return;
  }
}

void RelayLinks::take_credit(Far& far, std::uint64_t bytes) {
  // A segment that was cancelled when it was half sent is not counted any more, and gets credit all
  // the same.
  far.on_the_way -= std::min<std::uint64_t>(bytes, far.on_the_way);
  pump(far);
}

void RelayLinks::cancel(MemoryToken token) {
  direct_->cancel(token);
  const auto forget = [token](std::deque<Queued>& queue, std::size_t& bytes) {
    std::erase_if(queue, [&](const Queued& q) {
      if (q.token != token) return false;
      bytes -= relay_cost(q.header.bytes);
      return true;
    });
  };
  for (auto* fars : {&far_, &closing_}) {
    for (auto& [peer, far] : *fars) {
      forget(far.queue, far.queued_bytes);
      forget(far.handed, far.handed_bytes);
    }
  }
  std::vector<PeerId> closing;
  for (const auto& [peer, far] : closing_) closing.push_back(peer);
  for (const PeerId peer : closing) pay(peer);
}

std::size_t RelayLinks::queued_bytes(PeerId peer) const {
  std::size_t bytes = direct_->queued_bytes(peer);
  for (const auto* fars : {&far_, &closing_}) {
    const auto found = fars->find(peer);
    if (found != fars->end()) bytes += found->second.queued_bytes + found->second.handed_bytes;
  }
  return bytes;
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
  if (!left && find(peer) == nullptr) events_.link_down(peer, reason, how);
}

void RelayLinks::relay_arrived(PeerId peer, std::span<const std::byte> payload) {
  const auto decoded = decode_relay(payload);
  if (!decoded) return direct_->give_up(peer, decoded.error().text);
  const RelayMessage& message = decoded.value();
  if (message.to != self()) return passage_->message(peer, message, payload);
  if (message.kind == RelayKind::open) return opened(peer, message);
  const auto rest = closing_.find(message.from);
  if (rest != closing_.end() && rest->second.via == peer) {
    if (message.kind == RelayKind::credit) {
      take_credit(rest->second, message.number);
      return pay(message.from);
    }
    const bool ends = message.session == 0 || message.session == rest->second.mine;
    if (message.kind == RelayKind::down && ends) closing_.erase(rest);
  }
  Far* far = find(message.from);
  if (far == nullptr || far->via != peer) return;
  switch (message.kind) {
    case RelayKind::open:
      return;
    case RelayKind::control:
      if (message.session != far->mine || far->state == State::failed) return;
      if (far->state == State::opening) now_up(*far);  // the sender knows our session
      events_.control_arrived(message.from, message.rest);
      return;
    case RelayKind::down:
      return went_down(*far, message);
    case RelayKind::credit:
      if (far->state == State::up) take_credit(*far, message.number);
      return;
  }
}

Placement RelayLinks::segment_header(PeerId peer, const SegmentHeader& header) {
  if (!header.route.relayed()) {
    return is_leaving(peer) ? Placement{} : events_.segment_header(peer, header);
  }
  if (header.route.to != self()) return passage_->take_in(peer, header);
  const PeerId from = header.route.from;
  Far* far = find_session(from, header.route.session);
  if (far == nullptr || far->via != peer) return {};
  if (far->state == State::opening) now_up(*far);
  SegmentHeader plain = header;
  plain.route = {};
  const Placement at = events_.segment_header(from, plain);
  if (at.to == nullptr) count_received(header.route);  // no segment_arrived follows
  return at;
}

void RelayLinks::segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) {
  if (!header.route.relayed()) {
    if (!is_leaving(peer)) events_.segment_arrived(peer, header, at);
    return;
  }
  if (Passage::owns(at.token)) return passage_->arrived(header, at.token);
  // The direct link brings the rest of a segment also when the relayed link has ended meanwhile.
  // Its owner has heard of that end, or has ended it: no callback follows.
  if (find_session(header.route.from, header.route.session) == nullptr) return;
  SegmentHeader plain = header;
  plain.route = {};
  events_.segment_arrived(header.route.from, plain, at);
  count_received(header.route);
}

/// The owner, which was just called, may have ended the link.
void RelayLinks::count_received(const Route& route) {
  Far* far = find_session(route.from, route.session);
  if (far == nullptr) return;
  ++far->received;
  if (far->ends_after && far->received >= *far->ends_after) fail(*far, far->why);
}

Result<std::unique_ptr<Links>> make_relay_links(Clock& clock, LinkEvents& events,
                                                std::uint64_t seed, const MakeDirectLinks& make) {
  auto links = std::make_unique<RelayLinks>(clock, events, seed);
  if (Error error = links->listen(make); error.failed()) return error;
  return std::unique_ptr<Links>(std::move(links));
}

Result<std::unique_ptr<Links>> make_tcp_links(Loop& loop, LinkEvents& events,
                                              const KeyPair& identity, const LinkOptions& options) {
  return make_relay_links(loop, events, random_u64(), [&](DirectEvents& direct) {
    return make_direct_links(loop, direct, identity, options);
  });
}

}  // namespace pccl
