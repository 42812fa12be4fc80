#include "engine/engine_core.h"

#include <algorithm>
#include <new>

#include "base/log.h"
#include "base/text.h"
#include "transport/last_word.h"
#include "wire/cbor.h"
#include "wire/codec.h"

namespace pccl {
namespace {

constexpr std::uint64_t kTickMs = 50;
constexpr std::size_t kPoolKeptBytes = 1ULL << 30;
constexpr std::size_t kEndedMax = 65536;
constexpr std::size_t kEndedTextMax = 512;
constexpr std::size_t kReportBytesMax = 64U << 10;  // in the log, after a broken invariant

/// The group that a message between peers belongs to.
GroupId group_of(const PeerToPeer& message) {
  return std::visit([](const auto& m) { return m.group; }, message);
}

/// One comes each second for as long as a peer waits.
bool is_sign_of_life(const PeerToPeer& message) {
  const auto* ask = std::get_if<AskIssued>(&message);
  return ask != nullptr && ask->op == kSignOfLife;
}

}  // namespace

EngineCore::EngineCore(Network& network, const EngineOptions& options)
    : network_(network), options_(options), pool_(kPoolKeptBytes) {}

EngineCore::~EngineCore() {
  tick_timer_.reset();
  groups_.clear();
  strangers_.clear();
  early_.reset();
}

Error EngineCore::listen() {
  auto links = network_.make_links(*this, options_.links);
  if (!links) return links.error();
  links_ = std::move(links).value();
  if (options_.links.max_rate > 0) {
    log_info("this process sends " + bytes_text(options_.links.max_rate) +
             "/s at most over TCP, to all peers together (PCCL_MAX_RATE)");
  }
  context_ = std::make_unique<EngineContext>(EngineContext{network_, network_.clock(), *links_,
                                                           pool_, options_, counters_,
                                                           static_cast<GroupHost&>(*this)});
  early_ = std::make_unique<Early>(*context_, *this);
  last_tick_ms_ = network_.clock().now_ms();
  tick_timer_ = network_.clock().timer(kTickMs, kTickMs, [this] { tick(); });
  return {};
}

void EngineCore::set_publish(std::function<void(GroupId, GroupView)> publish) {
  publish_ = std::move(publish);
}

// ----------------------------------------------------------------------- what groups ask of it

void EngineCore::publish(GroupId group, GroupView view) {
  if (publish_) publish_(group, std::move(view));
}

void EngineCore::release_link(PeerId peer, bool in_order) {
  for (const auto& [id, group] : groups_) {
    if (group->needs(peer)) return;
  }
  if (in_order) {
    links_->close(peer);
  } else {
    links_->drop(peer);
    context_->windows.forget(peer);
  }
  link_gone(peer);
}

bool EngineCore::is_sibling(PeerId peer) const {
  return elastic_ != nullptr && elastic_->sibling(peer);
}

bool EngineCore::needed_beside(PeerId peer, GroupId group) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
    return entry.first != group && entry.second->needs(peer);
  });
}

// ------------------------------------------------------------------------------------------ groups

void EngineCore::add_fixed(GroupId id, std::string name, std::vector<Handle> members,
                           std::int32_t rank, std::uint64_t timeout_ms,
                           std::shared_ptr<Ticket> connected) {
  add(id, std::move(name), std::move(members), rank, timeout_ms, std::move(connected),
      GroupKind::fixed);
}

void EngineCore::add_of_run(GroupId id, std::string name, const std::vector<PeerId>& members,
                            std::int32_t rank, std::uint64_t timeout_ms,
                            std::shared_ptr<Ticket> connected) {
  Result<std::vector<Handle>> handles{ErrorCode::closed, "the elastic group has been closed"};
  if (elastic_ != nullptr) handles = elastic_->handles(members);
  add(id, std::move(name), std::move(handles), rank, timeout_ms, std::move(connected),
      GroupKind::of_run);
}

void EngineCore::add(GroupId id, std::string name, Result<std::vector<Handle>> members,
                     std::int32_t rank, std::uint64_t timeout_ms, std::shared_ptr<Ticket> connected,
                     GroupKind kind) {
  if (closing_ || groups_.contains(id) || ended_.contains(id)) {
    connected->complete({ErrorCode::invalid, "this number of a group has been used before"});
    return;
  }
  if (!members) {
    ended(id, members.error());
    connected->complete({members.error().code, "group " + name + ": " + members.error().text});
    return;
  }
  auto group =
      std::make_unique<FixedGroup>(*context_, id, std::move(name), std::move(members).value(), rank,
                                   timeout_ms, std::move(connected), kind);
  FixedGroup& added = *group;
  groups_.emplace(id, std::move(group));
  context_->note("group made", {}, id);
  added.connect();
  adopt(added);
}

