// Peers that come to the master, come back, or go: who is taken in, and what is forgotten of whom.
// A connection that ends says nothing of the process behind it (docs/architecture/rules.md): what
// follows from it is decided elsewhere, by reconsider.
#include <utility>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

// Connections that ended while it was stopped are seen by then.
constexpr std::uint64_t kWakingS = 3;

/// The peer has no connection any more.
void disconnect(State& s, PeerId peer) {
  s.peers.erase(peer);
  s.kept_waiting.erase(peer);
  s.trials_changed = true;
  s.unknown.erase(peer);
  if (!is_own_member(s, peer)) reaches_again(s, peer);
}

/// A newer attempt ends an older one at once.
void end_older_attempts(State& s, const Member& newer, Actions& out) {
  std::vector<PeerId> older;
  for_each_here_or_awaited(s, [&](const Member& m) {
    if (m.place.replica == newer.place.replica && m.place.attempt < newer.place.attempt) {
      older.push_back(m.peer());
    }
  });
  for (const PeerId p : older) {
    expel(s, p, "a newer attempt of its replica is here", out);
  }
}

/// What is known of the peer is what it says now.
void hear_of_itself(State& s, const PeerConnected& e) {
  const PeerId p = e.hello.member.peer();
  const bool again = s.peers.contains(p);
  PeerState& peer = s.peers[p];
  if (!again) peer.arrived = ++s.arrivals;
  if (!again) peer.moved_s = s.now_s;
  peer.host = printable(e.hello.host);
  peer.origin = e.origin;
  peer.member = e.hello.member;
  peer.report = e.hello.report;
  peer.at_door = e.hello.at_door && !peer.report.started;
  peer.door_root = e.hello.door_root;
  forget_links(s, p);
  if (!peer.report.started) {
    reaches_again(s, p);
    founders_changed(s);
  }
  s.wishes = s.wishes || peer.report.at_once;
}

/// To a peer that reports an epoch of a run which is over, as the register says.
std::string text_of_the_end(const State& s, PeerId p, EpochId started) {
  if (!s.held->epoch) return "no member is left" + why_lost(s, p);
  const Epoch& last = *s.held->epoch;
  std::string text = "no member is left: the newest epoch in this master's register is " +
                     to_string(last.id) + ", of " + count_of(last.members.size(), "member") +
                     ", and the run of that register is over, since all had left or were lost" +
                     why_lost(s, p);
  if (!contains(last.members, p)) {
    text += ". The register does not name this process, which is in epoch " + to_string(started) +
            ": if it is of another run (a master without --state takes the file that an earlier "
            "one of its port and name has left), start the master with that of this run, or, "
            "where that is lost, with a new --state file and --adopt, while members still run";
  }
  return text;
}

/// Takes in the peer, or sends it away. False: this has changed what the master is about.
bool answer(State& s, const PeerConnected& e, Actions& out) {
  const PeerId p = e.hello.member.peer();
  const Report& report = e.hello.report;
  const bool member = is_own_member(s, p);
  if (is_expelled(s, p)) {
    const std::string why = s.seats.at(p).reason;
    evict(s, p, why.empty() ? "the run has gone on without this peer" : why, out);
  } else if (is_invented(s, p, report)) {
    expel(s, p, "it reports an epoch that this master has not started", out);
  } else if (is_unknown(s, report) && s.running && !member) {
    evict(s, p, "it reports an epoch that this run does not know", out);
  } else if (is_unknown(s, report) && s.config.shared &&
             report.accepted.incarnation() > s.config.read_for) {
    s.config.read_for = report.accepted.incarnation();
    depose(s, "peer " + name_of(e.hello.member.handle) + " knows a newer master", out);
    return false;
  } else if (is_unknown(s, report) && s.config.refound) {
    evict(s, p, "the register does not know its epoch, and the operator has said --refound", out);
  } else if (is_unknown(s, report)) {
    send(s, p, welcome(s, p), out);
    hold_for_unknown(s, p, out);
    return !s.writing;  // else the epoch is adopted
  } else if (s.held->ended) {
    turn_away(s, p, out);
  } else if (report.started && !member && (report.leaving || s.left.contains(p))) {
    send(s, p, Left{}, out);  // its Left was lost with an earlier connection
    out.push_back(Close{p});
    forget(s, p, "left", out);
  } else if (report.started && !member) {
    evict(s, p,
          own(s) == nullptr ? text_of_the_end(s, p, *report.started)
                            : "the run has gone on to epoch " + to_string(own(s)->id) +
                                  " without this peer" + why_lost(s, p),
          out);
  } else {
    send(s, p, welcome(s, p), out);
  }
  return true;
}

