// Links over TCP: which peers are wanted, who dials, what is parked, and when the owner is told.
// The owner is told by Reports, never from inside its own call.
#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/random.h"
#include "base/text.h"
#include "transport/area.h"
#include "transport/closing_links.h"
#include "transport/helpers.h"
#include "transport/lane_gate.h"
#include "transport/last_word.h"
#include "transport/link.h"
#include "transport/link_words.h"
#include "transport/listen.h"
#include "transport/local_socket.h"
#include "transport/loop.h"
#include "transport/parking.h"
#include "transport/rate_queue.h"
#include "transport/reports.h"
#include "transport/stream_lane.h"
#include "transport/sys.h"
#include "transport/transport.h"
#include "trust/random_bytes.h"

namespace pccl {
namespace {

constexpr std::uint64_t kDialBackMs = 500;      // a peer that awaits a dial dials after this
constexpr std::uint64_t kLackMs = 1000;         // a lost lane is dialled anew after this
constexpr std::uint64_t kLackLongMs = 60000;    // and after this if that comes to nothing
constexpr std::uint64_t kRefusedMs = 200;       // a refusal counts when it lasts that long
constexpr std::uint64_t kRefusedLongMs = 2000;  // if the refused peer may dial itself

class TcpLinks : public DirectLinks, private LinkOwner, private LaneGateOwner {
 public:
  TcpLinks(Loop& loop, DirectEvents& events, const KeyPair& identity, const LinkOptions& options,
           std::vector<Socket> listening, std::shared_ptr<OwnArea> area)
      : loop_(loop),
        events_(events),
        options_(options),
        jitter_(random_u64()),
        identity_(identity),
        self_(peer_of(identity.public_key())),
        rate_(options.max_rate > 0 ? std::make_unique<RateQueue>(loop, options.max_rate) : nullptr),
        area_(std::move(area)),
        gate_(loop, static_cast<LaneGateOwner&>(*this), identity, options.plaintext,
              std::move(listening)),
        closing_(loop, [this](std::shared_ptr<Link> link) { bury(std::move(link)); }),
        parking_(loop, options.bulk_lanes + 1),
        reports_(loop, [this](const LinkReport& report) { tell(report); }) {
    if (area_) loop_.registry().add(area_->descriptor());
  }
  ~TcpLinks() override {
    if (area_ && !loop_.registry().in_child()) loop_.registry().remove(area_->descriptor());
  }
  TcpLinks(const TcpLinks&) = delete;
  TcpLinks& operator=(const TcpLinks&) = delete;

  [[nodiscard]] std::uint16_t port() const override { return gate_.port(); }
  [[nodiscard]] PeerId self() const override { return self_; }
  [[nodiscard]] const PublicKey& key() const override { return identity_.public_key(); }

  void open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) override;
  void close(PeerId peer) override;
  void drop(PeerId peer) override;
  void give_up(PeerId peer, const std::string& reason) override;
  [[nodiscard]] std::string opening_text(PeerId peer) const override {
    const auto found = links_.find(peer);
    const bool opens = found != links_.end() && found->second->state == Link::State::opening;
    return opens ? found->second->opening->text() : "";
  }
  [[nodiscard]] std::string trouble_text(PeerId peer) const override {
    const Link* link = find_up(peer);
    return link == nullptr ? "" : trouble(*link);
  }
  [[nodiscard]] bool is_up(PeerId peer) const override { return find_up(peer) != nullptr; }
  void widen(PeerId peer, std::size_t bulk_lanes) override {
    if (Link* link = find_up(peer)) widen(*link, bulk_lanes);
  }

  void send_control(PeerId peer, std::vector<std::byte> payload) override;
  void send_relay(PeerId peer, std::vector<std::byte> payload) override;
  void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                    MemoryToken token, std::uint64_t cookie) override;
  [[nodiscard]] OwnArea* area() override { return area_.get(); }
  void cancel(MemoryToken token) override;

