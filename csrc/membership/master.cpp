// The master's events, one function each. master_rules.h names their consequences, file by file;
// the reasoning behind each rule is in docs/architecture/rules.md.
#include "membership/master.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "membership/master_rules.h"
#include "membership/status.h"

namespace pccl::master {

void send(const State& s, PeerId peer, MasterToPeer message, Actions& out) {
  if (s.peers.contains(peer)) out.push_back(Send{peer, std::move(message)});
}

void send_all(const State& s, const std::vector<PeerId>& peers, MasterToPeer message,
              Actions& out) {
  SendAll all{{}, std::move(message)};
  for (const PeerId p : peers) {
    if (s.peers.contains(p)) all.peers.push_back(p);
  }
  if (!all.peers.empty()) out.push_back(std::move(all));
}

std::string name(const State& s, PeerId peer) {
  if (const Epoch* epoch = own(s)) {
    for (const Member& m : epoch->members) {
      if (m.peer() == peer) return name_of(epoch->members, m);
    }
  }
  const auto here = s.peers.find(peer);
  return "peer " + (here == s.peers.end() ? to_string(peer) : name_of(here->second.member.handle));
}

Welcome welcome(const State& s, PeerId peer) {
  Welcome w;
  w.run = s.config.run;
  w.incarnation = s.held->incarnation;
  const Epoch* epoch = own(s);
  if (epoch == nullptr) return w;
  // A founder that has not begun yet still waits for the founding: its Start is on the way.
  const auto known = s.peers.find(peer);
  const bool begun = known != s.peers.end() && known->second.report.started;
  w.founded = begun || !is_own_member(s, peer) || s.held->passed > 0;
  w.has_boundaries = s.held->passed > 0;
  w.provisional_size = static_cast<std::uint32_t>(replicas(epoch->members));
  if (is_own_member(s, peer)) {
    w.provisional_rank = rank_of(epoch->members, peer);
  } else {
    w.provisional_rank = w.provisional_size++;
  }
  return w;
}

namespace {

/// The state of a master that is not in charge: the options and the clock, and nothing of the run.
State fresh(const State& before) {
  State s;
  s.config = before.config;
  s.now_s = before.now_s;
  s.unix_s = before.unix_s;
  return s;
}

}  // namespace

void depose(State& s, const std::string& why, Actions& out) {
  s = fresh(s);
  out.push_back(Deposed{why});
}

namespace {

constexpr std::uint32_t kRefoundStep = 1U << 16;   // take-overs that a lost register may have seen
constexpr std::uint32_t kRefoundBelow = 1U << 31;  // from here on incarnations go by one

constexpr std::uint64_t kTickMaxS = 2;  // a tick that came late counts for no more

// -------------------------------------------------------------------------------- the register

/// The new incarnation makes all numbers of epochs new, and no former holder of the register can
/// write it any more. Nobody knows which numbers a lost register has used: with --refound the next
/// run begins far above.
void on(State& s, const TakenOver& e, Actions& out) {
  s = fresh(s);
  s.held = e.held;
  Register to = e.held;
  const bool far = s.config.refound && to.incarnation < kRefoundBelow;
  to.incarnation += far ? kRefoundStep : 1;
  if (s.config.again) to.ended.reset();
  to.key = s.config.key;
  out.push_back(WriteRegister{e.held, to});
  s.writing = std::move(to);
}

void take_office(State& s, Actions& out) {
  s.holds = true;
  s.config.again = false;  // answered: the flag is for one ending
  if (s.held->ended) out.push_back(Say{false, ending_text(s, "the run")});
  index_members(s);
  recall_relays(s);
  begin_rings(s);
  if (const Epoch* epoch = own(s)) {
    for (auto& [p, seat] : s.seats) seat.awaited = TimerKind::patience;
    s.deserted = true;
    be_patient(s, out);
    out.push_back(Say{false, "incarnation " + std::to_string(s.held->incarnation) + ": epoch " +
                                 to_string(epoch->id) + " of " +
                                 count_of(epoch->members.size(), "member") +
                                 " goes on when they have come back"});
  } else {
    s.founding_delay = true;
    out.push_back(StartTimer{TimerKind::founding, {}});
  }
}

void on(State& s, const RegisterWritten& e, Actions& out) {
  if (s.writing != e.value) return;  // the answer to a write that was given up
  if (!e.ok) {
    depose(s,
           s.config.shared ? "the register is held by another master"
                           : "the state file was changed, or is gone, while this master ran",
           out);
    return;
  }
  const bool over = e.value.over && !s.held->over;
  const std::optional<Epoch> before = own(s) == nullptr ? std::nullopt : s.held->epoch;
  s.held = std::move(s.writing);
  s.writing.reset();
  if (!s.holds) {
    take_office(s, out);
  } else if (over) {
    end_run(s, before ? before->members : std::vector<Member>{}, out);
  } else if (s.adopting) {
    adopted(s, out);
  } else if (std::exchange(s.revoking, false)) {
    reconsider(s, out);
  } else {
    start(s, before, out);
  }
}

void on(State& s, const RegisterUnanswered& e, Actions& out) {
  // Nobody knows whether it was written: the register has to be read anew.
  if (s.writing) depose(s, e.why, out);
}

// ------------------------------------------------------------------------------------- peers

void on(State& s, const PeerConnected& e, Actions& out) { connected(s, e, out); }

void on(State& s, const PeerDisconnected& e, Actions& out) { disconnected(s, e.peer, out); }

void on(State& s, const PeerGone& e, Actions& out) { gone(s, e, out); }

void on(State& s, const PeerDied& e, Actions& out) { see_death(s, e.peer, out); }

/// Adds them to the register. Between two events no other write is in flight.
void write_revoked(State& s, const std::vector<TokenMark>& gone, Actions& out) {
  Register to = *s.held;
  for (const TokenMark& token : gone) {
    if (is_revoked(to, token)) continue;
    if (to.revoked.size() >= kRevokedMax) to.revoked.erase(to.revoked.begin());
    to.revoked.push_back(token);
  }
  if (to.revoked == s.held->revoked) return;
  s.revoking = true;
  out.push_back(WriteRegister{*s.held, to});
  s.writing = std::move(to);
}

void on(State& s, const TokensAre& e, Actions& out) {
  s.tokens = e.valid.size();
  if (!s.holds) return;
  const std::set<std::string> valid = names_that_open(*s.held, e.valid);
  std::vector<Member> gone;
  for_each_here_or_awaited(s, [&](const Member& m) {
    if (!m.token.empty() && !valid.contains(m.token)) gone.push_back(m);
  });
  for (const Member& m : gone) {
    const std::string why = "the token \"" + m.token +
                            "\" by which it came has been revoked, or is in no file of this "
                            "master: it needs another one";
    out.push_back(Say{true, "evicts " + name_of(m.handle) + ": " + why});
    expel(s, m.peer(), why, out);
    if (Seat* seat = seat_of(s, m.peer())) seat->revoked = true;
  }
  write_revoked(s, e.gone, out);
  if (!gone.empty()) reconsider(s, out);  // once the register is written, if that has to be
}

// ------------------------------------------------------------------------------------ messages

void evict_liar(State& s, PeerId p, const std::string& why, Actions& out) {
  out.push_back(warning_of(s, p, "evicted " + name(s, p) + ": " + why));
  expel(s, p, why, out);
  reconsider(s, out);
}

void on_message(State&, PeerId, const Hello&, Actions&) {}          // PeerConnected
void on_message(State&, PeerId, const StatusRequest&, Actions&) {}  // the server's
void on_message(State&, PeerId, const StoreRequest&, Actions&) {}   // the server's

void on_message(State& s, PeerId p, const Ready& m, Actions& out) {
  PeerState& peer = s.peers.at(p);
  if (m.report.started != peer.report.started) {
    return;  // its Start is on the way, or the message makes no sense
  }
  peer.report = m.report;
  if (!m.report.started && m.report.root.present) peer.door_root = m.report.root;
  if (!s.proposal || m.epoch != s.proposal->id || !contains(s.proposal->members, p)) {
    reconsider(s, out);  // too late, but its shared state may have changed
    return;
  }
  if (!m.report.calm && s.at_once && !s.leavers.empty() && !s.proposal->boundary) {
    give_up_at_once(s);
    reconsider(s, out);
    return;
  }
  peer.trips = m.trips;
  s.ready.insert(p);
  if (s.ready.size() >= s.proposal->members.size()) write_proposal(s, out);
}

void on_message(State& s, PeerId p, const Cannot& m, Actions& out) { cannot_reach(s, p, m, out); }

void on_message(State& s, PeerId p, const Tried& m, Actions& out) { hear_of_links(s, p, m, out); }

void on_message(State& s, PeerId p, const Measured& m, Actions&) { hear_of_rate(s, p, m); }

void on_message(State& s, PeerId p, const Suspect& m, Actions& out) {
  const Epoch* epoch = own(s);
  Seat* seat = seat_of(s, m.peer);
  if (epoch == nullptr || m.epoch < epoch->id || seat == nullptr || p == m.peer) return;
  const bool proposed = s.proposal && are_mates(s.proposal->members, p, m.peer);
  if (!proposed && !are_mates(epoch->members, p, m.peer)) return;
  if (seat->awaited == TimerKind::absence || (m.refused && seat->awaited)) {
    forget(s, m.peer, m.refused ? "it refuses connections" : "its connections have closed", out);
    reconsider(s, out);
  } else if (s.peers.contains(m.peer)) {
    seat->suspected = true;
  }
}

void on_message(State& s, PeerId p, const Relinked& m, Actions& out) {
  if (Seat* seat = seat_of(s, m.peer)) seat->suspected = false;
  const bool current = s.running && own(s) != nullptr && m.epoch == own(s)->id;
  const bool proposed = s.proposal && m.epoch == s.proposal->id;
  if (!current && !proposed) return;
  if (!are_mates(current ? own(s)->members : s.proposal->members, p, m.peer)) return;
  link_is_back(s, p, m, out);
  s.running = false;  // segments may be lost: the same members, a new epoch
  s.proposal.reset();
  reconsider(s, out);
}

/// The answer to "does the boundary that ends this step vote?" is fixed by the first commit of the
/// step, in whatever peer group, and every later commit of that step repeats it.
bool flag_of(State& s, std::uint64_t step) {
  const auto known = s.flags.find(step);
  if (known != s.flags.end()) return known->second;
  const bool votes = wants_boundary(s, s.held->pinned, own(s)->members);
  // Forgets the steps that every peer group has left behind with a commit.
  if (s.commit_step.size() == s.groups.size()) {
    std::uint64_t oldest = step;
    for (const auto& [group, newest] : s.commit_step) oldest = std::min(oldest, newest);
    s.flags.erase(s.flags.begin(), s.flags.lower_bound(oldest));
  }
  s.flags[step] = votes;
  return votes;
}

/// Commit when every member of the operation's peer group is done.
void on_message(State& s, PeerId p, const Done& m, Actions& out) {
  if (!s.running || m.epoch != own(s)->id) return;
  Seat* seat = seat_of(s, p);
  if (seat == nullptr) return;
  const std::uint32_t group = seat->group;
  seat->quiet = false;
  const std::vector<PeerId>& mates = s.groups.at(group);
  Commit commit{m.epoch, {}, {}};
  OpSet& committed = s.committed[group];
  for (const OpKey key : m.ops) {
    if (s.failure && key >= s.failure->from) continue;
    if (contains(committed, key)) continue;  // said again: nobody waits for the others any more
    Report& report = s.peers.at(p).report;
    report.issued = std::max(report.issued, OpKey{key.step, key.index + 1});
    time_is_not_over(s, p, key);
    const auto entry = s.done.try_emplace({group, key}).first;
    entry->second.insert(p);
    if (entry->second.size() < mates.size()) continue;
    s.done.erase(entry);
    const bool next_step = commit.flags.empty() || commit.flags.back().step != key.step;
    if (next_step && commit.flags.size() == kReportFlagsMax) {
      send_all(s, mates, std::exchange(commit, Commit{m.epoch, {}, {}}), out);
    }
    commit.ops.push_back(key);
    if (next_step) {
      commit.flags.push_back(StepFlag{key.step, flag_of(s, key.step)});
    }
    add(committed, key);
    auto& newest_step = s.commit_step[group];
    newest_step = std::max(newest_step, key.step);
    auto& made = s.newest_commit[group];
    made = std::max(made, key);
  }
  if (!commit.ops.empty()) {
    s.restarts.clear();
    send_all(s, mates, std::move(commit), out);
  }
  if (s.flags.size() > kStepsApartMax) {
    expel(s, p, "its peer group is further ahead of another one than any run is", out);
    reconsider(s, out);
    return;
  }
  if (const auto hoarder = find_hoarder(s)) {
    expel(s, *hoarder, "it completes more operations than can be in flight", out);
    reconsider(s, out);
  }
}

void on_message(State& s, PeerId p, const Vote& m, Actions& out) {
  Report& report = s.peers.at(p).report;
  if (!report.started || m.kind == VoteKind::none) return;
  report.step = m.step;
  report.vote = m.kind;
  report.root = m.root;
  report.finish = m.finish;
  report.issued = std::max(report.issued, OpKey{m.step, 0});
  if (s.running && !s.proposal && somebody_has_not_voted(s)) return;  // nothing else has changed
  reconsider(s, out);
}

void on_message(State& s, PeerId p, const Knock& m, Actions& out) {
  PeerState& peer = s.peers.at(p);
  if (peer.report.started) return;
  peer.at_door = true;
  peer.door_root = m.root;
  explain_door(s, out);
  reconsider(s, out);
}

void on_message(State& s, PeerId p, const Leave& m, Actions& out) {
  Report& report = s.peers.at(p).report;
  report.leaving = true;
  report.at_once = report.at_once || m.at_once;
  s.wishes = s.wishes || report.at_once;
  be_heard_anew(s);
  reconsider(s, out);
}

/// The peer has said goodbye: it and its replica are gone at once.
void on_message(State& s, PeerId p, const Bye& m, Actions& out) {
  const bool failed = !m.failure.empty();
  const std::string how = failed ? "was ended by " + printable(m.failure) : "said goodbye";
  const Member ended = s.peers.at(p).member;
  const auto replica = replica_of(ended);
  const bool member = is_own_member(s, p);
  // The epoch line says it of a member; of a newcomer nothing else would.
  if (failed && !member) out.push_back(warning_of(s, p, name(s, p) + " " + how));
  out.push_back(Close{p});
  forget(s, p, (failed ? "its program " : "it ") + how, out);
  const std::string of_mate = cut_text("rank " + std::to_string(ended.place.rank) +
                                       " of its replica (" + name_of(ended.handle) + ") " + how);
  if (member) {
    for (const Member& mate : own(s)->members) {
      if (replica_of(mate) != replica) continue;
      Seat& seat = s.seats.at(mate.peer());
      if (mate.peer() == p || !seat.departed) seat.failed = failed;  // else its own Bye has set it
      seat.departed = seat.expelled = true;
      if (mate.peer() == p || !s.peers.contains(mate.peer())) continue;
      seat.reason = of_mate;
      seat.of_mate = true;
    }
    for (auto& [q, seat] : s.seats) {
      if (!seat.awaited || !seat.expelled) continue;
      // A rank whose connection closed without a goodbye was lost before, perhaps by a SIGKILL.
      const bool lost_before = seat.awaited == TimerKind::absence;
      forget(s, q, lost_before ? "its connection to the master has closed" : of_mate, out);
      seat.of_mate = !lost_before;
      seat.failed = seat.failed || lost_before;
    }
  }
  reconsider(s, out);
}

void on_message(State& s, PeerId p, const Heartbeat& m, Actions& out) {
  PeerState& peer = s.peers.at(p);
  Report& report = peer.report;
  report.issued = m.issued;
  peer.beat = m;
  if (!std::exchange(peer.beats, true)) peer.beat_before = m;
  if (!s.running) return;
  if (hear_issued(s, p, m.issued)) reconsider(s, out);
  if (!s.running) return;
  const std::string why = why_late(s, p, report);
  if (why.empty()) return;
  expel(s, p, why, out);
  reconsider(s, out);
}

void on_message(State& s, PeerId p, const Mismatch& m, Actions& out) {
  if (!s.running || m.epoch != own(s)->id || !is_own_member(s, p)) return;
  if (s.failure && s.failure->from <= m.op) return;
  if (m.op.step < s.held->passed) return;  // a voted boundary has cleared it
  const bool no_memory = m.error.code == ErrorCode::no_memory;
  s.failure = Failure{
      m.op, Error{no_memory ? ErrorCode::no_memory : ErrorCode::mismatch, printable(m.error.text)}};
  std::erase_if(s.accusations, [&](const auto& entry) { return entry.second.place >= m.op; });
  std::erase_if(s.done, [&](const auto& entry) { return entry.first.second >= m.op; });
  out.push_back(Say{true, "operation " + to_string(m.op) + " fails, says " + name(s, p) + ": " +
                              s.failure->error.text});
  send_all(s, ids_of(own(s)->members), FailOp{m.epoch, *s.failure}, out);
}

void on_message(State& s, PeerId p, const Expired& m, Actions& out) {
  if (!s.running || m.epoch != own(s)->id) return;
  if (const std::string wrong = time_is_over(s, p, m.op); !wrong.empty()) {
    evict_liar(s, p, wrong, out);
  }
}

void on(State& s, const PeerMessage& e, Actions& out) {
  if (!s.peers.contains(e.peer)) return;
  if (const std::string wrong = contradiction(e.message); !wrong.empty()) {
    return evict_liar(s, e.peer, wrong, out);
  }
  const auto* ready = std::get_if<Ready>(&e.message);
  if (ready != nullptr && ready->report.accepted > EpochId::make(s.held->incarnation, s.counter)) {
    return evict_liar(s, e.peer, "it is ready for an epoch that this master has not proposed", out);
  }
  OpKey& furthest = s.peers.at(e.peer).furthest;
  furthest = std::max(furthest, came_to(s.peers.at(e.peer).report));
  std::visit([&](const auto& message) { on_message(s, e.peer, message, out); }, e.message);
  const auto found = s.peers.find(e.peer);
  if (found == s.peers.end()) return;
  PeerState& peer = found->second;
  if (came_to(peer.report) > peer.furthest) peer.moved_s = s.now_s;
}

// -------------------------------------------------------------------------------------- timers

void on(State& s, const PatienceOver&, Actions& out) {
  if (!s.patient) return;
  s.patient = false;
  for (auto& [p, seat] : s.seats) {
    if (seat.awaited != TimerKind::patience) continue;
    forget(s, p, "it did not come back in time", out);
    seat.cut_off = s.deserted;  // else others have come back, and it has not
  }
  if (s.config.adopt && !s.unknown.empty()) adopt(s, true, out);
  reconsider(s, out);
}

void on(State& s, const FoundingOver&, Actions& out) {
  s.founding_delay = false;
  reconsider(s, out);
}

/// No member is back, and none is waited for.
bool all_are_lost(const State& s) {
  return own(s) != nullptr && survivors(s).empty() && !awaits(s) && s.unknown.empty();
}

void on(State& s, const RefoundOver&, Actions& out) {
  if (std::exchange(s.refounding, false) && all_are_lost(s)) write_over(s, out);
}

void on(State& s, const Woke&, Actions& out) {
  const Epoch* epoch = own(s);
  if (!s.holds || epoch == nullptr) return;
  s.woke_s = s.now_s;
  for (const Member& m : epoch->members) {
    const PeerId p = m.peer();
    Seat& seat = s.seats.at(p);
    if (s.peers.contains(p) || seat.expelled) continue;
    await_no_more(s, p, out);
    seat.awaited = TimerKind::patience;
  }
  if (!is_awaited(s)) return;
  s.patient = true;
  stand_still(s, TimerKind::patience, out);
}

void on(State& s, const Clock& e, Actions& out) {
  const std::uint64_t elapsed_s = std::min(e.now_s - std::min(e.now_s, s.now_s), kTickMaxS);
  s.now_s = e.now_s;
  s.unix_s = e.unix_s;
  // The penalty of a replica, or of an origin, may be over.
  bool again = !s.losses.empty() || !s.origins.empty();
  again = give_up_newcomers(s, elapsed_s, out) || again;
  again = give_up_members(s, elapsed_s, out) || again;
  look_at_beats(s);
  for (auto& [p, held] : s.unreachable) {
    if (held.retry_s == 0 || held.retry_s > s.now_s) continue;
    held.retry_s = 0;
    again = reaches_again(s, p) || again;
  }
  again = founders_try_again(s) || again;
  again = trials_time_out(s, elapsed_s, out) || again;
  s.trials_changed = s.trials_changed || !s.trials.empty() || s.peers.size() > s.seats.size();
  if (again) reconsider(s, out);
  tell_newcomers(s, out);
  ask_to_measure(s, out);
}

/// A master whose members are away says nothing of their end: those that live come back to the next
/// master. The run ends where each is known to be gone, or where the operator says so after the
/// members have had the time to come back.
void on(State& s, const OperatorStops& e, Actions& out) {
  if (!s.holds) return;
  const Epoch* epoch = own(s);
  if (epoch == nullptr) {
    out.push_back(RunOver{});
    return;
  }
  const bool ends_wait = e.ends_wait && s.refounding && all_are_lost(s);
  if (ends_wait || nobody_can_come_back(s)) write_over(s, out);
}

}  // namespace

Actions step(State& state, const Event& event) {
  Actions out;
  if (state.writing) {
    PCCL_ASSERT(std::holds_alternative<RegisterWritten>(event) ||
                std::holds_alternative<RegisterUnanswered>(event) ||
                std::holds_alternative<TakenOver>(event));
  }
  // No default case: an event without its `on` does not compile.
  std::visit([&](const auto& e) { on(state, e, out); }, event);
  if (state.holds && !state.writing) try_links(state, out);
  return out;
}

}  // namespace pccl::master
