// Links over a third peer, for two that cannot reach each other: their ends. What the peer in
// between does is passage.h's.
//
// An end opens a relayed link as soon as it has its own link to the peer in between; a session
// number of each end tells it from earlier ones. What is sent goes over that link: control messages
// and small segments in order on its small lane, large segments on its bulk lanes, with a route in
// their header. Of segments at most kRelayWindowBytes of one end are on their way to the other,
// without the credit that the peer in between gives for what it has passed on. So its memory is
// bounded, and a slow far end slows down this sender alone.
#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/direct_links.h"
#include "transport/loop.h"
#include "transport/passage.h"
#include "transport/relay_message.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr std::uint64_t kOpenAgainMs = 100;  // an opening that nobody has answered

class RelayLinks : public Links, private DirectEvents {
 public:
  RelayLinks(Clock& clock, LinkEvents& events, std::uint64_t seed)
      : clock_(clock), events_(events), sessions_(seed) {}
  Error listen(const MakeDirectLinks& make) {
    auto direct = make(*this);
    if (!direct) return direct.error();
    direct_ = std::move(direct).value();
    passage_.emplace(*direct_);
    return {};
  }

  [[nodiscard]] std::uint16_t port() const override { return direct_->port(); }
  [[nodiscard]] PeerId self() const override { return direct_->self(); }
  [[nodiscard]] const LinkKey& key() const override { return direct_->key(); }

  void open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) override;
  void open_via(const Handle& peer, PeerId via, std::uint64_t deadline_ms) override;
  [[nodiscard]] std::optional<PeerId> via(PeerId peer) const override;
  void close(PeerId peer) override;
  void drop(PeerId peer) override;
  void give_up(PeerId peer, const std::string& reason) override;
  [[nodiscard]] bool is_up(PeerId peer) const override;
  void widen(PeerId peer, std::size_t bulk_lanes) override { direct_->widen(peer, bulk_lanes); }
  void send_control(PeerId peer, std::vector<std::byte> payload) override;
  void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                    MemoryToken token, std::uint64_t cookie) override;
  void cancel(MemoryToken token) override;
  [[nodiscard]] std::uint64_t bytes_sent() const override { return direct_->bytes_sent(); }
  [[nodiscard]] std::uint64_t bytes_received() const override { return direct_->bytes_received(); }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override {
    return direct_->segment_bytes_received() - passage_->bytes();
  }
  [[nodiscard]] std::uint64_t bytes_relayed() const override { return passage_->bytes(); }
  [[nodiscard]] std::size_t queued_bytes(PeerId peer) const override;
  void shutdown(std::uint64_t deadline_ms, std::function<void()> done) override;

 private:
  enum class State : std::uint8_t { opening, up, failed };
  struct Queued {
    SegmentHeader header;
    const std::byte* payload = nullptr;
    MemoryToken token = 0;
    std::uint64_t cookie = 0;
  };
  /// A relayed link at one of its ends.
  struct Far {
    Handle handle;
    PeerId via;
    State state = State::opening;
    std::uint64_t serial = 0;
    std::uint64_t mine = 0;    // session
    std::uint64_t theirs = 0;  // 0: not known yet
    std::unique_ptr<Timer> deadline;
    std::unique_ptr<Timer> again;
    std::deque<Queued> queue;   // what the window does not let through yet
    std::deque<Queued> handed;  // to the link of `via`, not sent yet
    std::size_t queued_bytes = 0;
    std::size_t handed_bytes = 0;
    std::size_t on_the_way = 0;  // bytes sent, without credit yet
    std::uint64_t sent = 0;      // segments
    std::uint64_t received = 0;
    std::optional<std::uint64_t> ends_after;  // the other end goes when so many have come
    std::string why;                          // of that
    bool closing = false;                     // goes when the queue is empty
  };

  // DirectEvents
  void link_up(PeerId peer) override;
  void link_down(PeerId peer, const std::string& reason, Down how) override;
  void control_arrived(PeerId peer, std::span<const std::byte> payload) override {
    events_.control_arrived(peer, payload);
  }
  void segment_sent(PeerId peer, std::uint64_t cookie) override {
    events_.segment_sent(peer, cookie);
  }
  Placement segment_header(PeerId peer, const SegmentHeader& header) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  void relay_arrived(PeerId peer, std::span<const std::byte> payload) override;
  void routed_sent(PeerId far, MemoryToken token, std::uint64_t cookie) override;

  [[nodiscard]] Far* find(PeerId peer);
  [[nodiscard]] Far* find_up(PeerId peer);
  void say(const Far& far, RelayKind kind, std::uint64_t session, std::uint64_t number,
           std::span<const std::byte> rest = {});
  void say_open(PeerId peer);
  void opened(PeerId via, const RelayMessage& message);
  void went_down(Far& far, const RelayMessage& message);
  void take_credit(Far& far, std::uint64_t bytes);
  void now_up(Far& far);
  void pump(Far& far, bool all = false);
  void fail(Far& far, const std::string& reason);
  void remove(PeerId peer);
  void lost_over(PeerId via, const std::string& why);
  void count_received(PeerId peer);

  Clock& clock_;
  LinkEvents& events_;
  Random sessions_;
  std::unique_ptr<DirectLinks> direct_;
  std::optional<Passage> passage_;  // between others
  std::map<PeerId, Far> far_;
  std::uint64_t serials_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// ------------------------------------------------------------------------------------ opening