  [[nodiscard]] std::uint64_t bytes_sent() const override { return bytes_sent_; }
  [[nodiscard]] std::uint64_t bytes_shared() const override { return bytes_shared_; }
  [[nodiscard]] std::uint64_t rate_held_ms() const override { return rate_ ? rate_->held_ms() : 0; }
  [[nodiscard]] std::vector<LinkView> views() const override {
    std::vector<LinkView> views;
    for (const auto& [peer, link] : links_) {
      if (link->state != Link::State::up) continue;
      views.push_back(link->view());
      views.back().lanes = link->lane_views();
    }
    return views;
  }
  [[nodiscard]] std::optional<LinkView> view(PeerId peer) const override {
    const Link* link = find_up(peer);
    return link == nullptr ? std::nullopt : std::optional(link->view());
  }
  [[nodiscard]] std::uint64_t bytes_received() const override { return bytes_received_; }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override {
    return segment_bytes_received_;
  }
  [[nodiscard]] std::size_t queued_bytes(PeerId peer) const override {
    const auto found = links_.find(peer);
    return found == links_.end() ? 0 : found->second->queued_bytes();
  }
  [[nodiscard]] std::size_t queued_message_bytes(PeerId peer) const override {
    const auto found = links_.find(peer);
    return found == links_.end() ? 0 : found->second->queued_message_bytes();
  }
  void shutdown(const GoodbyeTime& time, std::function<void()> done) override;

 private:
  // LinkOwner
  DirectEvents& link_events() override { return events_; }
  void link_sent(const Link& link, const Outgoing& frame) override;
  void link_received(std::size_t payload_bytes, bool data) override {
    bytes_received_ += payload_bytes;
    if (data) segment_bytes_received_ += payload_bytes;
  }
  void link_lost(Link& link, const std::string& reason) override { fail(link, reason, false); }
  void link_lacks(Link& link) override;
  void link_closed(Link& link) override { closing_.over(link); }

  // LaneGateOwner
  [[nodiscard]] bool may_dial(const LaneHello& hello) override;
  [[nodiscard]] bool takes_lane(const LaneHello& hello) override;
  void lane_arrived(const LaneHello& hello, std::unique_ptr<Stream> stream) override;

  [[nodiscard]] static LinkReport report(LinkReport::What what, const Link& link);
  void tell(const LinkReport& report);
  void tell_up(const LinkReport& report);
  void tell_down(const LinkReport& report);

  void dial(Link& link);
  void dial_later(Link& link, std::uint64_t delay_ms);
  void set_deadline(Link& link, std::uint64_t deadline_ms);
  void widen(Link& link, std::size_t bulk_lanes);
  void dial_lacking(Link& link, std::uint64_t delay_ms);
  [[nodiscard]] Dialler dialler(const Link& link) const {
    return {identity_,
            options_.plaintext,
            options_.tcp_user_timeout_ms,
            options_.shared_memory,
            link.small_packets,
            /*only_peer=*/links_.size() == 1};
  }
  [[nodiscard]] LaneHello hello_to(const Link& link, std::uint64_t number, bool joins) const {
    return {identity_.public_key(), link.peer(), number, joins, 0, false};
  }
  [[nodiscard]] std::unique_ptr<Lane> lane_of(Link& link, Lane::Kind kind,
                                              std::unique_ptr<Stream> stream);
  void dial_failed(Link& link, const LaneDial::Failure& failure);
  void deadline_over(Link& link);
  void note_packets(Link& link, const Stream& first);
  void watch(Link& link, const LinkLoad& load, std::uint64_t now_ms, std::uint64_t waits_since_ms);
  void tell_trouble(const Link& link, const std::string& what);
  [[nodiscard]] std::string trouble(const Link& link) const {
    const auto since_ms = link.small_pass.since_ms();
    return since_ms ? small_pass_text(loop_.now_ms() - *since_ms, link.small_packets) : "";
  }
  [[nodiscard]] bool path_is_small(PeerId peer);
  void adopt(Link& link, std::uint64_t number, std::unique_ptr<Stream> first);
  [[nodiscard]] Link* find_standing(PeerId peer, std::uint64_t number) const;
  void fail(Link& link, const std::string& reason, bool refused);
  void fail_misnamed(Link& link, const Handle& peer) {
    fail(link, "the id of peer " + name_of(peer) + " is not that of its key", false);
  }
  std::shared_ptr<Link> take(PeerId peer);
  void bury(std::shared_ptr<Link> link);
  template <typename Body>
  void moving(Link& link, Body body);
  void end_starved(Link& link);
  [[nodiscard]] Link* find_up(PeerId peer) const;