std::vector<Handle> EngineCore::members_of(GroupId fixed_group) {
  const FixedGroup* group = find_fixed(fixed_group);
  return group == nullptr ? std::vector<Handle>{} : group->handles();
}

void EngineCore::join(const JoinOptions& options, std::shared_ptr<Ticket> joined,
                      std::function<void(const GroupEvent&)> hooks) {
  if (closing_ || ended_.contains(kElasticGroup) || elastic_ != nullptr) {
    joined->complete({ErrorCode::invalid, "this process has joined a run already: one at a time"});
    return;
  }
  auto hook = [this, several = options.place.size > 1,
               told = std::move(hooks)](const GroupEvent& e) {
    if (several && e.what == GroupEvent::What::evicted) evicted(e.text);
    if (!e.lost.empty()) lost_by_run(e.lost);
    told(e);
  };
  auto group =
      std::make_unique<ElasticGroup>(*context_, options, std::move(joined), std::move(hook),
                                     [this](const Error& over) { run_over(over); });
  elastic_ = group.get();
  groups_.emplace(kElasticGroup, std::move(group));
  elastic_->join();
}

/// A replica goes as a whole: its ranks may sit in a collective of a group of their own.
void EngineCore::evicted(const std::string& why) {
  for (auto& [id, group] : groups_) {
    if (id != kElasticGroup) {
      group->fail({ErrorCode::evicted, "this replica was evicted: " + why});
    }
  }
}

void EngineCore::lost_by_run(const std::vector<PeerId>& lost) {
  for (auto& [id, group] : groups_) {
    FixedGroup* fixed = find_fixed(id);
    if (fixed == nullptr) continue;
    for (const PeerId peer : lost) fixed->lost_by_run(peer);
  }
}

void EngineCore::run_over(const Error& over) {
  for (auto& [id, group] : groups_) {
    if (FixedGroup* fixed = find_fixed(id)) fixed->run_over(over);
  }
}

Group* EngineCore::find(GroupId id) {
  const auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : it->second.get();
}

FixedGroup* EngineCore::find_fixed(GroupId id) { return dynamic_cast<FixedGroup*>(find(id)); }

void EngineCore::close(GroupId id, const std::string& failure) {
  const auto it = groups_.find(id);
  if (it == groups_.end()) return;
  if (it->second.get() == elastic_) elastic_->program_fails(failure);
  context_->note("group closed", {}, id);
  FixedGroup* fixed = find_fixed(id);
  if (fixed != nullptr) {
    fixed->give_up_making({ErrorCode::closed, "the group has been closed"});
    closed_.add(fixed->last_words());
  }
  const Error ended_by = it->second->view().failure;
  it->second->close();
  // Groups of the run may be the last that need the links of those who are not in it any more.
  if (fixed != nullptr && fixed->of_run()) {
    for (const Handle& handle : fixed->handles()) {
      if (handle.peer != links_->self()) release_link(handle.peer, /*in_order=*/true);
    }
  }
  if (it->second.get() == elastic_) elastic_ = nullptr;
  // The group may be the caller's caller: it goes when the loop comes round.
  network_.clock().defer([group = std::shared_ptr<Group>(std::move(it->second))] {});
  groups_.erase(it);
  ended(id, ended_by);
}

/// Nothing is made of this number any more: what others send for it is dropped.
void EngineCore::ended(GroupId id, Error why) {
  if (ended_.size() >= kEndedMax) ended_.clear();
  why.text = std::string(cbor::cut_utf8(why.text, kEndedTextMax));
  ended_.emplace(id, std::move(why));
  const auto node = strangers_.extract(id);
  if (node.empty()) return;
  for (const auto& early : node.mapped()) {
    if (const auto* message = std::get_if<EarlyMessage>(&early)) {
      answer_ended(message->from, message->message);
    }
  }
}

/// Answers a peer that asks about a group of which this process keeps nothing any more.
void EngineCore::answer_ended(PeerId peer, const PeerToPeer& message) {
  if (const auto* want = std::get_if<Want>(&message)) {
    links_->send_control(peer, encode(PeerToPeer{Grant{want->group, want->epoch, kGroupClosed}}));
  } else if (const auto* up = std::get_if<Connected>(&message)) {  // ours was not up before its end
    const Error& why = ended_.at(up->group);
    const Error error = why.failed() ? why : Error{ErrorCode::closed, "the group has ended here"};
    links_->send_control(peer, encode(PeerToPeer{GroupFailed{up->group, error}}));
  }
}

