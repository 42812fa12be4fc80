#include "engine/fixed_group.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "base/text.h"
#include "membership/members.h"
#include "membership/trips.h"
#include "wire/cbor.h"
#include "wire/codec.h"

namespace pccl {
namespace {

// Limits of the failures that other ranks report of operations which this rank has not called yet.
constexpr std::size_t kFailedAheadMax = 4096;
constexpr std::size_t kFailedAheadTextMax = 512;
constexpr std::size_t kDialTextMax = 512;  // of what a line says of dials

constexpr const char* kSilent = "it has given no sign of life for ";

}  // namespace

FixedGroup::FixedGroup(EngineContext& context, GroupId id, const std::string& name,
                       std::vector<Handle> members, std::int32_t rank, std::uint64_t timeout_ms,
                       std::shared_ptr<Ticket> connected, GroupKind kind)
    : Group(context, id, "group " + name, kind),
      handles_(std::move(members)),
      rank_(rank),
      connect_timeout_ms_(timeout_ms),
      connected_(std::move(connected)) {
  PCCL_ASSERT(kind != GroupKind::elastic, id.value);
  std::vector<PeerId> peers;
  for (const Handle& handle : handles_) {
    peers.push_back(handle.peer);
    addresses_[handle.peer] = handle.addresses.empty() ? "" : handle.addresses.front();
    context_.call(handle);
  }
  numbering_ = std::make_shared<const std::vector<PeerId>>(peers);
  set_epoch(EpochId::make(0, 1), std::move(peers));
}

FixedGroup::~FixedGroup() {
  if (connected_) connected_->complete({ErrorCode::closed, "the group has been closed"});
  if (stopped()) return;  // the engine is broken
  fail_pending({ErrorCode::closed, "the group has been closed"});
  run_->flow.close();
  run_->point_to_point.close();
  for (const PeerId peer : members()) {
    const bool over = failure_.failed() || departed_.contains(peer);
    if (over && !context_.links.is_up(peer)) {
      context_.windows.forget(peer, id_);
    } else {
      send_questions(context_.links, peer, context_.windows.questions(peer, id_));
    }
  }
}

void FixedGroup::connect() {
  publish();
  for (const Handle& handle : handles_) {
    if (handle.peer != context_.links.self()) awaited_.insert(handle.peer);
  }
  if (awaited_.empty()) return links_may_be_up();
  // A link that the run makes anew keeps the run's time, and its way over a third member: the run
  // waits for its end, and decides by it what becomes of the peer.
  Links& links = context_.links;
  const std::uint64_t limit_ms =
      of_run() ? std::min(connect_timeout_ms_, kRedialMs) : connect_timeout_ms_;
  for (const Handle& handle : handles_) {
    const PeerId peer = handle.peer;
    if (peer == links.self() || (of_run() && !links.is_up(peer) && links.via(peer))) continue;
    links.open(handle, limit_ms, true);
  }
}

void FixedGroup::link_up(PeerId peer) { no_longer_awaited(peer); }

void FixedGroup::no_longer_awaited(PeerId peer) {
  awaited_.erase(peer);
  links_may_be_up();
}

/// None where the line of a third member would carry what two exchange.
std::optional<Trips> FixedGroup::trips() const {
  for (const PeerId peer : members()) {
    if (context_.links.via(peer)) return {};
  }
  return trips_along(run_->ring);
}

void FixedGroup::tell_others(const PeerToPeer& message) {
  for (const PeerId peer : members()) {
    if (peer == context_.links.self() || departed_.contains(peer)) continue;
    context_.links.send_control(peer, encode(message));
  }
}

void FixedGroup::links_may_be_up() {
  const PeerId self = context_.links.self();
  if (!connected_ || !awaited_.empty() || trips_.contains(self)) return;
  const std::optional<Trips> own = trips();
  trips_.emplace(self, own);
  say_waiting_ms_ = waited_ms_ + kSayWaitingMs;
  tell_others(Connected{id_, own});
  all_may_be_connected();
}

/// A member that has left before it was connected has told nobody, else all: its messages have an
/// order.
void FixedGroup::all_may_be_connected() {
  if (!connected_ || !trips_.contains(context_.links.self())) return;
  std::vector<Trips> said;
  bool all = true;
  for (const PeerId peer : members()) {
    const auto trips = trips_.find(peer);
    if (trips != trips_.end()) {
      all = all && trips->second.has_value();
      said.push_back(trips->second.value_or(Trips{}));
    } else if (!departed_.contains(peer)) {
      return;
    }
  }
  if (all) run_->lines = lines_of_all(said, /*mbit=*/0);  // a ring in rank order
  publish();
  now_connected();
}

std::string FixedGroup::text_of_sites() const {
  const Sites& sites = run_->lines.sites;
  if (sites.size() != handles_.size()) return "";  // none, or a rank has left before it said any
  std::vector<std::uint32_t> ranks(sites.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return "; they stand at " + sites_text(sites, ranks);
}

void FixedGroup::now_connected() {
  if (!of_run() && !std::exchange(context_.said_fixed, true) && rank_ == 0) {
    log_info(name_ + " runs over pccl " + context_.options.package + ": " +
             count_of(handles_.size(), "rank") + ", a fixed group; this process is rank 0 (" +
             context_.name(context_.links.self()) + ")" + text_of_sites());
  }
  std::exchange(connected_, nullptr)->complete({});
}

/// A link that was there before this group may have been lost before, too, at one of its ends or at
/// both: while the group is being made each is dialled anew once, by the run where it is the run's.
/// A peer that is dead refuses.
bool FixedGroup::dials_again(PeerId peer) {
  if (!connected_ || departed_.contains(peer) || trips_.contains(peer)) return false;
  if (context_.host.is_sibling(peer) || !dialled_again_.insert(peer).second) return false;
  awaited_.insert(peer);
  trips_.erase(context_.links.self());  // the peer has perhaps not heard that this one is connected
  if (of_run()) return true;
  const auto handle = std::find_if(handles_.begin(), handles_.end(),
                                   [&](const Handle& one) { return one.peer == peer; });
  context_.links.open(*handle, connect_timeout_ms_ - std::min(waited_ms_, connect_timeout_ms_),
                      true);
  return true;
}

void FixedGroup::link_down(PeerId peer, const std::string& reason, Down how) {
  if (failure_.failed()) return;
  if (how == Down::lost && dials_again(peer)) return;
  if (of_run() && connected_ && how == Down::unopened) return;  // over a third member, or never
  const std::string who = describe_peer(peer, *numbering_);
  const bool left = departed_.contains(peer);  // it may have, before we are connected to the rest
  // The loss of a sibling is this process's eviction, also while a group of the two is made.
  const bool evicts = how != Down::unopened && context_.host.is_sibling(peer);
  const bool never_up =
      how == Down::lost ? awaited_.contains(peer) : !dialled_again_.contains(peer);
  if (!left && connected_ && !of_run() && !evicts && never_up) {
    fail_group({ErrorCode::unreachable, who + " cannot be reached: " + reason}, true);
    return;
  }
  if (!left) {
    fail_group(lost(peer, reason), true, peer);
    return;
  }
  const Error error{ErrorCode::peer_lost,
                    who + " has left the group before its data arrived: " + reason};
  gone_.emplace(peer, error);
  fail_short_of_data();
  run_->point_to_point.peer_gone(peer, error);
  no_longer_awaited(peer);
}

/// After a rank has left in good order, and its link is gone, only what still waits for its data
/// has a reason to fail, whenever it begins.
void FixedGroup::fail_short_of_data() {
  std::map<OpKey, Error> fails;
  for (const auto& [key, pending] : ops_) {
    if (!pending.op->running()) continue;
    for (const std::uint32_t c : pending.op->waiting_for()) {
      const auto gone = gone_.find(pending.contributors[c]);
      if (gone != gone_.end()) fails.emplace(key, gone->second);
    }
  }
  for (const auto& [key, error] : fails) fail_op(key, error, Tell::others);
}

void FixedGroup::lost_by_run(PeerId peer) {
  if (of_run() && connected_ && member(peer) && !departed_.contains(peer)) {
    fail_group(lost(peer, "the run goes on without it"), true, peer);
  }
}

void FixedGroup::run_over(const Error& error) {
  if (!of_run() || !connected_) return;
  if (error.code == ErrorCode::evicted) return fail_group(error, true);
  give_up_making(error);
}

/// Whatever ends it here, the others lose a member.
void FixedGroup::give_up_making(const Error& error) {
  if (!connected_ || failure_.failed()) return;
  std::exchange(connected_, nullptr)->complete({error.code, name_ + ": " + error.text});
  fail_group({ErrorCode::peer_lost, describe_peer(context_.links.self(), *numbering_) +
                                        " does not make this group any more: " + error.text},
             true);
}

Error FixedGroup::departure(PeerId peer) const {
  return {ErrorCode::peer_lost,
          describe_peer(peer, *numbering_) +
              " has left the group (destroy_process_group, or the end of its program) after " +
              std::to_string(departed_.at(peer).index) + " operations"};
}

std::optional<Error> FixedGroup::departure(OpKey key) const {
  for (const auto& [peer, finished] : departed_) {
    if (!(key < finished)) return departure(peer);
  }
  return {};
}

/// Fails the calls that wait for messages which a rank had not begun to send when it left.
void FixedGroup::fail_departed() {
  const bool all = departed_.size() + 1 == numbering_->size();
  for (const auto& [peer, finished] : departed_) {
    run_->point_to_point.peer_left(peer, departure(peer), all);
  }
}

bool FixedGroup::refuses(OpKind kind, const std::shared_ptr<Ticket>& ticket) const {
  if (!closed_ && !failure_.failed()) return false;
  Error error = closed_ ? Error{ErrorCode::closed, "the group has been closed"} : failure_;
  error.text = name_ + ": " + std::string(kind_name(kind)) + ": " + error.text;
  ticket->complete(std::move(error));
  return true;
}

void FixedGroup::issue_message(OpRequest request, std::shared_ptr<Ticket> ticket) {
  const OpKind kind = request.descriptor.kind;
  if (refuses(kind, ticket)) return;
  if (request.timeout_ms == 0) request.timeout_ms = timeout_ms_;
  if (kind == OpKind::send) {
    const PeerId to = request.numbering->at(static_cast<std::size_t>(request.peer));
    if (departed_.contains(to)) {
      return ticket->complete({ErrorCode::peer_lost, "send: " + departure(to).text});
    }
  }
  run_->point_to_point.post(std::move(request), std::move(ticket));
  if (kind == OpKind::recv) fail_departed();
}

void FixedGroup::issue(OpRequest request, std::shared_ptr<Ticket> ticket) {
  const OpKey key = next_key();
  ++next_;
  if (refuses(request.descriptor.kind, ticket)) return;
  run_->flow.issued(next_key());
  add(key, std::move(request), std::move(ticket), numbering_);
  if (const auto failed = failed_ops_.find(key); failed != failed_ops_.end()) {
    const Error error = failed->second;
    failed_ops_.erase(failed);
    fail_op(key, error, Tell::nobody);
  } else if (late_failure_.failed()) {
    fail_op(key, std::exchange(late_failure_, {}), Tell::others_late);
  } else if (const auto left = departure(key)) {
    fail_op(key, *left, Tell::others);
  } else {
    run(key);
  }
}

void FixedGroup::op_complete(Pending& pending) { finish(pending.op->key(), {}); }

void FixedGroup::op_mismatch(OpKey op, PeerId, const std::string& text) {
  const Error error{ErrorCode::mismatch, text};
  fail_op(op, error, Tell::others);
  fail_late(op, error);  // where it has succeeded here
}

void FixedGroup::op_starved(Pending& pending, const Error& error) {
  fail_op(pending.op->key(), error, Tell::others);
}

void FixedGroup::fail_op(OpKey op, Error error, Tell tell) {
  if (tell != Tell::nobody) {
    const OpFailed message{id_, op, error, tell == Tell::others_late};
    tell_others(message);
  }
  const Pending* pending = ops_.find(op);
  if (pending == nullptr && !(op < next_key())) {
    error.text = std::string(cbor::cut_utf8(error.text, kFailedAheadTextMax));
    failed_ops_.emplace(op, std::move(error));
    if (failed_ops_.size() > kFailedAheadMax) failed_ops_.erase(std::prev(failed_ops_.end()));
    return;
  }
  if (pending == nullptr) return;
  known_to_fail(op);
  error.text = name_ + ": " + describe_wait(*pending) + ": " + error.text;
  run_->early.drop(op);
  finish(op, std::move(error));
}

void FixedGroup::known_to_fail(OpKey op) {
  failed_here_.insert(op);
  if (failed_here_.size() > kReportOpsMax) failed_here_.erase(failed_here_.begin());
}

/// There is a difference in what this rank has completed: who only sends is done before anybody has
/// looked at it. Its program hears of it from its next operation, at all ranks alike.
void FixedGroup::fail_late(OpKey op, Error error) {
  if (error.code != ErrorCode::mismatch || failed_here_.contains(op)) return;
  known_to_fail(op);
  error.text = "operation " + numbered(op) + ", which this rank had completed: " + error.text;
  const Pending* next = ops_.after(op);  // operations that were called before `op` go on
  if (next == nullptr) {
    late_failure_ = std::move(error);
  } else {
    fail_op(next->key(), std::move(error), Tell::others_late);
  }
}

void FixedGroup::fail_group(Error error, bool tell, PeerId lost) {
  if (failure_.failed()) return;
  failure_ = error;
  if (tell) tell_others(GroupFailed{id_, error});
  const bool is_loss = error.code == ErrorCode::peer_lost || error.code == ErrorCode::evicted;
  const bool said = is_loss && !context_.is_news(lost);
  log(said ? LogLevel::debug : LogLevel::warning, name_ + ": " + error.text);
  error.text = name_ + ": " + error.text;
  end_waits(error);
}

void FixedGroup::end_waits(const Error& error) {
  if (!failure_.failed()) failure_ = error;
  questions_.clear();
  publish();
  if (connected_) std::exchange(connected_, nullptr)->complete(error);
  fail_pending(error);
}

Error FixedGroup::lost(PeerId peer, const std::string& reason) const {
  const std::string text = describe_peer(peer, *numbering_) + " was lost: " + reason;
  if (context_.host.is_sibling(peer)) {
    return {ErrorCode::evicted, text + "; its replica goes as a whole, and this process with it"};
  }
  return {ErrorCode::peer_lost, text + "; the group cannot go on"};
}

void FixedGroup::fail(Error error) { fail_group(std::move(error), true); }

// ---------------------------------------------------------------------------------------- messages

void FixedGroup::control(PeerId peer, const PeerToPeer& message) {
  if (member(peer)) Group::control(peer, message);
}

void FixedGroup::on(PeerId from, const Connected& m) {
  if (failure_.failed()) {  // perhaps before the link was up
    return context_.links.send_control(from, encode(PeerToPeer{GroupFailed{id_, failure_}}));
  }
  trips_.emplace(from, m.trips);
  all_may_be_connected();
}

void FixedGroup::on(PeerId from, const Farewell& m) {
  departed_[from] = m.finished;
  silent_ms_.erase(from);
  std::vector<OpKey> ended;
  for (const auto& [key, pending] : ops_) {
    if (!(key < m.finished)) {
      ended.push_back(key);
    } else if (pending.asked) {  // that was perhaps before the peer had called anything
      ask_issued(pending, from);
    }
  }
  for (const OpKey key : ended) fail_op(key, *departure(key), Tell::others);
  fail_departed();
  all_may_be_connected();
}

void FixedGroup::on(PeerId from, const GroupFailed& m) {
  if (failure_.failed() || departed_.contains(from)) return;
  if (connected_) tell_others(m);            // may not have a link to the sender
  if (m.error.code == ErrorCode::evicted) {  // its replica; perhaps not this one
    return fail_group(lost(from, m.error.text), false);
  }
  fail_group(
      {m.error.code, m.error.text + " (reported by " + describe_peer(from, *numbering_) + ")"},
      false);
}

void FixedGroup::on(PeerId, const OpFailed& m) {
  if (m.op < next_key() && ops_.find(m.op) == nullptr) {
    if (!m.late) fail_late(m.op, m.error);
  } else {
    fail_op(m.op, m.error, Tell::nobody);
  }
}

void FixedGroup::on(PeerId from, const TellIssued& m) {
  silent_ms_.erase(from);
  answered_.insert(from);
  const auto it = questions_.find(m.op);
  if (it == questions_.end()) return;
  it->second.unanswered.erase(from);
  if (!(m.op < m.issued)) it->second.missing.insert(from);
  if (it->second.unanswered.empty()) {
    auto node = questions_.extract(it);
    answer(node.key(), node.mapped());
  }
}

// --------------------------------------------------------------------------------------- time-outs

void FixedGroup::op_timed_out(Pending& pending) {
  Question question;
  for (const PeerId peer : pending.contributors) {
    if (peer == context_.links.self() || departed_.contains(peer)) continue;
    question.unanswered.insert(peer);
    ask_issued(pending, peer);
  }
  questions_[pending.op->key()] = std::move(question);
}

void FixedGroup::answer(OpKey op, Question& question) {
  const Pending* pending = ops_.find(op);
  if (pending == nullptr) return;
  std::string late;
  const auto list = [&](const std::set<PeerId>& peers, const std::string& what) {
    if (peers.empty()) return;
    std::string who;
    for (const PeerId peer : peers) add_to_list(who, describe_peer(peer, *numbering_));
    add_to_list(late, who + " " + what, "; ");
  };
  list(question.missing, "did not call it");
  list(question.unanswered, "did not answer");
  if (!late.empty()) {
    std::set<PeerId> came(members().begin(), members().end());
    for (const auto& peers : {question.missing, question.unanswered}) {
      for (const PeerId peer : peers) came.erase(peer);
    }
    list(came, "called it");
  } else if (pending->op->waits_for_inputs()) {
    late = "the device of " + describe_peer(context_.links.self(), *numbering_) +
           " has not computed its part";
  } else {
    late = "all ranks called it, but its data did not arrive in time";
  }
  for (const PeerId peer : pending->contributors) {
    const std::string known = context_.links.trouble_text(peer);
    if (!known.empty()) late += "; " + describe_peer(peer, *numbering_) + ": " + known;
  }
  fail_group({ErrorCode::timed_out,
              describe_op(*pending) + " did not finish within its timeout of " +
                  std::to_string(pending->op->request().timeout_ms) + " ms: " + late},
             true);
}

void FixedGroup::tick(std::uint64_t elapsed_ms) {
  if (failure_.failed()) return;
  look_at_wait(elapsed_ms);
  if (failure_.failed()) return;
  Group::tick(elapsed_ms);
  if (!gone_.empty()) fail_short_of_data();
  std::vector<OpKey> over;
  for (auto& [op, question] : questions_) {
    question.waited_ms += elapsed_ms;
    if (question.waited_ms >= kMissingReplyMs || question.unanswered.empty()) over.push_back(op);
  }
  for (const OpKey op : over) {
    auto node = questions_.extract(op);
    if (!node.empty()) answer(op, node.mapped());
  }
  look_for_life(elapsed_ms);
}

/// While the group is being made. Links that are not the run's have their own limit.
void FixedGroup::look_at_wait(std::uint64_t elapsed_ms) {
  if (!connected_) return;
  waited_ms_ += std::min(elapsed_ms, kProbeMs);  // a late tick is our own silence
  const bool linked = awaited_.empty();
  // A member whose links do not come up says why itself, before that.
  const std::uint64_t margin_ms = linked ? std::min(2 * kHandshakeMs, connect_timeout_ms_ / 8) : 0;
  const std::uint64_t limit_ms = connect_timeout_ms_ + margin_ms;
  const bool over = (of_run() || linked) && waited_ms_ >= limit_ms;
  if (!over && waited_ms_ < say_waiting_ms_) return;
  say_waiting_ms_ = 2 * waited_ms_;
  std::string whom;
  std::string dials;
  for (const PeerId peer : members()) {
    const bool late =
        linked ? !trips_.contains(peer) && !departed_.contains(peer) : awaited_.contains(peer);
    if (!late) continue;
    add_to_list(whom, describe_peer(peer, *numbering_));
    const std::string seen = linked ? "" : context_.links.opening_text(peer);
    if (!seen.empty() && dials.size() < kDialTextMax) add_to_list(dials, seen, "; ");
  }
  if (!dials.empty()) dials = ": " + cut_at_word(dials, kDialTextMax);
  if (!over) {
    return log_info(name_ + ": waiting for " +
                    (linked ? whom + " to make this group" : "a connection with " + whom + dials));
  }
  const std::string within = " within " + seconds(waited_ms_);
  fail_group(linked
                 ? Error{ErrorCode::timed_out,
                         whom + " did not make this group, or has not all links for it," + within}
                 : Error{ErrorCode::unreachable, "no connection with " + whom + within + dials},
             true);
}

/// A late rank answers: its program is elsewhere, but its engine is there. A rank that does not
/// answer has stopped.
void FixedGroup::look_for_life(std::uint64_t elapsed_ms) {
  const bool waits = connected_ ? awaited_.empty() : !ops_.empty() || !run_->point_to_point.idle();
  if (!waits) {
    silent_ms_.clear();
    since_probe_ms_ = 0;
    return;
  }
  const std::uint64_t counted = std::min(elapsed_ms, kProbeMs);  // a late tick is our own silence
  const std::uint64_t limit = context_.options.silence_timeout_ms;
  for (auto& [peer, ms] : silent_ms_) {
    ms += counted;
    if (ms < limit) continue;
    std::string why = kSilent + seconds(ms) + " (PCCL_SILENCE_TIMEOUT_S)";
    const std::string known = context_.links.trouble_text(peer);
    add_to_list(why, known, known.empty() ? "" : "; ");
    fail_group(lost(peer, why), true, peer);
    return;
  }
  since_probe_ms_ += elapsed_ms;
  if (since_probe_ms_ < kProbeMs) return;
  since_probe_ms_ = 0;
  for (const PeerId peer : members()) {
    if (peer == context_.links.self() || departed_.contains(peer)) continue;
    // Until its program asks for the link, a peer does not read what comes over it. (A member of a
    // run has asked.)
    const bool reads = of_run() || trips_.contains(peer) || answered_.contains(peer);
    if (!connected_ || reads) silent_ms_.try_emplace(peer, 0);
    AskIssued probe;
    probe.group = id_;
    probe.op = kSignOfLife;
    context_.links.send_control(peer, encode(PeerToPeer{probe}));
  }
}

// --------------------------------------------------------------------------------------------- end

ClosedGroup FixedGroup::last_words() {
  ClosedGroup closed{id_, take_completed(), describe_peer(context_.links.self(), *numbering_), {}};
  if (closed_ || failure_.failed()) return closed;
  for (const PeerId peer : members()) {
    if (departed_.contains(peer) || !context_.links.is_up(peer)) continue;
    closed.others.emplace(peer, describe_peer(peer, *numbering_));
  }
  return closed;
}

void FixedGroup::close() {
  if (closed_) return;
  closed_ = true;
  if (!failure_.failed()) {
    run_->point_to_point.withdraw_all({ErrorCode::peer_lost, "it has left the group"});
    const OpKey finished = ops_.empty() ? next_key() : ops_.begin()->first;
    tell_others(Farewell{id_, finished});
  }
  end_waits({ErrorCode::closed, name_ + ": the group has been closed"});
}

void FixedGroup::abort(const std::string& why) {
  fail_group({ErrorCode::closed, describe_peer(context_.links.self(), *numbering_) +
                                     " has aborted the group" + (why.empty() ? "" : ": " + why)},
             true);
}

bool FixedGroup::needs(PeerId peer) const { return !closed_ && member(peer); }

GroupView FixedGroup::view() const {
  GroupView view;
  view.rank = rank_;
  view.size = static_cast<std::int32_t>(handles_.size());
  view.epoch = run_->id;
  view.numbering = numbering_;
  view.lines = run_->lines;
  view.failure = closed_ ? Error{ErrorCode::closed, "the group has been closed"} : failure_;
  return view;
}

}  // namespace pccl