  Loop& loop_;
  DirectEvents& events_;
  LinkOptions options_;
  Random jitter_;
  KeyPair identity_;
  PeerId self_;
  std::unique_ptr<RateQueue> rate_;  // of the lanes over TCP; null: they send under no rate
  std::shared_ptr<OwnArea> area_;    // null: links within the machine have none
  LaneGate gate_;
  std::map<PeerId, std::shared_ptr<Link>> links_;
  ClosingLinks closing_;
  std::vector<std::shared_ptr<Link>> buried_;    // freed when no call on the stack uses them
  std::map<PeerId, std::uint64_t> small_paths_;  // since when they carry small packets only
  Parking parking_;
  Reports reports_;
  std::uint64_t serials_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_shared_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t segment_bytes_received_ = 0;
  bool shut_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// ---------------------------------------------------------------------------------------- opening

void TcpLinks::open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) {
  PCCL_ASSERT(peer.peer != self_, "a link to itself");
  const auto found = links_.find(peer.peer);
  if (found != links_.end()) {
    Link& link = *found->second;
    if (link.state == Link::State::up) return reports_.add(report(LinkReport::What::up, link));
    if (link.state != Link::State::opening) return;  // up or down will be told
    if (peer_of(peer.key) != peer.peer) return fail_misnamed(link, peer);
    link.handle = peer;
    if (loop_.now_ms() + deadline_ms <= link.opening->deadline_at_ms) return;
    link.opening->overdue = false;
    return set_deadline(link, deadline_ms);
  }
  const auto made = std::make_shared<Link>(static_cast<LinkOwner&>(*this), peer, ++serials_);
  links_[peer.peer] = made;
  Link& link = *made;
  if (shut_) return fail(link, "this process has closed its links", false);
  if (peer_of(peer.key) != peer.peer) return fail_misnamed(link, peer);
  set_deadline(link, deadline_ms);
  link.small_packets = path_is_small(peer.peer);
  link.opening->refused_long_ms = refusal_tells ? kRefusedMs : kRefusedLongMs;
  if (auto parked = parking_.take(peer)) {
    adopt(link, parked->link, std::move(parked->lanes.front()));
    for (std::size_t i = 1; i < parked->lanes.size(); ++i) {
      link.await(lane_of(link, Lane::Kind::bulk, std::move(parked->lanes[i])));
    }
    return;
  }
  if (self_ < peer.peer) return dial(link);
  dial_later(link, std::min(kDialBackMs, deadline_ms / 4));
}

void TcpLinks::set_deadline(Link& link, std::uint64_t deadline_ms) {
  link.opening->deadline_at_ms = loop_.now_ms() + deadline_ms;
  link.opening->deadline_after_ms = deadline_ms;
  link.opening->deadline = loop_.timer(deadline_ms, 0, [this, &link] { deadline_over(link); });
}

bool TcpLinks::path_is_small(PeerId peer) {
  const auto found = small_paths_.find(peer);
  if (found == small_paths_.end()) return false;
  if (loop_.now_ms() - found->second < kSmallPathMs) return true;
  small_paths_.erase(found);
  return false;
}

void TcpLinks::dial_later(Link& link, std::uint64_t delay_ms) {
  link.opening->dial.reset();
  link.opening->redial = loop_.timer(delay_ms, 0, [this, &link] { dial(link); });
}

/// A peer with a larger id dials this one. This peer takes that link unless its own dial has made
/// one, or is about to.
bool TcpLinks::may_dial(const LaneHello& hello) {
  const PeerId dialer = peer_of(hello.dialer);
  const auto found = links_.find(dialer);
  if (found == links_.end()) return true;
  Link& link = *found->second;
  if (link.handle.key != hello.dialer) return false;  // another process with the same id
  if (dialer < self_) return true;
  if (link.state == Link::State::opening) {
    if (link.opening->dial && link.opening->dial->talks()) return false;
    dial_later(link, kHandshakeMs);  // if that dial comes to nothing
    return true;
  }
  // Soon after this link was made the dial may have crossed with the one that made it; later the
  // peer has lost the link.
  const bool up = link.state == Link::State::proven || link.state == Link::State::up;
  return !up || loop_.now_ms() - link.proven_at_ms > kHandshakeMs;
}

