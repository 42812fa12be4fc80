#include "sim_links.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "liar.h"

namespace pccl::sim {
namespace {

constexpr std::uint64_t kDialBackMs = 500;
constexpr std::uint64_t kRefusedMs = 200;
constexpr std::uint64_t kRefusedLongMs = 2000;
constexpr std::uint64_t kUserTimeoutMs = 30000;
constexpr std::uint64_t kSynMs = 3000;

}  // namespace

Weather Cables::weather() {
  Weather w;
  w.delay_us = time.between(20, 400);
  if (time.hit(30)) w.piece_bytes = time.between(64, 4096);
  if (time.hit(30)) w.window_bytes = time.between(512, 8192);
  if (slow && time.hit(30)) {
    w.delay_us = time.between(2000, 40000);
    w.piece_bytes = time.between(2048, 16384);
  }
  w.bulk_delay_us = slow && time.hit(50) ? time.between(2000, 40000) : w.delay_us;
  return w;
}

SimLinks::SimLinks(Cables& cables, Process& process, PeerId self, const PublicKey& key,
                   DirectEvents& events)
    : cables_(cables), process_(process), self_(self), key_(key), events_(events) {
  cables_.links[self_] = this;
}

SimLinks::~SimLinks() { ended(false); }

void SimLinks::ended(bool silent) {
  if (cables_.links.erase(self_) == 0) return;
  const auto shut = [silent](const std::shared_ptr<Wire>& wire, int side) {
    if (wire == nullptr) return;
    if (silent) {
      wire->mute(side);
      wire->mute(1 - side);
    }
    wire->shut(side, true);
  };
  for (auto& [peer, link] : links_) shut(link.wire, link.side);
  for (auto& [peer, parked] : parked_) shut(parked.wire, parked.side);
  for (auto& parked : closing_) shut(parked.wire, parked.side);
  if (silent) {  // the others find out by themselves, as the kernel's time-outs do
    for (auto& [peer, link] : links_) {
      const auto other = cables_.links.find(peer);
      if (link.wire == nullptr || other == cables_.links.end()) continue;
      SimLinks* there = other->second;
      there->process_.after(kUserTimeoutMs * 1000, [there, wire = link.wire, self = self_] {
        Link* theirs = there->find(self);
        if (theirs != nullptr && theirs->wire == wire) there->fail(*theirs, "timed out", false);
      });
    }
  }
}

SimLinks::Link* SimLinks::find(PeerId peer) {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : &found->second;
}

SimLinks::Link* SimLinks::of(const Wire& wire) {
  for (auto& [peer, link] : links_) {
    if (link.wire.get() == &wire) return &link;
  }
  return nullptr;
}

// ---------------------------------------------------------------------------------------- opening

void SimLinks::open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) {
  if (peer.peer == self_) throw Violation("a link to itself");
  const std::uint64_t now = process_.now_ms();
  const auto deadline = [this, id = peer.peer, deadline_ms](Link& link) {
    link.deadline_at_ms = process_.now_ms() + deadline_ms;
    link.deadline = process_.timer(deadline_ms, 0, [this, id, serial = link.serial] {
      Link* late = find(id);
      if (late != nullptr && late->serial == serial) fail(*late, "not connected in time", false);
    });
  };
  if (Link* link = find(peer.peer)) {
    if (link->state == State::up) {
      return tell({Told::What::up, peer.peer, link->serial, "", Down::lost, 0, 0, {}});
    }
    if (link->state != State::opening) return;
    link->handle = peer;
    if (now + deadline_ms > link->deadline_at_ms) deadline(*link);
    return;
  }
  Link& link = links_[peer.peer];
  link.handle = peer;
  link.serial = ++serials_;
  if (shut_) return fail(link, "this process has closed its links", false);
  deadline(link);
  link.refused_long_ms = refusal_tells ? kRefusedMs : kRefusedLongMs;
  if (auto node = parked_.extract(peer.peer); !node.empty()) {
    return adopt(link, node.mapped().wire, node.mapped().side);
  }
  if (self_ < peer.peer) return dial(link);
  dial_later(link, std::min(kDialBackMs, deadline_ms / 4));
}