RelayLinks::Far* RelayLinks::find(PeerId peer) {
  const auto found = far_.find(peer);
  return found == far_.end() ? nullptr : &found->second;
}

RelayLinks::Far* RelayLinks::find_up(PeerId peer) {
  Far* far = find(peer);
  return far != nullptr && far->state == State::up && !far->closing ? far : nullptr;
}

void RelayLinks::open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) {
  Far* far = find(peer.peer);
  if (far == nullptr) return direct_->open(peer, deadline_ms, refusal_tells);
  if (far->state == State::failed && !far->closing) return;  // down will be told
  if (far->state != State::up || far->closing) {
    remove(peer.peer);
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
  if (direct_->is_up(peer.peer) || find_up(peer.peer) != nullptr) {
    return open(peer, deadline_ms, false);
  }
  if (const Far* far = find(peer.peer)) {
    if (far->state == State::failed && !far->closing) return;  // down will be told
    remove(peer.peer);
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
    fail(late, "cannot reach peer " + to_string(id) + " over peer " + to_string(late.via) +
                   " within " + std::to_string(deadline_ms) + " ms: " +
                   (linked ? "no answer comes from there" : "there is no link to that one"));
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
  Far* far = find(message.from);
  if (far == nullptr || far->state == State::failed) return;  // it says so again
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
  log_info("peer " + to_string(far.handle.peer) + " is reached over peer " + to_string(far.via));
  events_.link_up(far.handle.peer);
}

// -------------------------------------------------------------------------------------- ending

void RelayLinks::remove(PeerId peer) { far_.erase(peer); }

void RelayLinks::fail(Far& far, const std::string& reason) {
  if (far.state == State::failed) return;
  const bool was_up = far.state == State::up;
  far.state = State::failed;
  far.deadline.reset();
  far.again.reset();
  far.queue.clear();
  far.handed.clear();  // their memory stays borrowed until it is cancelled
  clock_.defer([this, peer = far.handle.peer, serial = far.serial, was_up, reason,
                alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    const Far* failed = find(peer);
    if (failed == nullptr || failed->serial != serial) return;
    const bool tells = !failed->closing;
    remove(peer);
    if (tells) events_.link_down(peer, reason, was_up ? Down::lost : Down::unopened);
  });
}

/// The own link to `via` has ended, or ends: so do the links over it.
void RelayLinks::lost_over(PeerId via, const std::string& why) {
  for (auto& [id, far] : far_) {
    if (far.via != via || far.state != State::up) continue;
    fail(far, "the link to peer " + to_string(via) + ", over which it went, was lost: " + why);
  }
}

void RelayLinks::went_down(Far& far, const RelayMessage& message) {
  if (far.state == State::failed || far.ends_after) return;
  if (message.session != 0 && message.session != far.mine) return;  // of an earlier link
  const auto* text = reinterpret_cast<const char*>(message.rest.data());
  std::string why(text, std::min(message.rest.size(), kTextBytesMax));
  if (far.state == State::opening) return;  // it is tried until the deadline
  if (message.number > far.received) {
    far.ends_after = message.number;  // its last segments travel on other lanes
    far.why = std::move(why);
    far.deadline = clock_.timer(kHandshakeMs, 0, [this, peer = message.from] {
      Far& late = far_.at(peer);
      fail(late, late.why);
    });
    return;
  }
  fail(far, why);
}

void RelayLinks::close(PeerId peer) {
  if (Far* far = find(peer)) {
    if (far->state == State::up && !far->queue.empty()) {
      far->closing = true;
    } else {
      if (far->state == State::up) {
        say(*far, RelayKind::down, far->theirs, far->sent, as_span("the peer has closed the link"));
      }
      remove(peer);
    }
  }
  lost_over(peer, "it was closed here");
  passage_->unlink(peer);
  direct_->close(peer);
}

void RelayLinks::drop(PeerId peer) {
  if (Far* far = find(peer)) {
    if (far->state == State::up) {
      say(*far, RelayKind::down, far->theirs, 0, as_span("the peer has dropped the link"));
    }
    remove(peer);
  }
  lost_over(peer, "it was dropped here");
  passage_->unlink(peer);
  direct_->drop(peer);
}

void RelayLinks::give_up(PeerId peer, const std::string& reason) {
  Far* far = find_up(peer);
  if (far == nullptr) return direct_->give_up(peer, reason);
  say(*far, RelayKind::down, far->theirs, 0, as_span("the peer makes the link anew"));
  fail(*far, reason);
}

void RelayLinks::shutdown(std::uint64_t deadline_ms, std::function<void()> done) {
  for (auto& [peer, far] : far_) {
    if (far.state != State::up) continue;
    pump(far, true);
    say(far, RelayKind::down, far.theirs, far.sent, as_span("the peer has closed the link"));
  }
  far_.clear();
  direct_->shutdown(deadline_ms, std::move(done));
}

// --------------------------------------------------------------------------------- what is sent

bool RelayLinks::is_up(PeerId peer) const {
  const auto found = far_.find(peer);
  if (found == far_.end() || found->second.closing) return direct_->is_up(peer);
  return found->second.state == State::up || direct_->is_up(peer);
}

void RelayLinks::send_control(PeerId peer, std::vector<std::byte> payload) {
  Far* far = find_up(peer);
  if (far == nullptr) return direct_->send_control(peer, std::move(payload));
  say(*far, RelayKind::control, far->theirs, 0, payload);
}

void RelayLinks::send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                              MemoryToken token, std::uint64_t cookie) {
  Far* far = find_up(peer);
  if (far == nullptr) return direct_->send_segment(peer, header, payload, token, cookie);
  far->queue.push_back({header, payload, token, cookie});
  far->queued_bytes += header.bytes;
  pump(*far);
}

void RelayLinks::pump(Far& far, bool all) {
  while (!far.queue.empty()) {
    Queued next = far.queue.front();
    const std::size_t out = far.handed_bytes + far.on_the_way;
    if (!all && out > 0 && out + next.header.bytes > kRelayWindowBytes) return;
    far.queue.pop_front();
    far.queued_bytes -= next.header.bytes;
    far.handed_bytes += next.header.bytes;
    ++far.sent;
    next.header.route = {self(), far.handle.peer, far.theirs};
    far.handed.push_back(next);
    direct_->send_segment(far.via, next.header, next.payload, next.token, next.cookie);
  }
  if (!far.closing) return;
  say(far, RelayKind::down, far.theirs, far.sent, as_span("the peer has closed the link"));
  remove(far.handle.peer);
}

void RelayLinks::routed_sent(PeerId to, MemoryToken token, std::uint64_t cookie) {
  if (Passage::owns(token)) return passage_->sent(token);
  if (Far* far = find(to)) {
    const auto sent = std::find_if(far->handed.begin(), far->handed.end(), [&](const Queued& q) {
      return q.token == token && q.cookie == cookie;
    });
    if (sent == far->handed.end()) return;  // of an earlier link
    far->handed_bytes -= sent->header.bytes;
    far->on_the_way += sent->header.bytes;
    far->handed.erase(sent);
    if (!far->closing) events_.segment_sent(to, cookie);
  }
}

void RelayLinks::take_credit(Far& far, std::uint64_t bytes) {
  // What was cancelled when it was half sent has been forgotten here, and gets credit all the same.
  far.on_the_way -= std::min<std::uint64_t>(bytes, far.on_the_way);
  pump(far);
}

void RelayLinks::cancel(MemoryToken token) {
  direct_->cancel(token);
  for (auto& [peer, far] : far_) {
    std::erase_if(far.queue, [&, &link = far](const Queued& q) {
      if (q.token == token) link.queued_bytes -= q.header.bytes;
      return q.token == token;
    });
    std::erase_if(far.handed, [&, &link = far](const Queued& q) {
      if (q.token != token) return false;
      link.handed_bytes -= q.header.bytes;
      return true;
    });
  }
}

std::size_t RelayLinks::queued_bytes(PeerId peer) const {
  const auto found = far_.find(peer);
  const std::size_t far =
      found == far_.end() ? 0 : found->second.queued_bytes + found->second.handed_bytes;
  return far + direct_->queued_bytes(peer);
}

// ------------------------------------------------------------------------------ what arrives

void RelayLinks::link_up(PeerId peer) {
  if (Far* far = find(peer)) {
    if (far->state == State::failed) return;  // its down is told; then it is opened again
    if (far->state == State::up) return;
    remove(peer);  // it can be reached after all
  }
  std::vector<PeerId> over;
  for (const auto& [id, far] : far_) {
    if (far.via == peer && far.state == State::opening) over.push_back(id);
  }
  for (const PeerId id : over) say_open(id);
  events_.link_up(peer);
}

void RelayLinks::link_down(PeerId peer, const std::string& reason, Down how) {
  lost_over(peer, reason);
  passage_->unlink(peer);
  if (find(peer) == nullptr) events_.link_down(peer, reason, how);
}

void RelayLinks::relay_arrived(PeerId peer, std::span<const std::byte> payload) {
  const auto decoded = decode_relay(payload);
  if (!decoded) return direct_->give_up(peer, decoded.error().text);
  const RelayMessage& message = decoded.value();
  if (message.to != self()) return passage_->message(peer, message, payload);
  Far* far = find(message.from);
  if (message.kind == RelayKind::open) return opened(peer, message);
  if (far == nullptr || far->via != peer) return;
  switch (message.kind) {
    case RelayKind::open:
      return;
    case RelayKind::control:
      if (message.session != far->mine || far->state == State::failed || far->closing) return;
      if (far->state == State::opening) now_up(*far);  // its sender knows our session
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
  if (!header.route.relayed()) return events_.segment_header(peer, header);
  if (header.route.to != self()) return passage_->take_in(peer, header);
  const PeerId from = header.route.from;
  Far* far = find(from);
  const bool ours = far != nullptr && far->via == peer && far->mine == header.route.session;
  if (!ours || far->state == State::failed || far->closing) return {};
  if (far->state == State::opening) now_up(*far);
  SegmentHeader plain = header;
  plain.route = {};
  const Placement at = events_.segment_header(from, plain);
  if (at.to == nullptr) count_received(from);  // its end is not told
  return at;
}

void RelayLinks::segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) {
  if (!header.route.relayed()) return events_.segment_arrived(peer, header, at);
  if (Passage::owns(at.token)) return passage_->arrived(header, at.token);
  const PeerId from = header.route.from;
  SegmentHeader plain = header;
  plain.route = {};
  events_.segment_arrived(from, plain, at);
  count_received(from);
}

void RelayLinks::count_received(PeerId peer) {
  Far* far = find(peer);
  if (far == nullptr) return;
  ++far->received;
  if (far->ends_after && far->received >= *far->ends_after) fail(*far, far->why);
}

}  // namespace

Result<std::unique_ptr<Links>> make_relay_links(Clock& clock, LinkEvents& events,
                                                std::uint64_t seed, const MakeDirectLinks& make) {
  auto links = std::make_unique<RelayLinks>(clock, events, seed);
  if (Error error = links->listen(make); error.failed()) return error;
  return std::unique_ptr<Links>(std::move(links));
}

Result<std::unique_ptr<Links>> make_tcp_links(Loop& loop, LinkEvents& events,
                                              const LinkOptions& options) {
  return make_relay_links(loop, events, random_u64(), [&](DirectEvents& direct) {
    return make_direct_links(loop, direct, options);
  });
}

}  // namespace pccl