void TcpLinks::dial(Link& link) {
  const LaneHello hello = hello_to(link, random_u64(), /*joins=*/false);
  link.opening->dial = std::make_unique<LaneDial>(
      loop_, dialler(link), link.handle, hello,
      LaneDial::Events{
          [this, &link, number = hello.link](auto stream, const std::string& address) {
            link.address = address;
            link.dialled = true;
            if (link.opening->dial->swallows()) {
              log_warning(
                  "the path to peer " + name_of(link.handle) + " at " + address +
                  " swallows packets of full size, and carries small ones: the connections of "
                  "this link send packets of 1,280 bytes at most. A smaller MTU of the "
                  "interface, or ICMP that passes, would mend the path");
            }
            adopt(link, number, std::move(stream));
            widen(link, options_.bulk_lanes);
          },
          [this, &link](const LaneDial::Failure& failure) { dial_failed(link, failure); }});
}

void TcpLinks::dial_failed(Link& link, const LaneDial::Failure& failure) {
  Link::Opening& opening = *link.opening;
  const std::uint64_t now = loop_.now_ms();
  if (!failure.refused) opening.refused_since_ms = 0;
  if (failure.refused && opening.refused_since_ms == 0) {
    opening.refused_since_ms = std::max<std::uint64_t>(now, 1);
  }
  const bool refused = failure.refused && now - opening.refused_since_ms >= opening.refused_long_ms;
  opening.last_failure = failure.what;
  link.small_packets = path_is_small(link.peer());
  if (opening.overdue) return deadline_over(link);
  if (failure.final || refused) {
    return fail(link, "cannot connect to peer " + name_of(link.handle) + ": " + failure.what,
                refused);
  }
  opening.backoff_ms = std::clamp(opening.backoff_ms * 2, kBackoffMsMin, kBackoffMsMax);
  // A random delay, so that many peers which have lost the same one do not dial in step.
  dial_later(link, opening.backoff_ms / 2 + jitter_.below(opening.backoff_ms / 2 + 1));
}

void TcpLinks::deadline_over(Link& link) {
  Link::Opening& opening = *link.opening;
  if (opening.dial && opening.dial->has_proven() && !std::exchange(opening.overdue, true)) {
    // The peer has our proof, so the link may be up there; to give up now would lose it.
    opening.deadline = loop_.timer(kHandshakeMs, 0, [this, &link] { deadline_over(link); });
    return;
  }
  const std::string within = " within " + std::to_string(opening.deadline_after_ms) + " ms";
  const std::string seen = opening.text();
  if (self_ < link.peer() || !seen.empty()) {
    return fail(link,
                "cannot connect to peer " + name_of(link.handle) + within + ", and it does not " +
                    "dial either: " + seen,
                false);
  }
  std::string addresses;
  for (const std::string& address : link.handle.addresses) {
    add_to_list(addresses, address);
  }
  fail(link, "no connection from peer " + name_of(link.handle) + " (" + addresses + ")" + within,
       false);
}

bool TcpLinks::takes_lane(const LaneHello& hello) {
  const Link* link = find_standing(peer_of(hello.dialer), hello.link);
  if (link == nullptr) return parking_.takes_lane(hello);
  if (link->handle.key != hello.dialer || link->room() == 0) return false;
  return link->bulk_lanes() < options_.bulk_lanes || descriptors_free() >= kDescriptorsLeft;
}

void TcpLinks::lane_arrived(const LaneHello& hello, std::unique_ptr<Stream> stream) {
  const PeerId peer = peer_of(hello.dialer);
  if (hello.joins) {
    if (Link* link = find_standing(peer, hello.link)) {
      return link->await(lane_of(*link, Lane::Kind::bulk, std::move(stream)));
    }
    return parking_.join(hello, std::move(stream));
  }
  const auto found = links_.find(peer);
  if (found == links_.end()) return parking_.add(hello, std::move(stream));
  Link& link = *found->second;
  if (link.state == Link::State::opening) return adopt(link, hello.link, std::move(stream));
  // The peer would not dial if its old link were up. The owner opens the link again when it has
  // heard of the loss.
  parking_.add(hello, std::move(stream));
  if (link.state != Link::State::failed) {
    fail(link, "the peer has lost the link and dialled anew", false);
  }
}