/// Hands a new group the messages and segments that came before the group was known.
void EngineCore::adopt(Group& group) {
  auto node = strangers_.extract(group.id());
  if (node.empty()) return;
  for (auto& early : node.mapped()) {
    if (auto* message = std::get_if<EarlyMessage>(&early)) {
      message->kept.release();
      group.control(message->from, message->message);
    } else {
      EarlySegment& segment = std::get<EarlySegment>(early);
      segment.kept.release();
      group.adopt(std::move(segment));
    }
  }
}

/// A group whose early traffic is lost with its link cannot be made without that peer either.
void EngineCore::forget_strangers(PeerId peer) {
  const auto of = [&](const auto& early) {
    return std::visit([&](const auto& e) { return e.from == peer; }, early);
  };
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
    std::erase_if(stranger->second, of);
    stranger = stranger->second.empty() ? strangers_.erase(stranger) : std::next(stranger);
  }
}

void EngineCore::link_gone(PeerId peer) {
  early_->link_gone(peer);
  closed_.link_gone(peer);
  forget_strangers(peer);
  for (auto& [id, group] : groups_) group->link_gone(peer);
}

void EngineCore::shutdown(const std::string& failure, std::function<void()> done) {
  if (closing_) return;
  closing_ = true;
  std::vector<GroupId> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  for (const GroupId id : ids) close(id, failure);
  links_->shutdown({options_.goodbye_timeout_ms}, std::move(done));
}

void EngineCore::broken(const Error& error) {
  try {
    log_error(report());
  } catch (const std::exception& e) {
    log_error("no report:");
    log_error(e.what());
  }
  for (auto& [id, group] : groups_) group->stop_for_good(error);
}

/// The text that a report of a bug needs, of at most kReportBytesMax bytes.
std::string EngineCore::report() const {
  std::string text = "the state of the engine at the end, for a report of this bug:";
  for (const auto& [id, group] : groups_) {
    if (text.size() < kReportBytesMax / 2) text += "\n  " + group->report();
  }
  text += "\nand what happened last, the newest at the end:" +
          context_->events.text(context_->clock.now_ms());
  if (text.size() > kReportBytesMax) text = text.substr(0, kReportBytesMax) + "\n  ...";
  return text;
}

EngineCounters EngineCore::counters() const {
  EngineCounters counters = counters_;
  counters.bytes_sent = links_->bytes_sent();
  counters.bytes_received = links_->bytes_received();
  counters.bytes_relayed = links_->bytes_relayed();
  counters.bytes_shared = links_->bytes_shared();
  counters.rate_held_ms = links_->rate_held_ms();
  return counters;
}

void EngineCore::tick() {
  const std::uint64_t now = network_.clock().now_ms();
  const std::uint64_t elapsed = now - last_tick_ms_;
  last_tick_ms_ = now;
  std::vector<GroupId> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  for (const GroupId id : ids) {
    if (Group* group = find(id)) group->tick(elapsed);
  }
}

// ------------------------------------------------------------------------------ from the links

void EngineCore::link_up(PeerId peer) {
  context_->note("link up", peer);
  // Those over the link before may be lost.
  send_questions(*links_, peer, context_->windows.questions(peer));
  for (auto& [id, group] : groups_) group->link_up(peer);
}

void EngineCore::link_down(PeerId peer, const std::string& reason, Down how) {
  link_gone(peer);
  context_->note(how == Down::lost ? "link lost" : "link did not come up", peer);
  for (auto& [id, group] : groups_) {
    if (group->needs(peer)) group->link_down(peer, reason, how);
  }
}

/// In the words of the elastic group, else of the oldest one.
void EngineCore::link_trouble(PeerId peer, const std::string& what) {
  const Group* says = nullptr;
  for (const auto& [id, group] : groups_) {
    if (group->needs(peer) && (says == nullptr || id < says->id())) says = group.get();
  }
  log_warning((says == nullptr ? "peer " + context_->name(peer) : says->describe_member(peer)) +
              ": " + what);
}

/// Is this a peer that waits at the door, or waits there no more, as far as this process knows?
/// Nothing that it sends is for a group.
bool EngineCore::is_at_door(PeerId peer) const {
  return elastic_ != nullptr && elastic_->only_tries(peer) && !needed_beside(peer, kElasticGroup);
}

