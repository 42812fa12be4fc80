// A peer's side of membership and commit: boundaries, proposals, messages. The outcomes of
// operations are in peer_ops.cpp. The reasoning behind each rule is in docs/architecture/rules.md.
#include "membership/peer.h"

#include <utility>

#include "base/assert.h"
#include "membership/members.h"
#include "membership/peer_ops.h"

namespace pccl::peer {
namespace {

void tell(const State& s, PeerToMaster message, Actions& out) {
  if (s.connected && !s.over) out.push_back(ToMaster{std::move(message)});
}

/// The newest epoch that this peer has heard of. Reports about links name this epoch.
EpochId newest_epoch(const State& s) {
  EpochId id;
  if (s.started) id = std::max(id, s.started->id);
  if (s.accepted) id = std::max(id, s.accepted->id);
  if (s.preparing) id = std::max(id, s.preparing->epoch.id);
  return id;
}

Vote vote_of(const State& s) { return Vote{s.step, s.vote, s.root, s.finish}; }

bool is_epoch(const std::optional<Epoch>& epoch, EpochId id) { return epoch && epoch->id == id; }

// ------------------------------------------------------------------------------------ boundaries

void enter(State& s, std::uint64_t step) {
  s.step = step;
  s.next = 0;
  s.ops.clear();
  s.pending = 0;
  s.committed_below = OpKey{step, 0};
  s.vote = VoteKind::none;
  s.voting = s.at_boundary = s.at_door = s.hashing = s.verify = s.root_known = s.adopting = false;
  s.finish = false;
  s.boundary_kind = VoteKind::none;
  s.root = StateRoot{};
  s.flags.erase(s.flags.begin(), s.flags.lower_bound(step));
}

/// True: the boundary of this step votes, by records that are the same at every member. A step
/// without a record, or with a failure in it, votes, and so does the first boundary of a run. (A
/// failure in a later step, which others have reached, is no reason: they have passed this
/// boundary.)
bool must_vote(const State& s) {
  if (s.verify || s.finish || s.passed == 0) return true;
  if (s.failure && s.failure->from.step <= s.step) return true;
  const auto flag = s.flags.find(s.step);
  return flag == s.flags.end() || flag->second;
}

/// The program is in refresh or resume: passes the boundary, or votes, as soon as that is possible.
void stand(State& s, Actions& out) {
  if (!s.at_boundary || s.over || s.vote != VoteKind::none || s.pending > 0) return;
  if (s.started) {
    if (!s.voting && !must_vote(s)) {
      enter(s, s.step + 1);
      out.push_back(EnterStep{s.step, false, false, StateRoot{}});
      return;
    }
    s.voting = true;
  } else if (s.at_door) {
    return;
  }
  if (s.boundary_kind == VoteKind::refresh && !s.root_known) {
    if (!s.hashing) out.push_back(HashState{});
    s.hashing = true;
    return;
  }
  if (s.started) {
    s.vote = s.boundary_kind;
    tell(s, vote_of(s), out);
  } else {
    s.at_door = true;
    tell(s, Knock{s.root}, out);
  }
}

void on(State& s, const AtBoundary& e, Actions& out) {
  if (s.at_boundary || s.over) return;
  s.at_boundary = true;
  s.boundary_kind = e.kind;
  s.verify = e.verify;
  s.finish = e.finish && s.started;  // a newcomer has nothing to finish
  s.root_known = e.has_root;
  s.root = e.has_root ? e.root : StateRoot{};
  // A program that only calls resume has no boundaries: its rank and size go on changing when
  // operations return.
  if (e.kind == VoteKind::refresh) s.has_boundaries = true;
  stand(s, out);
}

void on(State& s, const RootKnown& e, Actions& out) {
  if (!s.hashing) return;
  s.hashing = false;
  s.root_known = true;
  s.root = e.root;
  stand(s, out);
}

// ------------------------------------------------------------------------------------- proposals

/// Answers the proposal when the links are up and the peer holds the state.
void answer_if_ready(State& s, Actions& out) {
  if (!s.preparing || !s.links_up || !s.synced) return;
  if (s.preparing->epoch.boundary) {
    s.agreed = s.preparing->sync ? s.preparing->sync->root : StateRoot{};
  }
  s.why = std::move(s.preparing->why);
  s.accepted_mark = s.preparing->mark;
  s.accepted = std::move(s.preparing->epoch);
  s.preparing.reset();
  tell(s, Ready{s.accepted->id, report_of(s), s.trips}, out);
}

/// The members that this peer reaches over a relay in this epoch, each with its relay.
std::map<PeerId, PeerId> vias(const State& s, const Epoch& epoch) {
  std::map<PeerId, PeerId> out;
  for (const Relay& relay : epoch.relays) {
    if (relay.a == s.self.peer()) out[relay.b] = relay.via;
    if (relay.b == s.self.peer()) out[relay.a] = relay.via;
  }
  return out;
}

/// Compares the state of this peer with the one that the proposal asks for; fetches that one if
/// they differ.
void compare(State& s, Actions& out) {
  if (s.adopting) return;  // Fetched will call it again
  const std::optional<SyncPlan>& sync = s.preparing->sync;
  s.synced = !sync || !sync->root.present || (s.root_known && s.root == sync->root);
  if (!s.synced) out.push_back(Fetch{s.preparing->epoch.id, *sync});
  answer_if_ready(s, out);
}

void on_master(State& s, const Propose& m, Actions& out) {
  const EpochId id = m.epoch.id;
  if (s.accepted && id <= s.accepted->id) return;  // of an older master
  if (s.preparing && id <= s.preparing->epoch.id) return;
  if (!contains(m.epoch.members, s.self.peer())) return;
  if (s.started && !s.stopped) out.push_back(StopData{});
  s.stopped = true;
  s.synced = false;
  s.preparing = m;
  for (const Member& member : m.epoch.members) {
    s.group_of[member.peer()] = member.place.rank;
    s.names[member.peer()] = name_of(member.handle);
  }

  std::vector<Member> others = peer_group(m.epoch.members, s.self.place.rank);
  std::erase_if(others, [&](const Member& member) { return member.peer() == s.self.peer(); });
  s.links_up = others.empty();
  s.trips = {};
  out.push_back(Connect{id, std::move(others), vias(s, m.epoch)});

  compare(s, out);
}

void on(State& s, const LinksUp& e, Actions& out) {
  if (!s.preparing || s.preparing->epoch.id != e.epoch) return;
  s.links_up = true;
  s.trips = e.trips;
  answer_if_ready(s, out);
}

/// The shared state of this peer has changed: the next election must know.
void tell_root(const State& s, Actions& out) {
  if (s.vote != VoteKind::none) tell(s, vote_of(s), out);
  if (s.at_door) tell(s, Knock{s.root}, out);
}

/// A fetch takes long, and there may be a newer proposal by now. A Ready promises the state that
/// the peer holds, so only a fetch for the newest proposal may replace the state.
void on(State& s, const Verified& e, Actions& out) {
  if (s.over || !s.at_boundary || s.adopting) return;
  const bool asks = s.preparing && !s.synced && s.preparing->sync;
  const bool right = asks && s.preparing->sync->root == e.root;
  if (!right) return;
  s.adopting = true;
  out.push_back(Adopt{});
}

void on(State& s, const Fetched& e, Actions& out) {
  if (s.over || !s.at_boundary) return;
  s.adopting = false;
  const bool changed = !s.root_known || s.root != e.root;
  s.root = e.root;
  s.root_known = true;
  const bool asked = s.preparing && !s.synced;
  if (asked) compare(s, out);
  const bool ready = asked && !s.preparing;  // Ready has said it
  if (changed && !ready) tell_root(s, out);
}

void on(State& s, const LinkFailed& e, Actions& out) {
  const Epoch* epoch = nullptr;
  if (is_epoch(s.started, e.epoch) && !s.stopped) epoch = &*s.started;
  if (is_epoch(s.accepted, e.epoch)) epoch = &*s.accepted;
  if (s.preparing && s.preparing->epoch.id == e.epoch) epoch = &s.preparing->epoch;
  if (epoch == nullptr) return;
  tell(s, Cannot{e.epoch, e.peer, cut_text(e.reason), vias(s, *epoch)[e.peer]}, out);
}

void on(State& s, const LinkClosed& e, Actions& out) {
  const EpochId id = newest_epoch(s);
  if (id != EpochId{}) tell(s, Suspect{id, e.peer, e.refused}, out);
}

void on(State& s, const LinkBack& e, Actions& out) {
  const EpochId id = newest_epoch(s);
  if (id != EpochId{}) tell(s, Relinked{id, e.peer}, out);
}

void on(State& s, const LinksTried& e, Actions& out) {
  Tried said;
  for (const TriedLink& link : e.links) {
    said.links.push_back({link.peer, link.reason.substr(0, kTriedReasonBytesMax)});
    if (said.links.size() == kTriedLinksMax) tell(s, std::exchange(said, {}), out);
  }
  if (!said.links.empty()) tell(s, std::move(said), out);
}

void on_master(State& s, const Try& m, Actions& out) {
  TryLinks links{m.open, m.drop};
  std::erase_if(links.open, [&](const Handle& peer) { return peer.peer == s.self.peer(); });
  out.push_back(std::move(links));
}

/// Only links of the epoch that runs are measured; the master asks again where none is.
void on_master(State& s, const Measure& m, Actions& out) {
  const auto group = s.group_of.find(m.peer);
  const bool mate = s.started && !s.stopped && s.here.contains(m.peer) && m.peer != s.self.peer() &&
                    group != s.group_of.end() && group->second == s.self.place.rank;
  if (mate) {
    out.push_back(MeasureLink{m.peer, m.known});
  } else {
    tell(s, Measured{m.peer, 0, 0}, out);
  }
}

void on(State& s, const LinkMeasured& e, Actions& out) {
  tell(s, Measured{e.peer, e.rate, e.trip_us}, out);
}

// ------------------------------------------------------------------------------------------ Start

/// Logs one line for an epoch: in the master's words, if these are about the epoch in which this
/// peer was before. Of epochs of the same members that follow one another for the same reason (a
/// program that has each boundary vote) the first has a line.
void say_changes(State& s, const Configure& change, const std::optional<Epoch>& before,
                 Actions& out) {
  const std::string head = "epoch " + to_string(change.epoch) + ", " +
                           count_of(s.started->members.size(), "member") + ": ";
  if (!before) {
    out.push_back(Say{false, head + "this peer is " + name_of(s.started->members, s.self)});
    return;
  }
  const bool same = change.lost.empty() && change.joined.empty();
  const std::string said = std::exchange(s.said_why, same ? s.why : "");
  if (same && (s.why.empty() || s.why == said)) return;
  if (same || (before->id == s.started->base && !s.why.empty())) {
    out.push_back(Say{false, head + s.why});
    return;
  }
  std::vector<Change> gone;
  std::vector<Change> come;
  for (const Member& m : before->members) {
    if (!s.here.contains(m.peer())) gone.push_back({&m, "is not a member any more", ""});
  }
  for (const Member& m : s.started->members) {
    if (!contains(before->members, m.peer())) come.push_back({&m, "joined", ""});
  }
  std::vector<std::string> texts = texts_of(before->members, gone);
  for (std::string& text : texts_of(s.started->members, come)) texts.push_back(std::move(text));
  if (!s.why.empty()) texts.push_back("the newest change: " + s.why);
  out.push_back(Say{false, head + joined(texts)});
}

void configure(State& s, const std::optional<Epoch>& before, const Lines& lines, Actions& out) {
  Configure change{s.started->id, peer_group(s.started->members, s.self.place.rank), {}, {}, {}};
  for (const Relay& relay : s.started->relays) {
    if (contains(change.members, relay.a)) change.relays.push_back(relay);
  }
  change.ring = ring_of(*s.started, s.self.place.rank);
  change.lines = lines;
  std::set<PeerId> previous;
  if (before) {
    for (const Member& m : before->members) {
      previous.insert(m.peer());
      if (!s.here.contains(m.peer())) change.lost.push_back(m.peer());
    }
    for (const Member& m : s.started->members) {
      if (!previous.contains(m.peer())) change.joined.push_back(m.peer());
    }
  }
  say_changes(s, change, before, out);
  out.push_back(std::move(change));
}

/// Start: every operation in flight gets its verdict, in program order; the rest is restored and
/// runs again in the new epoch.
void begin(State& s, const Start& start, Actions& out) {
  const Verdict& verdict = start.verdict;
  const bool first = !s.started;
  const std::optional<Epoch> before = std::move(s.started);
  s.started = s.accepted;
  s.stopped = false;
  s.here.clear();
  for (const Member& m : s.started->members) s.here.insert(m.peer());
  configure(s, before, start.lines, out);

  // An operation that was issued after Ready may have failed at this peer alone; no verdict knows
  // this failure. It stays until a voted boundary clears it.
  const std::optional<Failure> own = std::exchange(s.failure, verdict.failure);
  const bool stays = own && own->from.step >= verdict.passed;
  if (stays) set_failure(s, *own);
  // Newcomers know none of before a voted boundary: nothing that was said of later steps counts.
  if (verdict.passed > s.passed) s.flags.clear();
  for (const StepFlag& flag : verdict.flags) s.flags[flag.step] = flag.votes;
  decide_all(s, verdict, before, out);

  // Between two voted boundaries the numbering stays, also where this peer's has moved on by
  // Returned.
  const bool voted = s.vote != VoteKind::none && verdict.passed > s.step;
  if (first || verdict.passed > s.passed) {
    s.pinned = verdict.pinned;
    s.numbered_in = s.started->boundary ? s.started->id : EpochId{};  // of an older one
    s.pinned_in = s.numbered_in;
    s.renumber.clear();
    out.push_back(Renumber{own_group(s, s.pinned)});
  }
  s.passed = verdict.passed;
  const auto over = [&](const auto& entry) {
    return !s.here.contains(entry.first) &&
           std::find(s.pinned.begin(), s.pinned.end(), entry.first) == s.pinned.end();
  };
  std::erase_if(s.group_of, over);
  std::erase_if(s.names, over);

  if (first && s.passed == 0 && s.at_boundary) {
    // The program called refresh before the run was founded: this is its first boundary, which
    // votes.
    s.at_door = false;
    s.step = 0;
    stand(s, out);
  } else if (first || voted) {
    enter(s, s.passed);
    const bool boundary = !first || s.passed > 0;
    out.push_back(
        EnterStep{s.step, !first, first && s.passed > 0, boundary ? s.agreed : StateRoot{}});
  } else {
    stand(s, out);
  }
}

void on_master(State& s, const Start& m, Actions& out) {
  if (!is_epoch(s.accepted, m.epoch) || (s.started && s.started->id >= m.epoch)) return;
  if (s.preparing || s.adopting) return;  // a newer proposal has come since
  begin(s, m, out);
  s.started_mark = m.mark == Digest{} ? s.accepted_mark : m.mark;  // of an older master
}

/// Nothing more comes from this group: every pending operation gets its outcome, tensors restored.
void finish(State& s, const Error& error, Actions& out) {
  if (s.started && !s.stopped) out.push_back(StopData{error});
  s.stopped = s.over = true;
  s.preparing.reset();
  fail_all(s, error, out);
}

void on_master(State& s, const Commit& m, Actions& out) {
  if (!is_epoch(s.started, m.epoch)) return;
  for (const OpKey key : m.ops) {
    // A commit in this epoch needs this peer's own Done, and there was none: the master is wrong,
    // and this peer leaves it.
    const auto op = s.ops.find(key);
    if (op == s.ops.end() || op->second.phase != Phase::issued) continue;
    const std::string text = "the master says that operation " + to_string(key) +
                             " is committed, which this peer has not completed";
    finish(s, Error{ErrorCode::malformed, text}, out);
    out.push_back(WasEvicted{text});
    return;
  }
  for (const StepFlag& flag : m.flags) {
    if (flag.step >= s.step) s.flags[flag.step] = flag.votes;
  }
  for (const OpKey key : m.ops) commit(s, key, out);
  stand(s, out);
}

void on_master(State& s, const pccl::FailOp& m, Actions& out) {
  if (!is_epoch(s.started, m.epoch) || s.stopped) return;
  fail_from(s, m.failure, out);
  stand(s, out);
}

// -------------------------------------------------------------------------- the end, and the rest

void on_master(State& s, const Evicted& m, Actions& out) {
  finish(s, Error{ErrorCode::evicted, m.text}, out);
  out.push_back(WasEvicted{m.text});
}

void on_master(State& s, const Left& m, Actions& out) {
  if (!m.ended.empty()) {
    if (std::vector<PeerId> last = own_group(s, m.members); !last.empty()) {
      const PeerId self = s.self.peer();
      // A peer that was lost at that boundary gets the last rank, behind the members that finished.
      if (std::find(last.begin(), last.end(), self) == last.end()) last.push_back(self);
      out.push_back(Renumber{std::move(last)});
    }
    finish(s, Error{ErrorCode::closed, m.ended}, out);
    out.push_back(HasLeft{m.ended});
    return;
  }
  // A peer that leaves at a boundary has no operation pending. A peer that leaves at once may have
  // issued one since its wish. In any other case the run has gone on before this peer came to the
  // boundary.
  finish(s,
         s.at_once ? Error{ErrorCode::closed, "this replica has left the run at once, as it wished"}
                   : Error{ErrorCode::evicted,
                           "the run has gone on without this peer, which wished to leave"},
         out);
  out.push_back(HasLeft{});
}

void on_master(State& s, const Refuse& m, Actions& out) {
  const Error error = m.ended ? Error{ErrorCode::run_ended, m.error.text} : m.error;
  finish(s, error, out);
  out.push_back(WasRefused{error});
}

void on_master(State&, const Welcome& m, Actions& out) { out.push_back(Greeted{m}); }
void on_master(State&, const Status&, Actions&) {}  // a peer asks for no status
void on_master(State&, const Hold& m, Actions& out) { out.push_back(Say{true, m.text}); }
void on_master(State&, const Heartbeat&, Actions&) {}
void on_master(State&, const StoreReply&, Actions&) {}

void on(State& s, const FromMaster& e, Actions& out) {
  if (!s.connected || s.over) return;
  std::visit([&](const auto& message) { on_master(s, message, out); }, e.message);
}

void on(State& s, const MasterConnected&, Actions& out) {
  if (s.over) return;
  s.connected = true;
  s.preparing.reset();  // a proposal of another connection comes again, under a new number
  const bool door = s.at_door && !s.started;
  Hello hello{s.run, s.self, report_of(s), door, door ? s.root : StateRoot{}};
  hello.started_mark = s.started_mark;
  hello.accepted_mark = s.accepted_mark;
  tell(s, std::move(hello), out);
}

void on(State& s, const MasterLost&, Actions&) {
  s.connected = false;
  s.preparing.reset();
}

void on(State& s, const Issued& e, Actions& out) { issue(s, e, out); }

void on(State& s, const Completed& e, Actions& out) {
  if (s.over || s.stopped || !s.started) return;  // the epoch has ended
  if (complete(s, e.op)) tell(s, Done{s.started->id, {e.op}}, out);
}

void on(State& s, const Returned& e, Actions& out) { returned(s, e.op, e.in, out); }

void on(State& s, const TimedOut& e, Actions& out) {
  if (!s.started || s.stopped) return;  // time-outs stand still while no epoch is in force
  const auto op = s.ops.find(e.op);
  const bool waits = (op != s.ops.end() && is_pending(op->second)) ||
                     (s.vote != VoteKind::none && e.op == next_key(s));
  if (waits) tell(s, Expired{s.started->id, e.op}, out);
}

void on(State& s, const FoundMismatch& e, Actions& out) {
  if (!s.started || s.stopped) return;  // found again when the operation runs again
  // An operation that is done here may be committed by now, and other members may have passed the
  // next boundary.
  const auto op = s.ops.find(e.op);
  if (op == s.ops.end() || op->second.phase != Phase::issued) return;
  tell(s, Mismatch{s.started->id, e.op, Error{e.code, cut_text(e.text)}}, out);
}

void on(State& s, const WantsToLeave& e, Actions& out) {
  if (s.over || (s.leaving && (s.at_once || !e.at_once))) return;
  s.leaving = true;
  s.at_once = e.at_once;
  if (s.started) {
    tell(s, Leave{s.at_once}, out);
    return;
  }
  tell(s, Bye{}, out);  // a newcomer leaves without a boundary
  finish(s, Error{ErrorCode::closed, "this peer has left the run"}, out);
  out.push_back(HasLeft{});
}

void on(State& s, const SaysBye& e, Actions& out) {
  if (s.over) return;
  tell(s, Bye{cut_text(e.failure)}, out);
  finish(s, Error{ErrorCode::closed, "this peer has said goodbye"}, out);
}

}  // namespace

Actions step(State& state, const Event& event) {
  Actions out;
  // No default case: an event without its `on` does not compile.
  std::visit([&](const auto& e) { on(state, e, out); }, event);
  return out;
}

std::vector<Member> peer_group(const std::vector<Member>& members, std::uint32_t group) {
  std::vector<Member> mates;
  for (const Member& m : members) {
    if (m.place.rank == group) mates.push_back(m);
  }
  return mates;
}

}  // namespace pccl::peer