/// Whoever has dialled it: all further lanes, of both sides, are as the first one is. What was seen
/// of the path to a peer holds for its next links, too, until it may have been mended.
void TcpLinks::note_packets(Link& link, const Stream& first) {
  const std::uint32_t bytes = first.line().packet_bytes;
  link.small_packets = bytes > 0 && bytes <= kSmallPacketPayloadBytes;
  if (!link.small_packets) {
    small_paths_.erase(link.peer());
  } else {
    if (small_paths_.size() >= kMembersMax) small_paths_.clear();
    small_paths_.try_emplace(link.peer(), loop_.now_ms());
  }
}

void TcpLinks::adopt(Link& link, std::uint64_t number, std::unique_ptr<Stream> first) {
  link.state = Link::State::proven;
  link.number = number;
  note_packets(link, *first);
  link.proven_at_ms = loop_.now_ms();
  link.opening.reset();
  link.attach(lane_of(link, Lane::Kind::small, std::move(first)));
  reports_.add(report(LinkReport::What::up, link));
}

std::unique_ptr<Lane> TcpLinks::lane_of(Link& link, Lane::Kind kind,
                                        std::unique_ptr<Stream> stream) {
  stream->tune(options_.bbr);
  const bool crc = options_.payload_crc.value_or(!stream->encrypted() && !stream->same_machine());
  RateQueue* rate = stream->carrier() == Stream::Carrier::tcp ? rate_.get() : nullptr;
  return std::make_unique<StreamLane>(loop_, link, kind, std::move(stream), crc, rate);
}

void TcpLinks::widen(Link& link, std::size_t bulk_lanes) {
  Handle to = link.handle;
  if (!link.address.empty()) to.addresses = {link.address};
  for (std::size_t more = std::min(bulk_lanes, link.room()); more > 0; --more) {
    const auto join = link.joining.emplace(link.joining.end());
    *join = std::make_unique<LaneJoin>(
        loop_, dialler(link), to, hello_to(link, link.number, /*joins=*/true), kJoinMs,
        LaneJoin::Events{[this, &link, join](std::unique_ptr<Stream> stream) {
                           link.joining.erase(join);
                           if (link.widening) link.widening->joined();
                           link.join(lane_of(link, Lane::Kind::bulk, std::move(stream)));
                         },
                         [this, &link, join](const std::string& why) {
                           const std::string line = "a lane to peer " + name_of(link.handle) +
                                                    " has not joined its link: " + why;
                           if (link.widening) link.widening->refused();
                           if (link.bulk_lanes() == 0 && link.joining.size() == 1) {
                             log_warning(line);
                           } else {
                             log_debug(line);
                           }
                           if (link.lanes_lost() > 0) dial_lacking(link, kLackLongMs);
                           link.joining.erase(join);
                         }});
  }
}

void TcpLinks::link_lacks(Link& link) {
  if (link.widening) link.widening->lost();
  dial_lacking(link, kLackMs);
}

/// Dials the lanes that a link has from its beginning; Widening sees to the others.
void TcpLinks::dial_lacking(Link& link, std::uint64_t delay_ms) {
  const std::uint64_t until_ms = loop_.now_ms() + delay_ms;
  // Lanes that go on being lost put nothing off.
  if (link.lacks_until_ms != 0 && link.lacks_until_ms <= until_ms) return;
  link.lacks_until_ms = until_ms;
  link.relane = loop_.timer(delay_ms, 0, [this, &link] {
    link.lacks_until_ms = 0;
    if (link.lanes_lost() > std::exchange(link.lanes_lost_told, link.lanes_lost())) {
      log_info("the link to peer " + name_of(link.handle) + " has lost " +
               std::to_string(link.lanes_lost()) + " of its lanes since it came up, and goes on");
    }
    if (!link.dialled) return;
    const std::size_t there = link.bulk_lanes() + link.joining.size();
    if (there < options_.bulk_lanes) widen(link, options_.bulk_lanes - there);
  });
}

// ---------------------------------------------------------------------------------------- ending

void TcpLinks::fail(Link& link, const std::string& reason, bool refused) {
  if (link.state == Link::State::failed) return;
  const bool was_up = link.state == Link::State::up || link.state == Link::State::proven;
  link.state = Link::State::failed;
  link.end();
  const std::string known = was_up ? trouble(link) : "";
  const Down how = refused ? Down::refused : was_up ? Down::lost : Down::unopened;
  LinkReport down = report(LinkReport::What::down, link);
  down.reason = reason;
  add_to_list(down.reason, known, known.empty() ? "" : "; ");
  down.how = how;
  reports_.add(std::move(down));
}