void SimLinks::dial_later(Link& link, std::uint64_t delay_ms) {
  link.dialling = false;
  link.retry = process_.timer(delay_ms, 0, [this, peer = link.handle.peer, serial = link.serial] {
    Link* again = find(peer);
    if (again != nullptr && again->serial == serial && again->state == State::opening) dial(*again);
  });
}

void SimLinks::dial(Link& link) {
  link.dialling = true;
  const PeerId peer = link.handle.peer;
  const std::uint64_t serial = link.serial;
  Time& time = cables_.time;
  const auto failed = [&](std::uint64_t after_us, bool refused) {
    process_.after(after_us, [this, alive = std::weak_ptr(lives_), peer, serial, refused] {
      if (!alive.expired()) dial_failed(peer, serial, refused);
    });
  };
  if (cables_.is_cut(self_, peer)) return failed(kSynMs * 1000, false);
  const auto there = cables_.links.find(peer);
  if (there == cables_.links.end()) return failed(time.between(50, 500), true);
  SimLinks* other = there->second;
  if (other->shut_) return failed(time.between(50, 500), true);
  const auto wire = std::make_shared<Wire>(time, 1 + cables_.bulk_lanes, cables_.weather());
  // A stopped process accepts when it wakes; the dial is given up before, or not.
  const auto answered = std::make_shared<bool>(false);
  other->process_.after(time.between(50, 800),
                        [this, other, peer, serial, wire, answered, here = std::weak_ptr(lives_),
                         alive = std::weak_ptr(other->lives_)] {
                          if (alive.expired() || here.expired() || std::exchange(*answered, true))
                            return;
                          Time& t = cables_.time;
                          if (!other->takes(self_)) {
                            process_.after(t.between(50, 500), [this, here, peer, serial] {
                              if (!here.expired()) dial_failed(peer, serial, false);
                            });
                            return;
                          }
                          other->arrived(self_, wire);
                          process_.after(t.between(50, 500), [this, here, peer, serial, wire] {
                            if (here.expired()) return;
                            Link* mine = find(peer);
                            if (mine == nullptr || mine->serial != serial ||
                                mine->state != State::opening || !mine->dialling) {
                              return wire->shut(0, true);
                            }
                            adopt(*mine, wire, 0);
                          });
                        });
  process_.after(kHandshakeMs * 1000, [this, here = std::weak_ptr(lives_), peer, serial, answered] {
    if (here.expired() || std::exchange(*answered, true)) return;
    dial_failed(peer, serial, false);
  });
}

/// Dials that cross: that of the smaller one counts.
bool SimLinks::takes(PeerId dialler) {
  if (shut_) return false;
  const Link* link = find(dialler);
  if (link == nullptr) return true;
  if (link->state == State::opening) return !(link->dialling && self_ < dialler);
  const bool up = link->state == State::proven || link->state == State::up;
  return !up || process_.now_ms() - link->proven_at_ms > kHandshakeMs ||
         link->wire->is_over(link->side);
}

void SimLinks::dial_failed(PeerId peer, std::uint64_t serial, bool refused) {
  Link* link = find(peer);
  if (link == nullptr || link->serial != serial || link->state != State::opening) return;
  const std::uint64_t now = process_.now_ms();
  if (!refused) link->refused_since_ms = 0;
  if (refused && link->refused_since_ms == 0) link->refused_since_ms = now;
  if (refused && now - link->refused_since_ms >= link->refused_long_ms) {
    return fail(*link, "connection refused", true);
  }
  link->backoff_ms = std::min(link->backoff_ms * 2, kBackoffMsMax);
  dial_later(*link, link->backoff_ms / 2 + cables_.time.chance.below(link->backoff_ms / 2 + 1));
}

