// Which epoch is next, and its way into the register. Only its start (starts.cpp) changes anything.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {

void drop_proposal(State& s) {
  s.proposal.reset();
  s.ready.clear();
  s.plans.clear();
  s.leavers.clear();
}

namespace {

/// The epoch that should come next, by what the master knows now.
struct Next {
  std::vector<Member> members;
  bool boundary = false;
  std::map<std::uint32_t, SyncPlan> plans;
  std::set<PeerId> leavers;
  bool finishes = false;  // no epoch is next: `members` finish the run
};

bool contains_relays(const std::vector<Relay>& all, const std::vector<Relay>& some) {
  return std::all_of(some.begin(), some.end(), [&](const Relay& relay) {
    return std::find(all.begin(), all.end(), relay) != all.end();
  });
}

/// The newest voted boundary that the register or a connected peer knows. Votes for earlier steps
/// do not count.
std::uint64_t newest_passed(const State& s) {
  std::uint64_t passed = s.held->passed;
  for (const auto& [p, peer] : s.peers) {
    if (peer.report.started) passed = std::max(passed, peer.report.passed);
  }
  return passed;
}

bool has_voted(const Report& r, std::uint64_t passed) {
  return r.started && r.vote != VoteKind::none && r.step >= passed;
}

bool all_voted(const State& s, const std::vector<Member>& members) {
  const std::uint64_t passed = newest_passed(s);
  return std::all_of(members.begin(), members.end(), [&](const Member& m) {
    return has_voted(s.peers.at(m.peer()).report, passed);
  });
}

void remove(std::vector<Member>& members, const std::set<PeerId>& peers) {
  std::erase_if(members, [&](const Member& m) { return peers.contains(m.peer()); });
}

/// A newcomer whose own state is ahead comes from another run, or from a later checkpoint.
std::set<PeerId> refuse_ahead(State& s, const std::vector<Member>& newcomers, const Next& next,
                              Actions& out) {
  std::set<PeerId> refused;
  if (s.held->passed == 0) return refused;
  for (const Member& m : newcomers) {
    const auto plan = next.plans.find(m.place.rank);
    const StateRoot& mine = s.peers.at(m.peer()).door_root;
    if (plan == next.plans.end() || !mine.present) continue;
    if (mine.revision <= plan->second.root.revision) continue;
    const std::string text = "this peer's state has revision " + std::to_string(mine.revision) +
                             ", that of the run has " + std::to_string(plan->second.root.revision) +
                             ": it comes from another run, or from a later checkpoint";
    send(s, m.peer(), Refuse{Error{ErrorCode::refused, text}}, out);
    out.push_back(Close{m.peer()});
    out.push_back(warning_of(s, m.peer(), "refused " + name(s, m.peer()) + ": " + text));
    refused.insert(m.peer());
  }
  for (const PeerId p : refused) forget(s, p, "refused", out);
  return refused;
}

/// Decides which members vote, which newcomers are admitted, which members leave, and which shared
/// state all will hold. `alive` is not empty.
Next next_epoch(State& s, const std::vector<Member>& alive, Actions& out) {
  Next next;
  const EpochId newest = newest_started(s, alive);
  std::vector<Member> newcomers = door(s);
  std::vector<Member> voters = alive;
  std::set<PeerId> strangers;
  bool admits = true;
  if (newest == EpochId{}) {
    // No member has started an epoch: the founding, or the last boundary, goes on. A founding
    // admits no peer that has called refresh: its program is past the place where founders begin.
    next.boundary = true;
    admits = s.held->passed > 0;
    if (admits) next.plans = elect(s, voters);
  } else {
    // A member that has started no epoch goes on only if it is a member of the newest epoch that
    // others have started. Else it is a stranger.
    const std::set<PeerId> begun_with = members_of_started(s, alive, newest);
    for (const Member& m : alive) {
      const bool begun = s.peers.at(m.peer()).report.started.has_value();
      if (!begun && !begun_with.contains(m.peer())) strangers.insert(m.peer());
    }
    remove(voters, strangers);
    next.boundary = all_voted(s, voters);
    next.finishes = next.boundary && all_finish(s, voters);
    if (next.finishes) {
      next.members = std::move(voters);
      return next;
    }
    if (next.boundary) {
      next.leavers = who_leaves(s, voters);
      remove(voters, next.leavers);
      // One member that says so does not keep the states of the others from being made equal.
      const auto resuming = std::count_if(voters.begin(), voters.end(), [&](const Member& m) {
        return s.peers.at(m.peer()).report.vote == VoteKind::resume;
      });
      admits = 2 * static_cast<std::size_t>(resuming) < voters.size();
      if (admits) next.plans = elect(s, voters);
    } else if (s.at_once) {
      next.leavers = who_leaves_at_once(s, voters);
      remove(voters, next.leavers);
    }
  }
  next.members = whole(voters);  // a member that lies may have named a part of a replica
  if (!next.boundary || !admits) return next;
  // Strangers are members of the register's epoch, and keep their place in the list.
  next.members = alive;
  remove(next.members, next.leavers);
  remove(newcomers, refuse_ahead(s, newcomers, next, out));
  newcomers = whole(std::move(newcomers));
  next.members.insert(next.members.end(), newcomers.begin(), newcomers.end());
  return next;
}

void propose(State& s, Next next, Actions& out) {
  drop_proposal(s);
  ++s.counter;
  const EpochId base = s.held->epoch ? s.held->epoch->id : EpochId{};
  s.proposal = Epoch{EpochId::make(s.held->incarnation, s.counter),
                     std::move(next.members),
                     base,
                     next.boundary,
                     {},
                     {}};
  s.proposal->relays = relays(s, s.proposal->members);
  s.proposal->ring = rings(s, s.proposal->members);
  s.plans = std::move(next.plans);
  s.leavers = std::move(next.leavers);
  s.running = false;
  s.holding = false;
  std::string why = joined(changes(s, own(s), s.proposal->members));
  const bool reorders = own(s) != nullptr && s.proposal->ring != own(s)->ring;
  if (why.empty() && next.boundary) {
    why = "a boundary votes";
    if (reorders) why += ", and data go round in another order";
    if (compares_states(*s.held)) why += ": the states are compared after the first step";
  }
  if (why.empty() && s.tried && !who_leaves(s, s.proposal->members).empty()) {
    why = "a member has issued an operation: members that wish to leave do so at the boundary";
  }
  if (why.empty()) why = "the members are the same, a connection was made anew";
  for (const auto& [group, mates] : by_group(s.proposal->members)) {
    Propose message{*s.proposal, std::nullopt, why};
    const auto plan = s.plans.find(group);
    if (plan != s.plans.end()) message.sync = plan->second;
    send_all(s, mates, std::move(message), out);
  }
}

/// The plan still names the right state, and every source still holds that state. (A source may
/// have fetched another state for a proposal that was dropped, before it heard of this one.)
bool still_right(const SyncPlan& plan, const SyncPlan& now) {
  return plan.root == now.root &&
         std::all_of(plan.sources.begin(), plan.sources.end(), [&](PeerId source) {
           return std::find(now.sources.begin(), now.sources.end(), source) != now.sources.end();
         });
}

bool still_right(const State& s, const Next& next) {
  if (!s.proposal || s.proposal->boundary != next.boundary) return false;
  if (s.proposal->members != next.members || s.leavers != next.leavers) return false;
  if (s.plans.size() != next.plans.size()) return false;
  if (!contains_relays(s.proposal->relays, relays(s, next.members))) return false;
  return std::equal(s.plans.begin(), s.plans.end(), next.plans.begin(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && still_right(a.second, b.second);
                    });
}

void found(State& s, Actions& out) {
  std::erase_if(s.cannot, [&](const auto& pair) {
    return !s.peers.contains(pair.first) || !s.peers.contains(pair.second);
  });
  forget_reached(s);
  if (s.founding_delay) return drop_proposal(s);
  Next next{door(s), true, {}, {}};
  const auto is_enough = [&] {
    return !next.members.empty() && replicas(next.members) >= s.config.min_peers;
  };
  if (s.asked.let_in && !is_enough()) {
    // Those that are ready are too few: there is no run for another one's sake.
    s.asked = {};
    s.origins.clear();
    next.members = door(s);
  }
  const bool enough = is_enough();
  if (!s.unknown.empty() || !enough) {
    drop_proposal(s);
    hold_founders(s, out);
  } else if (!still_right(s, next)) {
    drop_proposal(s);
    if (may_propose_founders(s, next.members.size())) propose(s, std::move(next), out);
  }
}

void nobody_is_left(State& s, Actions& out) {
  drop_proposal(s);
  if (nobody_can_come_back(s) || s.config.refound) {
    say_all_are_gone(s, out);
    write_over(s, out);
  } else if (!s.refounding) {
    s.refounding = true;
    stand_still(s, TimerKind::refound, out);
    out.push_back(Say{true, standstill(s)});
    tell_newcomers(s, out);
  }
}

/// Too few replicas for the next step: the boundary stays open. Members that leave need not wait
/// for it.
void hold(State& s, const Next& next, Actions& out) {
  drop_proposal(s);
  s.asked = {};  // no Start may come for long: the door is open again
  for (const PeerId p : next.leavers) {
    out.push_back(Say{false, name(s, p) + " left"});
    let_go(s, p, out);
    if (Seat* seat = seat_of(s, p)) seat->said = true;
  }
  s.holds_with = replicas(next.members);
  if (s.holding) return;
  s.holding = true;
  const std::string text = "the run holds at its boundary: " + std::to_string(s.holds_with) +
                           " of the " + count_of(s.config.hold_below, "replica") + " that it needs";
  out.push_back(Say{true, text});
  for (const Member& m : next.members) {
    if (is_own_member(s, m.peer())) send(s, m.peer(), Hold{text}, out);
  }
}

}  // namespace