/// Removes the link to the peer, and returns it, if there is one.
std::shared_ptr<Link> TcpLinks::take(PeerId peer) {
  parking_.erase(peer);
  const auto node = links_.extract(peer);
  return node.empty() ? nullptr : node.mapped();
}

void TcpLinks::close(PeerId peer) {
  const std::shared_ptr<Link> link = take(peer);
  if (!link) return;
  if (link->state != Link::State::up && link->state != Link::State::proven) return bury(link);
  closing_.add(link);
}

void TcpLinks::drop(PeerId peer) {
  if (const std::shared_ptr<Link> link = take(peer)) bury(link);
}

void TcpLinks::give_up(PeerId peer, const std::string& reason) {
  if (Link* link = find_up(peer)) fail(*link, reason, false);
}

void TcpLinks::bury(std::shared_ptr<Link> link) {
  link->state = Link::State::failed;
  link->end();
  buried_.push_back(std::move(link));
  loop_.defer([this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) buried_.clear();
  });
}

void TcpLinks::shutdown(const GoodbyeTime& time, std::function<void()> done) {
  shut_ = true;
  gate_.close();
  parking_.clear();
  while (!links_.empty()) close(links_.begin()->first);
  closing_.finish(time, std::move(done));
}

// ------------------------------------------------------------------------------------ watching

/// The system counts what arrives over TCP alone.
void TcpLinks::watch(Link& link, const LinkLoad& load, std::uint64_t now_ms,
                     std::uint64_t waits_since_ms) {
  if (link.local()) return;
  const bool held = load.held || std::exchange(link.holds_seen, load.holds) != load.holds;
  const auto fall = link.rate_fall.look(
      {now_ms, waits_since_ms, load.line.arrived_bytes, bytes_sent_ - bytes_shared_, held});
  if (fall) tell_trouble(link, slow_link_text(*fall));
  const bool begins = link.small_pass.look({now_ms, load.sends, load.lanes, load.large_delivered,
                                            load.line.resent_bytes, link.messages_received()});
  if (begins) tell_trouble(link, trouble(link));
}

void TcpLinks::tell_trouble(const Link& link, const std::string& what) {
  loop_.defer([this, alive = std::weak_ptr(alive_), peer = link.peer(), what] {
    if (!alive.expired() && find_up(peer) != nullptr) events_.link_trouble(peer, what);
  });
}

// ---------------------------------------------------------------------------------------- data

Link* TcpLinks::find_up(PeerId peer) const {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second->state != Link::State::up) return nullptr;
  return found->second.get();
}

Link* TcpLinks::find_standing(PeerId peer, std::uint64_t number) const {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second->number != number) return nullptr;
  const Link::State state = found->second->state;
  const bool stands = state == Link::State::proven || state == Link::State::up;
  return stands ? found->second.get() : nullptr;
}

/// Runs a call of the owner, which may move what other operations have queued, too. Where memory
/// runs out in the middle, frames may be lost, or written twice: the link ends.
template <typename Body>
void TcpLinks::moving(Link& link, Body body) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    end_starved(link);
  }
}

void TcpLinks::end_starved(Link& link) {
  last_word([&] {
    if (link.state == Link::State::closing) return link_closed(link);
    fail(link, no_memory_for("what goes over the link to it"), false);
  });
}

void TcpLinks::send_control(PeerId peer, std::vector<std::byte> payload) {
  Link* link = find_up(peer);
  if (link == nullptr) return;
  moving(*link, [&] { link->send_message(FrameType::control, std::move(payload)); });
}

void TcpLinks::send_relay(PeerId peer, std::vector<std::byte> payload) {
  Link* link = find_up(peer);
  if (link == nullptr) return;
  moving(*link, [&] { link->send_message(FrameType::relay, std::move(payload)); });
}

void TcpLinks::send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                            MemoryToken token, std::uint64_t cookie) {
  Link* link = find_up(peer);
  if (link == nullptr) return;
  const auto place = area_ ? area_->place_of(payload) : std::nullopt;
  moving(*link, [&] {
    link->send_segment(header, payload, token, cookie, place);
    if (header.bytes > kSmallSegmentBytesMax && link->widening) link->widening->wake();
  });
}