void SimLinks::arrived(PeerId peer, const std::shared_ptr<Wire>& wire) {
  Link* link = find(peer);
  if (link != nullptr && link->state == State::opening) return adopt(*link, wire, 1);
  wire->attach(1, this);
  if (const auto old = parked_.find(peer); old != parked_.end()) old->second.wire->shut(1, true);
  parked_[peer] = {wire, 1};
  if (link != nullptr && link->state != State::failed) {
    fail(*link, "the peer has lost the link and dialled anew", false);
  }
}

void SimLinks::adopt(Link& link, const std::shared_ptr<Wire>& wire, int side) {
  link.state = State::proven;
  link.proven_at_ms = process_.now_ms();
  link.dialling = false;
  link.retry.reset();
  link.deadline.reset();
  link.wire = wire;
  link.side = side;
  wire->attach(side, this);
  tell({Told::What::up, link.handle.peer, link.serial, "", Down::lost, 0, 0, {}});
}

// ---------------------------------------------------------------------------------------- ending

void SimLinks::fail(Link& link, const std::string& reason, bool refused) {
  if (link.state == State::failed) return;
  const bool was_up = link.state == State::up || link.state == State::proven;
  link.state = State::failed;
  link.deadline.reset();
  link.retry.reset();
  if (link.wire) link.wire->shut(link.side, true);
  tell({Told::What::down,
        link.handle.peer,
        link.serial,
        reason,
        refused  ? Down::refused
        : was_up ? Down::lost
                 : Down::unopened,
        0,
        0,
        {}});
}

void SimLinks::close(PeerId peer) {
  if (auto parked = parked_.extract(peer); !parked.empty()) parked.mapped().wire->shut(1, true);
  auto node = links_.extract(peer);
  if (node.empty()) return;
  Link& link = node.mapped();
  if (!link.wire || link.state == State::failed) return;
  link.wire->close(link.side);
  closing_.push_back({link.wire, link.side, link.wire->moved(link.side), process_.now_ms()});
  if (!closing_timer_) closing_timer_ = process_.timer(100, 100, [this] { look_at_closing(); });
}

/// What moves is not cut, as in transport/stream_lane.cpp.
void SimLinks::look_at_closing() {
  const std::uint64_t now = process_.now_ms();
  for (Closing& closing : closing_) {
    const std::uint64_t moved = closing.wire->moved(closing.side);
    if (moved != std::exchange(closing.moved, moved)) closing.moved_at_ms = now;
  }
  for (const Closing& closing : std::vector<Closing>(closing_)) {
    if (closing.wire->is_over(closing.side) || now - closing.moved_at_ms > quiet_ms_) {
      finish_closing(closing.wire, closing.side);
    }
  }
}

void SimLinks::finish_closing(const std::shared_ptr<Wire>& wire, int side) {
  wire->shut(side, true);
  std::erase_if(closing_, [&](const Closing& c) { return c.wire == wire; });
  if (closing_.empty() && shutdown_done_) {
    shutdown_deadline_.reset();
    process_.defer(std::exchange(shutdown_done_, nullptr));
  }
}

void SimLinks::drop(PeerId peer) {
  if (auto parked = parked_.extract(peer); !parked.empty()) parked.mapped().wire->shut(1, true);
  auto node = links_.extract(peer);
  if (!node.empty() && node.mapped().wire) node.mapped().wire->shut(node.mapped().side, true);
}

void SimLinks::give_up(PeerId peer, const std::string& reason) {
  // Who does not lie does not send more than its window, or what nobody can use.
  const bool lied =
      cables_.liar != nullptr && (cables_.liar->who == peer || cables_.liar->who == self_);
  if (!lied && !reason.starts_with("it has moved no data") &&
      !reason.starts_with("there is no memory")) {
    throw Violation(process_.name() + " gives up its link to " + to_string(peer).substr(0, 4) +
                    ": " + reason);
  }
  Link* link = find(peer);
  if (link != nullptr && link->state == State::up) fail(*link, reason, false);
}