/// Messages of its earlier connection may be lost.
void begin_anew_with(State& s, PeerId p, Actions& out) {
  await_no_more(s, p, out);
  if (Seat* seat = seat_of(s, p)) {
    seat->reason.clear();
    seat->cut_off = false;
  }
  const bool member = is_own_member(s, p);
  if (member || (s.proposal && contains(s.proposal->members, p))) {
    s.running = false;
    s.proposal.reset();
  }
  if (member && connects_too_often(s, p)) {
    expel(s, p, "it has connected to the master again and again in one operation", out);
  }
}

}  // namespace

void for_each_here_or_awaited(const State& s, const std::function<void(const Member&)>& each) {
  for (const auto& [p, peer] : s.peers) each(peer.member);
  const Epoch* epoch = own(s);
  if (epoch == nullptr) return;
  for (const Member& m : epoch->members) {
    if (!s.peers.contains(m.peer()) && !is_expelled(s, m.peer())) each(m);
  }
}

void forget(State& s, PeerId peer, const std::string& why, Actions& out) {
  disconnect(s, peer);
  await_no_more(s, peer, out);
  if (Seat* seat = seat_of(s, peer)) {
    seat->suspected = seat->cut_off = false;
    seat->reason = cut_text(why);
    seat->of_mate = false;
  }
}

void evict(State& s, PeerId peer, const std::string& why, Actions& out) {
  send(s, peer, Evicted{cut_text(why)}, out);
  if (s.peers.contains(peer)) out.push_back(Close{peer});
  forget(s, peer, why, out);
}

void expel(State& s, PeerId peer, const std::string& why, Actions& out) {
  evict(s, peer, why, out);
  if (Seat* seat = seat_of(s, peer)) seat->expelled = true;
}

void connected(State& s, const PeerConnected& e, Actions& out) {
  const PeerId p = e.hello.member.peer();
  if (!s.holds) {
    out.push_back(Close{p});  // a standby
    return;
  }
  if (Error error = check_hello(s, e.hello); error.failed()) {
    disconnected(s, p, out);  // an earlier connection of this peer, if any, is gone
    out.push_back(Say{true, "refused peer " + name_of(e.hello.member.handle) + ": " + error.text,
                      is_own_member(s, p) ? "" : e.origin});
    out.push_back(Send{p, Refuse{std::move(error)}});
    out.push_back(Close{p});
    return;
  }
  end_older_attempts(s, e.hello.member, out);
  hear_of_itself(s, e);
  if (!answer(s, e, out)) return;
  if (s.peers.contains(p)) begin_anew_with(s, p, out);
  reconsider(s, out);
  tell_newcomer(s, p, out);
}

void disconnected(State& s, PeerId peer, Actions& out) {
  if (!s.peers.contains(peer)) return;
  disconnect(s, peer);
  Seat* seat = seat_of(s, peer);
  if (seat != nullptr && !seat->expelled) {
    if (seat->suspected) {
      forget(s, peer, "its connections to the master and to a member have closed", out);
    } else if (s.woke_s && s.now_s <= *s.woke_s + kWakingS) {
      seat->awaited = TimerKind::patience;  // it gave the master up while the master was stopped
      be_patient(s, out);
    } else {
      seat->awaited = TimerKind::absence;
      out.push_back(StartTimer{TimerKind::absence, peer});
    }
  }
  reconsider(s, out);
}

void gone(State& s, const PeerGone& e, Actions& out) {
  if (!s.peers.contains(e.peer) && !is_awaited(s, e.peer)) return;
  if (s.peers.contains(e.peer)) out.push_back(Close{e.peer});
  forget(s, e.peer, e.why, out);
  if (Seat* seat = seat_of(s, e.peer)) seat->cut_off = true;
  reconsider(s, out);
}

}  // namespace pccl::master