void TcpLinks::cancel(MemoryToken token) {
  if (token == 0) return;
  for (const auto& [peer, link] : links_) moving(*link, [&] { link->cancel(token); });
  closing_.each([&](Link& link) { moving(link, [&] { link.cancel(token); }); });
  reports_.cancel(token);
}

void TcpLinks::link_sent(const Link& link, const Outgoing& frame) {
  bytes_sent_ += frame.data_bytes();
  if (frame.shared) bytes_shared_ += frame.data_bytes();
  if (!frame.tells || link.state != Link::State::up) return;
  LinkReport sent = report(LinkReport::What::sent, link);
  sent.token = frame.token;
  sent.cookie = frame.cookie;
  sent.far = frame.frame.segment.route.to;
  reports_.add(std::move(sent));
}

// ---------------------------------------------------------------------------------------- telling

LinkReport TcpLinks::report(LinkReport::What what, const Link& link) {
  LinkReport report;
  report.what = what;
  report.peer = link.peer();
  report.serial = link.serial;
  return report;
}

void TcpLinks::tell(const LinkReport& report) {
  const auto found = links_.find(report.peer);
  if (found == links_.end() || found->second->serial != report.serial) return;
  switch (report.what) {
    case LinkReport::What::up:
      return tell_up(report);
    case LinkReport::What::down:
      return tell_down(report);
    case LinkReport::What::sent:
      if (report.far == PeerId{}) return events_.segment_sent(report.peer, report.cookie);
      return events_.routed_sent(report.far, report.token, report.cookie);
  }
}

void TcpLinks::tell_up(const LinkReport& report) {
  const std::shared_ptr<Link> link = links_[report.peer];
  if (link->state == Link::State::failed) return;  // the report of its loss comes next
  const bool first = link->state == Link::State::proven;
  link->state = Link::State::up;
  if (first) {
    link->widening = std::make_unique<Widening>(
        loop_,
        Widening::Rules{.least_lanes = options_.bulk_lanes,
                        .dials = link->dialled,
                        .short_line_lanes = link->local() || rate_ ? 1 : loop_.helpers().threads(),
                        .model = options_.bbr},
        Widening::Calls{
            [&at = *link] { return at.load(); },
            [&at = *link](std::uint64_t now_ms) { at.mend(now_ms); },
            [&at = *link](std::size_t lanes) { at.use(lanes); },
            [&at = *link](bool by_model) { at.go_by_model(by_model); },
            [this, &at = *link](std::size_t more) { widen(at, more); },
            [&at = *link](std::uint64_t rate) { at.pace(rate); },
            [this, &at = *link](const LinkLoad& load, auto now_ms, auto waits_since_ms) {
              watch(at, load, now_ms, waits_since_ms);
            }});
  }
  events_.link_up(report.peer);
  // The owner has heard of the link before its first message.
  if (first && link->state == Link::State::up) {
    link->start();
    // A process that has dialled and that nobody here wants (parking.h) reads nothing.
    if (area_) link->lend(area_);
  }
}

void TcpLinks::tell_down(const LinkReport& report) {
  const std::shared_ptr<Link> link = links_[report.peer];
  links_.erase(report.peer);
  bury(link);
  events_.link_down(report.peer, report.reason, report.how);
}

}  // namespace

Result<std::unique_ptr<DirectLinks>> make_direct_links(Loop& loop, DirectEvents& events,
                                                       const KeyPair& identity,
                                                       const LinkOptions& options) {
  auto listening = listen_on(loop, options.listen_hosts, options.port_first, options.port_last,
                             options.tcp_user_timeout_ms);
  if (!listening) return listening.error();
  for (const Socket& socket : listening.value()) put_off_bbr(socket.fd());
  std::shared_ptr<OwnArea> area;
  if (options.shared_memory) {
    auto local = listen_locally(loop, peer_of(identity.public_key()));
    if (local) {
      listening.value().push_back(std::move(local).value());
      if (auto made = OwnArea::make()) {
        area = std::move(made).value();
      } else {
        log_debug("this process has no area: " + made.error().text);
      }
    } else {
      log_debug("links within this machine go without shared memory: " + local.error().text);
    }
  }
  return std::unique_ptr<DirectLinks>(std::make_unique<TcpLinks>(
      loop, events, identity, options, std::move(listening).value(), std::move(area)));
}

}  // namespace pccl