void SimLinks::shutdown(const GoodbyeTime& time, std::function<void()> done) {
  shut_ = true;
  shutdown_done_ = std::move(done);
  for (auto& [peer, parked] : parked_) parked.wire->shut(parked.side, true);
  parked_.clear();
  while (!links_.empty()) close(links_.begin()->first);
  if (closing_.empty()) return process_.defer(std::exchange(shutdown_done_, nullptr));
  quiet_ms_ = time.quiet_ms;
  shutdown_deadline_ = process_.timer(time.all_ms, 0, [this] {
    for (const Closing& closing : std::vector<Closing>(closing_)) {
      finish_closing(closing.wire, closing.side);
    }
  });
}

// ------------------------------------------------------------------------------------------ data

bool SimLinks::is_up(PeerId peer) const {
  const auto found = links_.find(peer);
  return found != links_.end() && found->second.state == State::up;
}

void SimLinks::send(PeerId peer, FramePointer frame) {
  Link* link = find(peer);
  if (link == nullptr || link->state != State::up) return;
  if (cables_.liar == nullptr || cables_.liar->who != self_) {
    return link->wire->send(link->side, std::move(frame));
  }
  for (FramePointer& each : cables_.liar->to_peer(std::move(frame))) {
    link->wire->send(link->side, std::move(each));
  }
}

void SimLinks::send_control(PeerId peer, std::vector<std::byte> payload) {
  auto frame = std::make_shared<Frame>();
  frame->size = payload.size();
  frame->bytes = std::move(payload);
  send(peer, std::move(frame));
}

void SimLinks::send_relay(PeerId peer, std::vector<std::byte> payload) {
  auto frame = std::make_shared<Frame>();
  frame->type = FrameType::relay;
  frame->size = payload.size();
  frame->bytes = std::move(payload);
  send(peer, std::move(frame));
}

void SimLinks::send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                            MemoryToken token, std::uint64_t cookie) {
  auto frame = std::make_shared<Frame>();
  frame->type = header.route.relayed() ? FrameType::routed : FrameType::segment;
  frame->header = header;
  frame->from = payload;
  frame->size = header.bytes;
  frame->token = token;
  frame->cookie = cookie;
  frame->tells = true;
  if (header.bytes > kSegmentBytesMax) throw Violation("a segment that is too long");
  send(peer, std::move(frame));
}

/// A link without a network, or one of which all that has been taken has arrived.
std::optional<LinkView> SimLinks::view(PeerId peer) const {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second.state != State::up) return std::nullopt;
  LinkView view;
  view.peer = peer;
  view.local = cables_.one_machine || (peer.value ^ self_.value) % 3 == 0;
  view.bytes_arrived = found->second.bytes_sent;
  const bool same_site = peer.value % cables_.sites == self_.value % cables_.sites;
  const bool near = view.local || (cables_.sites > 1 && same_site);
  view.round_trip_us = near ? 0 : cables_.trip_us * (1 + (peer.value ^ self_.value) % 2);
  return view;
}

void SimLinks::cancel(MemoryToken token) {
  if (token == 0) return;
  for (auto& [peer, link] : links_) {
    if (link.wire) link.wire->cancel(link.side, token);
  }
  for (const Closing& closing : closing_) closing.wire->cancel(closing.side, token);
  std::erase_if(told_, [token](const Told& told) {
    return told.what == Told::What::sent && told.token == token;
  });
}

std::size_t SimLinks::queued_bytes(PeerId peer) const {
  const auto found = links_.find(peer);
  if (found == links_.end() || !found->second.wire) return 0;
  return found->second.wire->queued(found->second.side);
}

Placement SimLinks::header(Wire& wire, const Frame& frame) {
  Link* link = of(wire);
  return link == nullptr ? Placement{} : events_.segment_header(link->handle.peer, frame.header);
}

void SimLinks::bytes(Wire&, const Frame& frame, std::size_t count) {
  bytes_received_ += count;
  if (has_segment(frame.type) && frame.header.kind != SegmentKind::measure) segment_bytes_ += count;
}

