// Which epoch is next, its way into the register, and its start. Only Start changes anything.
#include <algorithm>
#include <utility>

#include "base/assert.h"
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

/// Why a member is not in the next epoch.
Change departure(const State& s, const Member& member, const std::set<PeerId>& must_go) {
  const PeerId p = member.peer();
  const Seat* seat = seat_of(s, p);
  const bool departed = seat != nullptr && seat->departed && !seat->failed;
  if (s.leavers.contains(p) || departed) return {&member, "left", ""};
  if (seat != nullptr && seat->of_mate) return {&member, "lost", ""};
  if (seat != nullptr && !seat->reason.empty()) return {&member, "lost", seat->reason};
  if (must_go.contains(p)) return {&member, "lost", "it cannot reach another member"};
  return {&member, "lost", s.peers.contains(p) ? "" : "it did not come back"};
}

/// A line for each member that comes or goes from `before` to `members`; one line for all ranks of
/// a replica.
std::vector<std::string> changes(const State& s, const Epoch* before,
                                 const std::vector<Member>& members) {
  std::vector<std::string> lines;
  std::set<PeerId> known;
  if (before != nullptr) {
    const std::set<PeerId> must_go = excluded(s);
    std::set<PeerId> now;
    for (const Member& m : members) now.insert(m.peer());
    std::vector<Change> gone;
    for (const Member& m : before->members) {
      known.insert(m.peer());
      if (!now.contains(m.peer())) gone.push_back(departure(s, m, must_go));
    }
    lines = texts_of(before->members, gone);
  }
  std::vector<Change> come;
  for (const Member& m : members) {
    if (!known.contains(m.peer())) come.push_back({&m, "joined", ""});
  }
  const std::vector<std::string> newcomers = texts_of(members, come);
  lines.insert(lines.end(), newcomers.begin(), newcomers.end());
  return lines;
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
  const bool turns = own(s) != nullptr && s.proposal->ring != own(s)->ring;
  if (why.empty() && next.boundary) {
    why = turns ? "a boundary votes, and data go round in another order" : "a boundary votes";
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

void let_go(State& s, PeerId p, Actions& out) {
  send(s, p, Left{}, out);
  out.push_back(Close{p});
  forget(s, p, "left", out);
  if (Seat* seat = seat_of(s, p)) seat->departed = seat->expelled = true;
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
  if (s.holding) return;
  s.holding = true;
  const std::string text =
      "the run holds at its boundary: " + std::to_string(replicas(next.members)) + " of the " +
      count_of(s.config.hold_below, "replica") + " that it needs";
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

namespace {

using Seats = std::map<PeerId, Seat>;

/// Replaces the state of the former epoch by that of the register's. Returns the former seats.
Seats change_epoch(State& s, Actions& out) {
  for (const auto& [p, seat] : s.seats) await_no_more(s, p, out);
  if (s.patient) out.push_back(StopTimer{TimerKind::patience, {}});
  if (s.refounding) out.push_back(StopTimer{TimerKind::refound, {}});
  s.patient = s.refounding = s.holding = s.deserted = false;
  s.accusations.clear();
  s.asked = {};
  s.trials_changed = true;
  s.failure.reset();
  s.done.clear();
  s.retried.clear();
  s.at_once = false;
  drop_proposal(s);
  Seats before = std::move(s.seats);
  index_members(s);
  return before;
}

/// The peers that have departed, by the seats of an epoch that is over.
std::set<PeerId> departed(const Seats& seats) {
  std::set<PeerId> out;
  for (const auto& [p, seat] : seats) {
    if (seat.departed) out.insert(p);
  }
  return out;
}

/// Why `p`, a member of the epoch of `seats`, is gone; empty: not known.
std::string reason_of(const Seats& seats, PeerId p) {
  const auto seat = seats.find(p);
  return seat == seats.end() ? "" : seat->second.reason;
}

/// Why the replica of `member`, which is connected, has to go: names the rank of it that is lost.
/// `before`: the members of the replica's last epoch.
std::string lost_of_replica(const Member& member, const std::vector<Member>& before,
                            const Seats& seats) {
  for (const Member& m : before) {
    const std::string reason = reason_of(seats, m.peer());
    if (reason.empty() || replica_of(m) != replica_of(member)) continue;
    const auto& addresses = m.handle.addresses;
    const std::string where = addresses.empty() ? "" : " at " + printable(addresses.front());
    return "rank " + std::to_string(m.place.rank) + " of its replica (" + name_of(m.handle) +
           where + ") was lost: " + reason + "; its replica goes as a whole";
  }
  return "another rank of its replica was lost";
}

/// Tells the peers that have started an epoch of the run, or had to go, and are no members now,
/// that they are out.
void dismiss(State& s, const std::set<PeerId>& leavers, const std::vector<Member>& before,
             const Seats& seats, const std::string& what, Actions& out) {
  give_up_apart(s, out);
  const std::set<PeerId> must_go = excluded(s);
  std::vector<PeerId> others;
  for (const auto& [p, peer] : s.peers) {
    if (!is_own_member(s, p) && (peer.report.started || must_go.contains(p))) others.push_back(p);
  }
  const auto why = [&](PeerId p) -> std::string {
    const std::string reason = reason_of(seats, p);
    if (!reason.empty()) return reason;
    if (must_go.contains(p)) {
      const std::string apart = why_apart(s, p);
      return apart.empty() ? "another rank of its replica cannot reach another member" : apart;
    }
    return lost_of_replica(s.peers.at(p).member, before, seats);
  };
  for (const PeerId p : others) {
    if (leavers.contains(p)) {
      let_go(s, p, out);
      continue;
    }
    evict(s, p, what + ": " + why(p), out);
  }
}

/// Counts one loss for each replica, however many ranks it has.
void count_losses(State& s, const std::vector<Member>& before, const std::vector<Member>& now) {
  std::set<PeerId> here;
  for (const Member& m : now) here.insert(m.peer());
  for (const Member& m : before) {
    if (m.place.rank == 0 && !here.contains(m.peer()) && !s.left.contains(m.peer())) {
      count_loss(s, m);
    }
  }
}

/// What this master knows of the steps and links of a run that is over, or that it has adopted.
void forget_run(State& s) {
  s.cannot.clear();
  s.useless.clear();
  s.flags.clear();
  s.newest_commit.clear();
  s.committed.clear();
  s.tried.reset();
  s.brought_step = 0;
  s.sites_told.clear();
}

/// How the epoch differs from the one before: members, relays, rings.
void say_start(State& s, const Epoch* before, const Epoch& epoch, Actions& out) {
  const std::string head =
      "epoch " + to_string(epoch.id) + ", " + count_of(epoch.members.size(), "member") + ": ";
  for (const std::string& line : changes(s, before, epoch.members)) {
    out.push_back(Say{false, head + line});
  }
  for (const std::string& line : new_relays(before, epoch)) {
    out.push_back(Say{false, head + line});
  }
  for (const std::string& line : changed_rings(s, before, epoch)) {
    out.push_back(Say{false, head + line});
  }
}

/// Forgets who could not be reached, where that peer is gone or has become a member.
void forget_gone(State& s) {
  std::erase_if(s.unreachable, [&](const auto& entry) {
    return !s.peers.contains(entry.first) || is_own_member(s, entry.first);
  });
  std::erase_if(s.cannot, [&](const auto& pair) {
    return !s.peers.contains(pair.first) ||
           (!s.peers.contains(pair.second) && !is_own_member(s, pair.second));
  });
  forget_reached(s);
}

/// What the verdict says is committed, and what it answers, is so from now on.
void take_verdict(State& s, const Judgement& verdict) {
  s.committed = verdict.committed;
  for (const auto& [group, mates] : s.groups) {
    OpSet& set = s.committed[group];
    if (set.below.step < verdict.passed) set = OpSet{OpKey{verdict.passed, 0}, {}};
  }
  for (const auto& [group, set] : verdict.committed) {
    const std::optional<OpKey> newest = newest_of(set);
    if (newest) s.newest_commit[group] = std::max(s.newest_commit[group], *newest);
  }
  s.flags = verdict.flags;
  s.failure = verdict.failure;
}

/// Each group's members are told to start, with the verdict and the lines that hold for the group.
void send_starts(State& s, EpochId epoch, Judgement& verdict,
                 std::map<std::uint32_t, std::vector<StepFlag>>& flags, Actions& out) {
  std::erase_if(s.sites_told, [&](const auto& told) { return !s.groups.contains(told.first); });
  for (const auto& [group, mates] : s.groups) {
    const Lines lines = master::lines(s, group);
    if (lines.farthest_us >= kFarUs && s.topology.told(group, lines.mbit_per_s)) {
      out.push_back(Say{false, rate_text(s, group, lines.mbit_per_s)});
    }
    const std::string text = text_of_sites(s, group, lines.sites);
    if (!text.empty()) out.push_back(Say{false, text});
    send_all(s, mates,
             Start{epoch,
                   Verdict{verdict.committed[group], verdict.failure, flags[group], verdict.passed,
                           verdict.pinned},
                   {},
                   lines},
             out);
  }
}

}  // namespace

void start(State& s, const std::optional<Epoch>& before, Actions& out) {
  PCCL_ASSERT(s.proposal.has_value());
  const Epoch epoch = *s.proposal;
  Judgement verdict = judge(s, epoch, Numbering{s.held->passed, s.held->pinned});
  const std::set<PeerId> leavers = s.leavers;
  const bool founding = verdict.passed == 0 && epoch.boundary;
  say_start(s, before ? &*before : nullptr, epoch, out);
  if (before) remember_parted(s, before->members, epoch.members);
  for (const Member& m : epoch.members) {
    const Report& report = s.peers.at(m.peer()).report;
    if (report.started && report.started->incarnation() != s.held->incarnation) {
      s.brought_step = std::max(s.brought_step, report.step);
    }
  }
  const Seats seats = change_epoch(s, out);
  begin_rings(s);
  s.left = departed(seats);
  s.left.insert(leavers.begin(), leavers.end());
  if (before) count_losses(s, before->members, epoch.members);
  s.kept_waiting.clear();
  forget_gone(s);

  // A verdict fixes the answers about its steps, as a commit does.
  if (!epoch.boundary) {
    const bool votes = wants_boundary(s, verdict.pinned, epoch.members);
    for (const std::uint64_t step : verdict.commit_steps) verdict.flags.try_emplace(step, votes);
  }
  s.running = true;
  take_verdict(s, verdict);
  s.wishes = !who_leaves_at_once(s, epoch.members).empty();
  std::map<std::uint32_t, std::vector<StepFlag>> flags;
  for (const auto& [group, mates] : s.groups) flags[group] = flags_for(s, verdict, mates);
  for (const Member& m : epoch.members) {
    PeerState& peer = s.peers.at(m.peer());
    peer.report.started = peer.report.accepted = epoch.id;
    peer.report.started_members.clear();  // they are the register's
    if (epoch.boundary) peer.report.issued = OpKey{verdict.passed, 0};
  }
  send_starts(s, epoch.id, verdict, flags, out);
  dismiss(s, leavers, before ? before->members : std::vector<Member>{}, seats,
          "epoch " + to_string(epoch.id) + " goes on without this peer", out);
  if (founding) {
    // Peers that wait for the founding and are no founders hear that the run is founded.
    for (const auto& [p, peer] : s.peers) {
      if (!is_own_member(s, p)) send(s, p, welcome(s, p), out);
    }
  }
  reconsider(s, out);
}

void end_run(State& s, const std::vector<Member>& before, Actions& out) {
  if (!s.held->ended) {
    std::vector<Change> gone;
    for (const Member& m : before) {
      const Seat* seat = seat_of(s, m.peer());
      if (seat != nullptr && seat->departed && !seat->said) gone.push_back(departure(s, m, {}));
    }
    for (std::string& line : texts_of(before, gone)) out.push_back(Say{false, std::move(line)});
  }
  const Seats seats = change_epoch(s, out);
  s.left = departed(seats);
  forget_run(s);
  if (s.held->ended) {
    out.push_back(Say{false, ending_text(s, "the run")});
    std::vector<PeerId> all;
    for (const auto& [p, peer] : s.peers) all.push_back(p);
    for (const PeerId p : all) turn_away(s, p, out);
  } else {
    out.push_back(
        Say{false, "no member is left: the run pauses, and the next newcomers found it anew"});
    dismiss(s, s.left, before, seats, "no member is left", out);
  }
  out.push_back(RunOver{});
  reconsider(s, out);
}

void adopted(State& s, Actions& out) {
  s.adopting = false;
  s.config.adopt = false;  // answered: the flag is for one lost register
  s.counter = 0;
  s.unknown.clear();
  static_cast<void>(change_epoch(s, out));
  forget_run(s);
  recall_relays(s);
  begin_rings(s);
  reconsider(s, out);
}

}  // namespace pccl::master