bool awaits(const State& s) {
  if (!is_awaited(s)) return false;
  const std::set<PeerId> out = excluded(s);
  return std::any_of(s.seats.begin(), s.seats.end(), [&](const auto& entry) {
    return entry.second.awaited && !out.contains(entry.first);
  });
}

bool somebody_has_not_voted(State& s) {
  const std::vector<Member>& members = own(s)->members;
  const std::uint64_t passed = s.held->passed;
  // Begins at the member that was found the last time, so that all votes of a boundary cost one
  // round.
  for (std::size_t i = 0; i < members.size(); ++i) {
    s.unvoted = s.unvoted < members.size() ? s.unvoted : 0;
    const auto peer = s.peers.find(members[s.unvoted].peer());
    if (peer != s.peers.end() && !has_voted(peer->second.report, passed)) return true;
    ++s.unvoted;
  }
  return false;
}

void reconsider(State& s, Actions& out) {
  if (!s.holds || s.writing) return;
  if (own(s) == nullptr) {
    found(s, out);
    return;
  }
  const std::set<PeerId> must_go = let_try_again(s);
  if (s.running && !s.proposal && going_on(s, must_go).size() == own(s)->members.size() &&
      !all_voted(s, own(s)->members)) {
    if (!try_at_once(s)) return;  // all is well
  }
  const std::vector<Member> alive = survivors(s);
  if (std::exchange(s.deserted, alive.empty()) && !alive.empty()) wait_for_others(s, out);
  if (awaits(s)) {
    drop_proposal(s);  // a running epoch goes on committing
    return;
  }
  if (s.patient && !is_awaited(s) && s.unknown.empty()) {
    s.patient = false;
    out.push_back(StopTimer{TimerKind::patience, {}});
  }
  s.running = false;
  evict_foreign(s, alive, out);
  if (!s.unknown.empty()) {
    drop_proposal(s);
    return;
  }
  if (alive.empty()) {
    nobody_is_left(s, out);
    return;
  }
  Next next = next_epoch(s, alive, out);
  const bool begun = std::any_of(alive.begin(), alive.end(), [&](const Member& m) {
    return s.peers.at(m.peer()).report.started.has_value();
  });
  if (next.finishes) {
    write_ending(s, next.members, out);
  } else if (begun && !next.leavers.empty() && next.leavers.size() == alive.size()) {
    drop_proposal(s);
    for (const PeerId p : next.leavers) s.seats.at(p).departed = true;
    write_over(s, out);  // all leave: the run is over
  } else if (begun && next.boundary && replicas(next.members) < s.config.hold_below) {
    hold(s, next, out);
  } else if (next.members.empty()) {
    drop_proposal(s);
  } else if (!still_right(s, next)) {
    propose(s, std::move(next), out);
  }
}