void EngineCore::control_arrived(PeerId peer, std::span<const std::byte> payload) {
  auto decoded = decode_peer_to_peer(payload);
  if (!decoded) {
    log_warning("peer " + context_->name(peer) +
                " sent a message that is dropped: " + decoded.error().text);
    return;
  }
  PeerToPeer message = std::move(decoded).value();
  const GroupId id = group_of(message);
  context_->note(name_of(message), peer, id);
  if (is_at_door(peer)) return answer_at_door(peer, message);
  if (Group* group = find(id)) return group->control(peer, message);
  std::visit([&](const auto& m) { on(peer, m); }, message);
  if (ended_.contains(id)) return answer_ended(peer, message);
  if (id == kElasticGroup || is_sign_of_life(message)) return;
  if (auto kept = context_->keep(peer, kKeptMessageBytes + payload.size())) {
    strangers_[id].push_back(EarlyMessage{peer, std::move(message), std::move(*kept)});
  }
}

/// A newcomer that is not in the newest proposal may not have heard so.
void EngineCore::answer_at_door(PeerId peer, const PeerToPeer& message) {
  const auto* pull = std::get_if<Pull>(&message);
  if (pull == nullptr) return;
  const Error error{ErrorCode::closed, "the newest proposal goes on without this newcomer"};
  links_->send_control(peer, encode(PeerToPeer{PullReply{pull->group, pull->request, error, 0}}));
}

void EngineCore::on(PeerId from, const AskIssued& m) {
  links_->send_control(from, encode(PeerToPeer{TellIssued{m.group, m.op, OpKey{}, 0}}));
  if (m.op == kSignOfLife) return;
  if (auto text = closed_.difference(from, m)) {
    const Error error{ErrorCode::mismatch, std::move(*text)};
    links_->send_control(from, encode(PeerToPeer{OpFailed{m.group, m.op, error}}));
  }
}

void EngineCore::on(PeerId from, const Farewell& m) { closed_.closed_by(from, m.group); }

void EngineCore::on(PeerId from, const Grant& m) { context_->windows.granted(from, m); }

void EngineCore::on(PeerId from, const Accept& m) {
  if (m.complete) context_->windows.received(from, m.group, m.index);
}

Placement EngineCore::segment_header(PeerId peer, const SegmentHeader& header) {
  if (is_at_door(peer)) return {};
  if (Group* group = find(header.group)) return group->segment_header(peer, header);
  if (ended_.contains(header.group) || header.group == kElasticGroup) return {};
  auto kept = context_->keep(peer, kept_cost(header.bytes));
  if (!kept) return {};
  try {
    return early_->place(peer, header, std::move(*kept));
  } catch (const std::bad_alloc&) {
    context_->breaks_rules(peer, no_memory_for("what it sends early"));
    return {};
  }
}

void EngineCore::segment_part(PeerId peer, const SegmentHeader& header, const Placement& at,
                              std::uint32_t offset, std::span<const std::byte> bytes) {
  const auto owner = context_->owners.find(static_cast<std::uint32_t>(at.token));
  if (owner != context_->owners.end()) owner->second->segment_part(peer, header, at, offset, bytes);
}

void EngineCore::segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) {
  if (early_->owns(peer, at)) {
    EarlySegment segment = early_->take(at);
    if (Group* group = find(header.group)) {
      segment.kept.release();
      group->adopt(std::move(segment));
    } else if (!ended_.contains(header.group)) {
      strangers_[header.group].push_back(std::move(segment));
    }
    return;
  }
  const auto owner = context_->owners.find(static_cast<std::uint32_t>(at.token));
  if (owner != context_->owners.end()) owner->second->segment_arrived(peer, header, at);
}

void EngineCore::segment_lost(PeerId peer, const SegmentHeader&, const Placement& at) {
  if (early_->owns(peer, at)) return early_->forget(at);
  const auto owner = context_->owners.find(static_cast<std::uint32_t>(at.token));
  if (owner != context_->owners.end()) owner->second->segment_lost(peer, at);
}

void EngineCore::segment_sent(PeerId peer, std::uint64_t cookie) {
  const MemoryToken token = cookie >> 32;
  const auto owner = context_->owners.find(static_cast<std::uint32_t>(token));
  if (owner == context_->owners.end()) return;
  owner->second->segment_sent(token, peer, static_cast<std::uint32_t>(cookie));
}

}  // namespace pccl
