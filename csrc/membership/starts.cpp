// What a written register begins or ends: the start of an epoch, the end of a run, an epoch that
// was adopted. Peers that are out hear why.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

/// Those of `some` that are not in `others`, in their order.
std::vector<const Member*> only_in(const std::vector<Member>& some,
                                   const std::vector<Member>& others) {
  std::set<PeerId> there;
  for (const Member& m : others) there.insert(m.peer());
  std::vector<const Member*> only;
  for (const Member& m : some) {
    if (!there.contains(m.peer())) only.push_back(&m);
  }
  return only;
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

}  // namespace

std::vector<std::string> changes(const State& s, const Epoch* before,
                                 const std::vector<Member>& members) {
  const std::vector<Member> none;
  const std::vector<Member>& former = before == nullptr ? none : before->members;
  const std::set<PeerId> must_go = excluded(s);
  std::vector<Change> gone;
  for (const Member* m : only_in(former, members)) gone.push_back(departure(s, *m, must_go));
  std::vector<std::string> lines = texts_of(former, gone);
  std::vector<Change> come;
  for (const Member* m : only_in(members, former)) come.push_back({m, "joined", ""});
  const std::vector<std::string> newcomers = texts_of(members, come);
  lines.insert(lines.end(), newcomers.begin(), newcomers.end());
  return lines;
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

/// For members that come back later.
void remember_why(State& s, const std::vector<Member>& before, const std::vector<Member>& now,
                  const Seats& seats) {
  for (const Member* m : only_in(before, now)) {
    const std::string reason = reason_of(seats, m->peer());
    if (reason.empty()) continue;
    s.lost_lately.emplace_back(m->peer(), reason);
    if (s.lost_lately.size() > kLostLatelyMax) s.lost_lately.pop_front();
  }
}

/// Counts one loss for each replica, however many ranks it has.
void count_losses(State& s, const std::vector<Member>& before, const std::vector<Member>& now) {
  for (const Member* m : only_in(before, now)) {
    if (m->place.rank == 0 && !s.left.contains(m->peer())) count_loss(s, *m);
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
  const std::vector<std::string> changed = changes(s, before, epoch.members);
  for (const std::string& line : changed) out.push_back(Say{false, head + line});
  const bool of_former_master =
      before != nullptr && before->id.incarnation() < epoch.id.incarnation();
  if (of_former_master && changed.empty()) out.push_back(Say{false, head + "all are back"});
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

/// Peers that wait for the founding and are no members hear that there is a run.
void welcome_newcomers(const State& s, Actions& out) {
  for (const auto& [p, peer] : s.peers) {
    if (!peer.report.started && !is_own_member(s, p)) send(s, p, welcome(s, p), out);
  }
}

}  // namespace

std::string why_lost(const State& s, PeerId peer) {
  for (const auto& [p, why] : s.lost_lately) {
    if (p == peer) return ": " + why;
  }
  return "";
}

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
  if (before) {
    remember_why(s, before->members, epoch.members, seats);
    count_losses(s, before->members, epoch.members);
  }
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
  if (founding) welcome_newcomers(s, out);
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
  remember_why(s, before, {}, seats);
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
  if (own(s) != nullptr) welcome_newcomers(s, out);
  reconsider(s, out);
}

}  // namespace pccl::master