void SimLinks::whole(Wire& wire, const Frame& frame, const Placement& at) {
  Link* link = of(wire);
  if (link == nullptr) return;
  const PeerId peer = link->handle.peer;
  if (frame.type == FrameType::relay) return events_.relay_arrived(peer, frame.bytes);
  if (frame.type == FrameType::control) return events_.control_arrived(peer, frame.bytes);
  events_.segment_arrived(peer, frame.header, at);
}

void SimLinks::taken(Wire& wire, const Frame& frame) {
  bytes_sent_ += frame.size;
  Link* link = of(wire);
  if (link != nullptr) link->bytes_sent += frame.size;
  if (!frame.tells || link == nullptr || link->state != State::up) return;
  tell({Told::What::sent, link->handle.peer, link->serial, "", Down::lost, frame.token,
        frame.cookie, frame.header.route.to});
}

void SimLinks::over(Wire& wire, const std::string& reason, bool broken) {
  for (const Closing& closing : std::vector<Closing>(closing_)) {
    if (closing.wire.get() == &wire) return finish_closing(closing.wire, closing.side);
  }
  for (auto it = parked_.begin(); it != parked_.end(); ++it) {
    if (it->second.wire.get() != &wire) continue;
    it->second.wire->shut(it->second.side, broken);
    parked_.erase(it);
    return;
  }
  if (Link* link = of(wire)) fail(*link, reason, false);
}

// --------------------------------------------------------------------------------------- telling

void SimLinks::tell(Told told) {
  told_.push_back(std::move(told));
  if (std::exchange(tells_, true)) return;
  process_.defer([this, alive = std::weak_ptr(lives_)] {
    if (!alive.expired()) tell_owner();
  });
}

void SimLinks::tell_owner() {
  for (std::size_t left = told_.size(); left > 0 && !told_.empty(); --left) {
    const Told told = std::move(told_.front());
    told_.pop_front();
    Link* link = find(told.peer);
    if (link == nullptr || link->serial != told.serial) continue;
    if (told.what == Told::What::up) {
      if (link->state == State::failed) continue;
      const bool first = link->state == State::proven;
      link->state = State::up;
      events_.link_up(told.peer);
      link = find(told.peer);
      if (first && link != nullptr && link->serial == told.serial && link->state == State::up) {
        link->wire->start(link->side);
      }
    } else if (told.what == Told::What::down) {
      links_.erase(told.peer);
      events_.link_down(told.peer, told.reason, told.how);
    } else if (told.far == PeerId{}) {
      events_.segment_sent(told.peer, told.cookie);
    } else {
      events_.routed_sent(told.far, told.token, told.cookie);
    }
  }
  tells_ = !told_.empty();
  if (tells_) {
    process_.defer([this, alive = std::weak_ptr(lives_)] {
      if (!alive.expired()) tell_owner();
    });
  }
}

// ---------------------------------------------------------------------------------------- faults

void SimLinks::lose(PeerId peer) {
  Link* link = find(peer);
  if (link == nullptr || link->state != State::up) return;
  link->wire->mute(link->side);
  link->wire->mute(1 - link->side);
  fail(*link, "connection reset", false);
  mute(peer);
}

void SimLinks::mute(PeerId peer) {
  Link* link = find(peer);
  if (link == nullptr || !link->wire) return;
  link->wire->mute(link->side);
  const auto wire = link->wire;
  const auto find_out = [wire](SimLinks* at, PeerId of_whom, std::uint64_t ms) {
    at->process_.after(ms * 1000, [at, wire, of_whom, alive = std::weak_ptr(at->lives_)] {
      if (alive.expired()) return;
      Link* late = at->find(of_whom);
      if (late != nullptr && late->wire == wire) at->fail(*late, "timed out", false);
    });
  };
  find_out(this, peer, kUserTimeoutMs);
  const auto there = cables_.links.find(peer);
  if (there != cables_.links.end()) find_out(there->second, self_, kUserTimeoutMs + 1000);
}

std::vector<PeerId> SimLinks::peers_up() const {
  std::vector<PeerId> peers;
  for (const auto& [peer, link] : links_) {
    if (link.state == State::up) peers.push_back(peer);
  }
  return peers;
}

}  // namespace pccl::sim