namespace {

/// The members of the proposal that it admits: they have begun nothing, and are no members of the
/// newest epoch that others have started.
std::vector<PeerId> admitted_by_proposal(const State& s) {
  std::set<PeerId> members;
  if (own(s) != nullptr) {
    const std::vector<Member> alive = survivors(s);
    const EpochId newest = newest_started(s, alive);
    if (newest != EpochId{}) members = members_of_started(s, alive, newest);
  }
  std::vector<PeerId> admitted;
  for (const Member& m : s.proposal->members) {
    const bool begun = s.peers.at(m.peer()).report.started.has_value();
    if (!begun && !members.contains(m.peer())) admitted.push_back(m.peer());
  }
  return admitted;
}

}  // namespace

void write_proposal(State& s, Actions& out) {
  std::optional<Lie> lie = find_lie(s, *s.proposal);
  const Numbering numbering = numbering_of(s, *s.proposal);
  const Judgement verdict = lie ? Judgement{} : judge(s, *s.proposal, numbering);
  if (!lie) lie = find_excess(s, s.proposal->members, verdict);
  if (lie) {
    out.push_back(warning_of(s, lie->peer, "evicted " + name(s, lie->peer) + ": " + lie->why));
    drop_proposal(s);
    expel(s, lie->peer, lie->why, out);
    reconsider(s, out);
    return;
  }
  Register to = *s.held;
  to.epoch = s.proposal;
  to.over = false;
  to.passed = numbering.passed;
  to.pinned = numbering.pinned;
  Numbering earlier;
  if (s.proposal->boundary) earlier = numbering_before(s, *s.proposal);
  to.before_passed = earlier.passed;
  to.before_pinned = std::move(earlier.pinned);
  to.admitted = s.proposal->boundary ? admitted_by_proposal(s) : std::vector<PeerId>{};
  out.push_back(WriteRegister{*s.held, to});
  s.writing = std::move(to);
}

void write_over(State& s, Actions& out, std::optional<Ending> ended) {
  drop_proposal(s);
  s.running = false;
  Register to = *s.held;
  to.over = true;
  to.ended = ended;
  out.push_back(WriteRegister{*s.held, to});
  s.writing = std::move(to);
}

void let_go(State& s, PeerId p, Actions& out) {
  send(s, p, Left{}, out);
  out.push_back(Close{p});
  forget(s, p, "left", out);
  if (Seat* seat = seat_of(s, p)) seat->departed = seat->expelled = true;
}

void index_members(State& s) {
  s.seats.clear();
  s.groups.clear();
  s.commit_step.clear();
  if (const Epoch* epoch = own(s)) {
    for (const Member& m : epoch->members) s.seats[m.peer()].group = m.place.rank;
    s.groups = by_group(epoch->members);
  }
}

std::map<std::uint32_t, std::vector<PeerId>> by_group(const std::vector<Member>& members) {
  std::map<std::uint32_t, std::vector<PeerId>> groups;
  for (const Member& m : members) groups[m.place.rank].push_back(m.peer());
  return groups;
}

}  // namespace pccl::master
