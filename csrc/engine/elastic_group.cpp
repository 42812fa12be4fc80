#include "engine/elastic_group.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "membership/members.h"
#include "wire/codec.h"

namespace pccl {

namespace {

constexpr const char* kFounds = " founds it when enough peers have come and reach each other";

}  // namespace

ElasticGroup::ElasticGroup(EngineContext& context, const JoinOptions& options,
                           std::shared_ptr<Ticket> joined,
                           std::function<void(const GroupEvent&)> hooks,
                           std::function<void(const Error&)> ended)
    : Group(context, kElasticGroup, "elastic group", GroupKind::elastic),
      options_(options),
      joining_(std::move(joined), {context.options.master_timeout_ms,
                                   context.options.connect_timeout_ms, options.timeout_ms}),
      hooks_(std::move(hooks)),
      ended_(std::move(ended)),
      client_(context, options.masters, options.run,
              {[this] { master_connected(); },
               [this](const std::string& reason, bool news) { master_lost(reason, news); },
               [this](const MasterToPeer& message) {
                 context_.note(name_of(message));
                 if (const auto* proposal = std::get_if<Propose>(&message)) {
                   for (const Member& m : proposal->epoch.members) context_.call(m.handle);
                 }
                 feed(peer::FromMaster{message});
               },
               [this] {
                 return Heartbeat{next_key(),
                                  idleness_.op_overdue(timeout_ms_),
                                  idleness_.step_overdue(timeout_ms_),
                                  exchange_.bytes_received() + state_ticks_,
                                  exchange_.bytes_served(),
                                  exchange_.bytes_offered()};
               }}),
      exchange_(context, kElasticGroup),
      meter_(context, kElasticGroup,
             [this](PeerId peer, std::uint64_t rate, std::uint64_t trip_us) {
               feed(peer::LinkMeasured{peer, rate, trip_us});
             }) {
  const PeerId self = context.links.self();
  core_.run = options.run;
  core_.self.handle.peer = self;
  core_.self.handle.key = context.links.key();
  core_.self.handle.name = context.options.name;
  core_.self.process = context.network.process();
  core_.self.place = options.place;
  core_.self.raises = options.raises;
  if (core_.self.place.replica.empty()) core_.self.place.replica = to_string(self);
  numbering_ = std::make_shared<const std::vector<PeerId>>(std::vector<PeerId>{self});
}

ElasticGroup::~ElasticGroup() {
  if (!end_.over()) end_waits({ErrorCode::closed, "the group has been closed"});
}

void ElasticGroup::join() {
  publish();
  client_.dial();
}

void ElasticGroup::hook(GroupEvent event) {
  event.epoch = run_->id;
  event.members = static_cast<std::int32_t>(members().size());
  if (hooks_) hooks_(event);
}

// ------------------------------------------------------------------------------ events to the core

/// Handles one event at a time: an event that an action causes comes after all actions of the
/// event before.
void ElasticGroup::feed(const peer::Event& event) {
  events_.push_back(event);
  if (feeding_) return;
  feeding_ = true;
  while (!events_.empty()) {
    const peer::Event next = std::move(events_.front());
    events_.pop_front();
    for (const peer::Action& action : peer::step(core_, next)) act(action);
  }
  feeding_ = false;
  settle_returns();
  if (admitted_ && !door_.empty()) come_in();
}

void ElasticGroup::act(const peer::Action& action) {
  std::visit([this](const auto& a) { on(a); }, action);
}

void ElasticGroup::master_connected() {
  Handle& handle = core_.self.handle;
  if (handle.addresses.empty()) {
    std::vector<std::string> hosts = context_.options.advertise;
    if (hosts.empty()) hosts.push_back(client_.local_host());
    for (const std::string& host : hosts) {
      const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
      handle.addresses.push_back(name + ":" + std::to_string(context_.links.port()));
    }
  }
  for (const PeerId peer : keeper_.try_none()) {
    if (!needs(peer)) context_.host.release_link(peer, /*in_order=*/false);
  }
  feed(peer::MasterConnected{});
}

void ElasticGroup::master_lost(const std::string& reason, bool news) {
  if (news) {
    GroupEvent event;
    event.what = GroupEvent::What::master_lost;
    event.text = reason;
    hook(std::move(event));
  }
  publish();
  feed(peer::MasterLost{});
}

void ElasticGroup::link_up(PeerId peer) {
  if (const auto via = context_.links.via(peer)) {
    log_info("peer " + context_.name(peer) + " is reached over peer " + context_.name(*via));
  }
  exchange_.link_up(peer);
  move_links(keeper_.up(peer));
}

void ElasticGroup::link_gone(PeerId peer) {
  Group::link_gone(peer);
  exchange_.link_gone(peer);
  meter_.link_gone(peer);
}

void ElasticGroup::link_down(PeerId peer, const std::string& reason, Down how) {
  exchange_.link_down(peer, reason);
  if (end_.over()) return;
  if (how == Down::spoiled) log_warning(reason + "; the two look for another way");
  const LinkKeeper::Now now{context_.clock.now_ms(), run_->id, core_.stopped, member(peer)};
  const LinkKeeper::Moves moves = keeper_.down(peer, reason, how, now);
  if (moves.again) {
    log_debug("the link to " + describe_peer(peer, *numbering_) + " has closed (" + reason +
              "): dialling again");
  }
  move_links(moves);
}

void ElasticGroup::move_links(const LinkKeeper::Moves& moves) {
  for (const LinkKeeper::Dial& dial : moves.dials) {
    if (dial.via) {
      context_.links.open_via(dial.peer, *dial.via, dial.deadline_ms);
    } else {
      context_.links.open(dial.peer, dial.deadline_ms, false);
    }
  }
  for (const peer::Event& event : moves.events) {
    const auto* up = std::get_if<peer::LinksUp>(&event);
    feed(up == nullptr ? event : peer::LinksUp{up->epoch, trips()});
  }
}

/// Of the links to the members of the newest proposal.
Trips ElasticGroup::trips() const {
  if (!core_.preparing) return {};
  const std::uint32_t group = core_.self.place.rank;
  return trips_along(ring_of(core_.preparing->epoch, group));
}

EpochId ElasticGroup::accepted_epoch() const {
  return core_.accepted ? core_.accepted->id : EpochId{};
}

bool ElasticGroup::accepted_member(PeerId peer) const {
  const std::uint32_t group = core_.self.place.rank;
  return std::any_of(core_.accepted->members.begin(), core_.accepted->members.end(),
                     [&](const Member& m) { return m.peer() == peer && m.place.rank == group; });
}

// ------------------------------------------------------------------------------------------ epochs

void ElasticGroup::on(const peer::ToMaster& a) {
  context_.note(name_of(a.message));
  const auto* hello = std::get_if<Hello>(&a.message);
  if (hello == nullptr) return client_.send(a.message);
  Hello filled = *hello;
  filled.package = context_.options.package;
  filled.host = context_.options.host;
  client_.send(filled);
}

void ElasticGroup::on(const peer::StopData& a) {
  stop_epoch(a.error.failed()
                 ? a.error
                 : Error{ErrorCode::peer_lost,
                         "its epoch has ended before both sides were done: a member "
                         "was lost, has joined or has left, a link between members was "
                         "made anew, or data go round in another order; a new call belongs to the "
                         "next epoch"});
}

void ElasticGroup::on(const peer::Connect& a) {
  for (const Member& m : a.members) {
    addresses_[m.peer()] = m.handle.addresses.empty() ? "" : m.handle.addresses.front();
  }
  // Once a run is founded its members stand still meanwhile: they wait no longer than for a link
  // that has closed.
  const std::uint64_t limit_ms = context_.options.connect_timeout_ms;
  const bool founded = core_.preparing && core_.preparing->epoch.base != EpochId{};
  const std::uint64_t wait_ms = founded ? std::min(limit_ms, kRedialMs) : limit_ms;
  const std::map<PeerId, Handle> before = keeper_.proposed();
  const LinkKeeper::Moves moves = keeper_.propose(a, context_.clock.now_ms(), wait_ms);
  exchange_.sources(keeper_.proposed());
  for (const auto& [peer, handle] : before) {  // of a proposal that has come to nothing
    if (!needs(peer)) context_.host.release_link(peer, /*in_order=*/false);
  }
  end_old_ways();
  move_links(moves);
}

void ElasticGroup::on(const peer::TryLinks& a) {
  for (const Handle& handle : a.open) context_.call(handle);
  const std::uint64_t wait_ms = std::min(context_.options.connect_timeout_ms, kRedialMs);
  const LinkKeeper::Moves moves = keeper_.try_links(a, wait_ms);
  for (const PeerId peer : a.drop) {
    if (!needs(peer)) context_.host.release_link(peer, /*in_order=*/false);
  }
  move_links(moves);
}

/// Ends each link over a relay that goes with this proposal: it would end when the epoch starts, in
/// the middle of operations. `link_down` dials the next way. A fixed group keeps its link as long
/// as the relay serves it.
void ElasticGroup::end_old_ways() {
  const std::map<PeerId, Handle>& proposed = keeper_.proposed();
  for (const auto& [peer, handle] : proposed) {
    const std::optional<PeerId> via = context_.links.via(peer);
    if (!via || proposed.contains(*via) || !context_.links.is_up(peer)) continue;
    if (context_.host.needed_beside(peer, id())) continue;
    context_.links.give_up(peer, "the peer in between leaves the run");
  }
}

void ElasticGroup::on(const peer::Configure& a) {
  ++context_.counters.epochs;
  const std::vector<PeerId> before = members();
  std::vector<PeerId> peers;
  for (const Member& m : a.members) peers.push_back(m.peer());
  set_epoch(a.epoch, std::move(peers), a.relays, a.ring, a.lines);
  for (const Member& m : a.members) keeper_.stop_trying(m.peer());
  for (const PeerId peer : before) {
    if (!member(peer)) {
      keeper_.forget(peer);
      context_.host.release_link(peer, /*in_order=*/false);
    }
  }
  start_messages([this](OpRequest request, std::shared_ptr<Ticket> ticket) {
    start_message(std::move(request), std::move(ticket));
  });
  update_renumber();
  publish();
  GroupEvent event;
  event.lost = a.lost;
  event.joined = a.joined;
  for (const PeerId peer : a.lost) event.lost_names.push_back(context_.name(peer));
  for (const PeerId peer : a.joined) event.joined_names.push_back(context_.name(peer));
  hook(std::move(event));
}

void ElasticGroup::on(const peer::Renumber& a) {
  numbering_ = std::make_shared<const std::vector<PeerId>>(a.pinned);
  update_renumber();
  publish();
}

void ElasticGroup::on(const peer::Greeted& a) {
  const std::string& package = a.welcome.package;
  if (package != context_.options.package && (!welcome_ || package != welcome_->package)) {
    log_info("the master runs pccl " + (package.empty() ? "of an older version" : package) +
             ", this process " + context_.options.package);
  }
  welcome_ = a.welcome;
  if (client_.welcomed(a.welcome)) {
    GroupEvent event;
    event.what = GroupEvent::What::master_back;
    hook(std::move(event));
  }
  publish();
  if (a.welcome.founded && !admitted_) joining_.end({});  // with provisional rank and size
}

void ElasticGroup::on(const peer::WasEvicted& a) {
  GroupEvent event;
  event.what = GroupEvent::What::evicted;
  event.text = a.text;
  hook(std::move(event));
  end({ErrorCode::evicted, "this replica was evicted: " + a.text + "; join again as a newcomer"});
}

void ElasticGroup::on(const peer::WasRefused& a) { end(a.error); }

void ElasticGroup::on(const peer::HasLeft& a) {
  if (end_.over()) return;
  if (a.ended.empty()) {
    end_.leave();
  } else {
    log_info(a.ended);
    end_.finish(a.ended);
  }
  GroupEvent event;
  event.what = GroupEvent::What::left;
  event.text = a.ended;
  hook(std::move(event));
  exchange_.withdraw();
  publish();
  if (stay_.here()) stay_.finish(tell_left());
  end_waits(end_.error());
  release_links(/*in_order=*/true);
  ended_(end_.error());
}

/// The answer to the program at a boundary. A program that has left at once, between two
/// boundaries, gets this answer at its next call of refresh.
BoundaryEvent ElasticGroup::tell_left() {
  said_left_ = true;
  BoundaryEvent finished;
  finished.left = end_.how() == RunEnd::How::left;
  if (!finished.left) finished.ended = end_.error().text;
  finished.step = core_.step;
  finished.voted = true;
  finished.contributors = contributors_.of_step();
  return finished;
}

void ElasticGroup::on(const peer::Say& a) {
  if (a.warning) {
    log_warning(a.text);
  } else {
    log_info(a.text);
  }
  publish();  // the master may have said it
}

/// Nothing of this group can go on: evicted, refused, closed, or without a master for too long.
void ElasticGroup::end(Error error) {
  if (end_.over()) return;
  end_.fail(error);
  if (error.code != ErrorCode::closed) log_warning(error.text);
  end_waits(error);
  release_links(/*in_order=*/error.code == ErrorCode::closed);
  ended_(end_.error());
}

void ElasticGroup::release_links(bool in_order) {
  meter_.stop();
  std::set<PeerId> peers(members().begin(), members().end());
  for (const auto& [peer, handle] : keeper_.proposed()) peers.insert(peer);
  for (const PeerId peer : keeper_.try_none()) peers.insert(peer);
  peers.erase(context_.links.self());
  for (const PeerId peer : peers) context_.host.release_link(peer, in_order);
}

void ElasticGroup::end_waits(const Error& error) {
  end_.fail(error);
  publish();
  joining_.end(error);
  exchange_.withdraw();  // the memory is the program's again, before the program hears of the end
  stay_.fail(error);
  for (Door::Call& waiting : door_.take()) {
    Error own = error;
    own.text = describe(waiting.request.descriptor) + ": " + own.text;
    waiting.ticket->complete(std::move(own));
  }
  client_.close(error);
  exchange_.fail_all(error);
  fail_pending(error);
  for (const Return& one : std::exchange(returns_, {})) one.ticket->complete(error);
}

// ------------------------------------------------------------------------ calls that are passed on

void ElasticGroup::pull(PeerId source, const Digest& digest, std::uint32_t item, Buffer to,
                        std::shared_ptr<Ticket> ticket) {
  // A peer that the newest proposal does not name, or whose link is gone for good, sends nothing
  // any more, and no event will say so.
  const bool coming = keeper_.dialling(source) || context_.links.is_up(source);
  if (!keeper_.proposed().contains(source) || !coming) {
    return ticket->complete({ErrorCode::peer_lost, "the source of the shared state was lost"});
  }
  exchange_.pull(source, digest, item, to, std::move(ticket));
}

void ElasticGroup::cancel_pull(const Ticket& ticket) { exchange_.cancel(ticket); }

void ElasticGroup::leave(bool at_once) {
  if (!end_.over()) feed(peer::WantsToLeave{at_once});
}

void ElasticGroup::store(StoreRequest request, std::shared_ptr<Ticket> ticket) {
  client_.store(std::move(request), std::move(ticket));
}

// ----------------------------------------------------------------------------------------- waiting

void ElasticGroup::tick(std::uint64_t elapsed_ms) {
  client_.tick(elapsed_ms);
  if (end_.over()) return;
  if (core_.hashing || core_.adopting) ++state_ticks_;
  idleness_.tick(elapsed_ms, next_key(), stay_.here() || !ops_.empty(), admitted_ && !holding());
  Group::tick(elapsed_ms);
  settle_returns();
  exchange_.tick(elapsed_ms);
  move_links(keeper_.tell_tried());
  watch_stall(elapsed_ms);
  enter_boundary();
  wait_to_join(elapsed_ms);
  if (end_.failed()) return;
  if (welcome_ && client_.without_ms() >= context_.options.hold_timeout_ms) {
    return end(client_.nobody("for " + seconds(client_.without_ms())));
  }
  wait_at_boundary(elapsed_ms);
  if (end_.failed()) return;
  for (const Door::Call& call : door_.expired(elapsed_ms, timeout_ms_)) {
    call.ticket->complete(
        {ErrorCode::timed_out,
         describe(call.request.descriptor) +
             ": this newcomer was not admitted: no member of the run calls refresh()"});
  }
}

void ElasticGroup::wait_to_join(std::uint64_t elapsed_ms) {
  // A member goes on holding: what is said before a handshake has ended proves nothing.
  if (!welcome_ && client_.is_kept_out()) return end(client_.nobody("lets this process in"));
  const JoinWait::Seen seen{welcome_.has_value(), client_.has_failed(), client_.is_refused()};
  switch (joining_.tick(elapsed_ms, seen)) {
    case JoinWait::Verdict::none:
      return;
    case JoinWait::Verdict::say_no_master:
      return log_warning(client_.nobody("yet").text + "; trying for " +
                         seconds(joining_.left_ms()) + " more (PCCL_CONNECT_TIMEOUT_S)");
    case JoinWait::Verdict::say:
      return log_info("waiting up to " + seconds(options_.timeout_ms) +
                      " for the run to be founded: the master at " + client_.masters_text() +
                      kFounds);
    case JoinWait::Verdict::no_master:
      return end(
          client_.nobody("within " + seconds(joining_.waited_ms()) + " (PCCL_CONNECT_TIMEOUT_S)"));
    case JoinWait::Verdict::not_founded:
      return end({ErrorCode::timed_out,
                  "the run was not founded within " + std::to_string(options_.timeout_ms) +
                      " ms: the master at " + client_.masters_text() + kFounds + client_.told()});
  }
}

void ElasticGroup::watch_stall(std::uint64_t elapsed_ms) {
  if (holding()) return;
  const std::uint64_t limit_ms = context_.options.stall_timeout_ms;
  const Stall::Findings found = stall_.watch(
      ops_, {run_->id, context_.links.self(), context_.links.segment_bytes_received(), elapsed_ms,
             limit_ms, core_.started && core_.started->members.size() == 2});
  if (found.operation == nullptr) return;
  const Pending& pending = *found.operation;
  for (const PeerId peer : found.ask) ask_issued(pending, peer);
  const std::string reason = "it has moved no data of " + describe_op(pending) + " for " +
                             seconds(limit_ms) + " (PCCL_STALL_TIMEOUT_S)";
  for (const Stall::Fault& fault : found.faults) {
    if (fault.again) {
      feed(peer::LinkFailed{run_->id, fault.peer, reason + ", also over a new link"});
    } else {
      log_warning(describe_peer(fault.peer, *pending.numbering) + ": " + reason +
                  "; the link to it is made anew");
      context_.links.give_up(fault.peer, reason);
    }
  }
}

bool ElasticGroup::holding() const { return !client_.connected() || core_.stopped; }

std::string ElasticGroup::no_commit_text() const {
  if (!client_.connected()) return "this process has no connection to the master";
  if (core_.stopped) return "the members of the run change";
  return "the master is reached, and other members have not told it that they are done "
         "(pccl-master --status names them)";
}

bool ElasticGroup::needs(PeerId peer) const {
  return !end_.over() && (member(peer) || keeper_.proposed().contains(peer) || keeper_.tries(peer));
}

bool ElasticGroup::only_tries(PeerId peer) const {
  return keeper_.tries(peer) && !member(peer) && !keeper_.proposed().contains(peer);
}

void ElasticGroup::close() { fail({ErrorCode::closed, "the group has been closed"}); }

void ElasticGroup::abort(const std::string& why) {
  fail({ErrorCode::closed, "the group has been aborted" + (why.empty() ? "" : ": " + why)});
}

void ElasticGroup::fail(Error error) {
  if (end_.over()) return;
  if (client_.connected()) feed(peer::SaysBye{program_failure_});
  end(std::move(error));
}

Result<std::vector<Handle>> ElasticGroup::handles(const std::vector<PeerId>& peers) const {
  if (end_.over()) return end_.error();
  if (!core_.started) {
    return {ErrorCode::not_admitted,
            "this peer has not been admitted yet: call refresh() before a group is made"};
  }
  std::vector<Handle> handles;
  for (const PeerId peer : peers) {
    for (const Member& m : core_.started->members) {
      if (m.peer() == peer) handles.push_back(m.handle);
    }
    if (handles.empty() || handles.back().peer != peer) {
      return {ErrorCode::peer_lost, describe_peer(peer, peers) +
                                        " was lost, and the run goes on without this rank: make "
                                        "the group after the next boundary, which numbers the "
                                        "ranks anew"};
    }
  }
  return handles;
}

bool ElasticGroup::sibling(PeerId peer) const {
  const Place& mine = core_.self.place;
  if (mine.size == 1 || !core_.started) return false;
  const auto& members = core_.started->members;
  return std::any_of(members.begin(), members.end(), [&](const Member& m) {
    return m.peer() == peer && m.place.replica == mine.replica && m.place.attempt == mine.attempt;
  });
}

GroupView ElasticGroup::view() const {
  GroupView view;
  view.elastic = true;
  view.epoch = run_->id;
  view.step = core_.step;
  view.numbering = numbering_;
  view.ring = std::make_shared<const std::vector<PeerId>>(run_->ring);
  view.lines = run_->lines;
  view.admitted = admitted_;
  view.left = end_.in_order();
  view.without_master = !client_.in_charge();
  view.told = client_.reason();
  if (const auto& ranks = contributors_.so_far()) {
    view.contributors = std::make_shared<const std::vector<std::uint32_t>>(*ranks);
  }
  view.evicted = end_.error().code == ErrorCode::evicted;
  if (end_.failed()) view.failure = end_.error();
  if (!admitted_ && welcome_) {
    view.rank = static_cast<std::int32_t>(welcome_->provisional_rank);
    view.size = static_cast<std::int32_t>(welcome_->provisional_size);
  } else {
    const auto at = std::find(numbering_->begin(), numbering_->end(), context_.links.self());
    view.rank = static_cast<std::int32_t>(at - numbering_->begin());
    view.size = static_cast<std::int32_t>(numbering_->size());
  }
  return view;
}

}  // namespace pccl
