// The master's decisions, as a function: step(state, event) -> actions. No I/O, no clock, no random
// number, no thread. master/server.cpp runs it over sockets and a file, tests/sim over a simulated
// world.
//
// The rules are in docs/architecture/rules.md. Duties of the caller:
//  - Between a WriteRegister action and its RegisterWritten (or RegisterUnanswered) no other event
//  is
//    applied: it keeps them aside, in order.
//  - Actions are carried out in order. A Send to a peer without a connection is dropped.
//  - A connection is numbered by the caller; what arrives on an older one of a peer is not passed
//  on.
//  - Timers: StartTimer{kind} restarts that timer; its event comes when it ends (durations:
//  options).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "wire/messages.h"

namespace pccl::master {

struct Config {
  std::string run;               // name of the run; guards against joining the wrong one
  std::uint32_t min_peers = 2;   // a run is founded when so many replicas wait
  std::uint32_t hold_below = 1;  // with fewer replicas the run holds at its next boundary
  std::uint32_t max_peers = static_cast<std::uint32_t>(
      kMembersMax);  // members of an epoch; who is over waits at the door
  // The operator's answer to an epoch that the register does not know:
  bool adopt = false;    // it is this run's newest, and no other master runs
  bool refound = false;  // it is over, and so is one whose members do not come back
  // Several masters share the register: a peer that knows a higher incarnation has another master.
  bool shared = false;
  std::uint32_t read_for = 0;  // the highest such incarnation for which it was read anew
};

/// What outlives a master. It changes by compare-and-write only, and never takes a value twice.
struct Register {
  std::uint32_t incarnation = 0;  // the highest that was taken
  std::optional<Epoch> epoch;     // the last that was, or may have been, started; none: not founded
  std::uint64_t passed = 0;       // the step that its last voted boundary began
  bool over = false;              // the run is over: the next newcomers found another
  bool operator==(const Register&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("incarnation", self.incarnation);
    visit("epoch", self.epoch);
    visit("passed", self.passed);
    visit("over", self.over);
  }
};

// ---------------------------------------------------------------------------------------- events

/// Boot: what the register holds.
struct TakenOver {
  Register held;
};
struct RegisterWritten {
  Register value;
  bool ok = false;
};
struct RegisterUnanswered {};
struct PeerConnected {
  Hello hello;
};
/// Its connection has closed: it may come back.
struct PeerDisconnected {
  PeerId peer;
};
/// It will not come back: silent, said goodbye, or its time is over.
struct PeerGone {
  PeerId peer;
  std::string why;
};
/// All but Hello, StoreRequest.
struct PeerMessage {
  PeerId peer;
  PeerToMaster message;
};
struct PatienceOver {};   // TimerKind::patience
struct FoundingOver {};   // TimerKind::founding
struct RefoundOver {};    // TimerKind::refound
struct Woke {};           // its own loop was late: the silence was its own
struct OperatorStops {};  // SIGINT, SIGTERM
/// Once a second or so; any clock that does not go back.
struct Clock {
  std::uint64_t now_s = 0;
};

using Event = std::variant<TakenOver, RegisterWritten, RegisterUnanswered, PeerConnected,
                           PeerDisconnected, PeerGone, PeerMessage, PatienceOver, FoundingOver,
                           RefoundOver, Woke, OperatorStops, Clock>;

// ---------------------------------------------------------------------------------------- actions

enum class TimerKind : std::uint8_t {
  patience,  // after a take-over: members of the register's epoch may come back
  founding,  // an empty register founds no run before it ends
  refound,   // all members are lost: another run may be founded when it ends
  absence    // of one peer: its connection has closed; PeerGone when it ends
};

struct Send {
  PeerId peer;
  MasterToPeer message;
};
/// The same to several peers: encoded once, for a proposal has the bytes of all members.
struct SendAll {
  std::vector<PeerId> peers;
  MasterToPeer message;
};
struct WriteRegister {
  Register from;
  Register to;
};
/// Closes its connection, after what was sent to it.
struct Close {
  PeerId peer;
};
/// `peer` for absence only.
struct StartTimer {
  TimerKind kind;
  PeerId peer;
};
struct StopTimer {
  TimerKind kind;
  PeerId peer;
};
/// A log line: every change of members is one.
struct Say {
  bool warning = false;
  std::string text;
};
/// Close everything, read the register anew.
struct Deposed {
  std::string why;
};
struct RunOver {};  // the register says so; the operator may stop

using Action =
    std::variant<Send, SendAll, WriteRegister, Close, StartTimer, StopTimer, Say, Deposed, RunOver>;
using Actions = std::vector<Action>;

// ---------------------------------------------------------------------------------------- state

/// A member of the register's epoch, connected or not.
struct Seat {
  std::uint32_t group = 0;  // its peer group
  /// Its connection is gone, and it may come back until this timer ends: `absence` if the
  /// connection closed under this master, else `patience`.
  std::optional<TimerKind> awaited;
  bool suspected = false;  // a member has lost its link to it
  bool expelled = false;   // may not go on, also if it comes back
  bool departed = false;   // ended by itself: no grace
  bool failed = false;     // with `departed`: an error ended its program
  bool quiet = false;      // has issued nothing in this step, heard since the wish (leaving.cpp)
  std::string reason;      // why it is gone, for the log; empty: it is here, or nothing is known
};

/// A connected peer, as its last report says.
struct PeerState {
  Member member;
  Report report;
  bool at_door = false;  // a newcomer that has called refresh
  StateRoot door_root;
  std::uint64_t arrived = 0;  // order of arrival: newcomers come last, in this order
};

struct State {
  Config config;
  std::optional<Register> held;     // what it last read from the register or wrote
  std::optional<Register> writing;  // a write without an answer: all else is put aside
  bool holds = false;               // it has taken an incarnation
  std::uint32_t counter = 0;        // of epochs in this incarnation
  std::uint64_t arrivals = 0;
  std::map<PeerId, PeerState> peers;  // connected
  std::optional<Epoch> proposal;
  std::set<PeerId> ready;
  bool running = false;  // the register's epoch is in force: commits are made
  std::map<std::pair<std::uint32_t, OpKey>, std::set<PeerId>> done;  // (peer group, operation)
  std::map<std::uint64_t, bool> flags;         // step -> does its boundary vote
  std::vector<PeerId> pinned;                  // as of the last Start of this incarnation
  std::set<std::pair<PeerId, PeerId>> cannot;  // (p, q): they cannot reach each other; p is younger
  std::map<std::pair<PeerId, PeerId>, std::set<PeerId>> useless;  // over whom they tried in vain
  std::map<std::uint32_t, OpKey> expired;  // peer group -> an operation whose time-out has passed
  std::optional<std::uint64_t> expired_boundary;  // a step of which the boundary's time is over
  bool founding_delay = false;                    // TimerKind::founding runs
  bool holding = false;                           // --hold-below: said so
  bool patient = false;                           // TimerKind::patience runs
  bool refounding = false;                        // TimerKind::refound runs
  std::optional<std::uint64_t> woke_s;            // when its loop was late the last time
  bool adopting = false;                          // `writing` is an epoch that peers reported
  std::uint64_t now_s = 0;
  std::map<std::string, std::vector<std::uint64_t>> losses;  // of a named replica, lately: when
  /// Newcomers that some member could not reach: how often, and when they may try again.
  std::map<PeerId, std::pair<std::uint64_t, std::uint64_t>> unreachable;
  std::set<PeerId> kept_waiting;  // at the door, told why they are not admitted yet
  // Leaving at once (leaving.cpp).
  bool wishes = false;                 // a member wishes to
  bool at_once = false;                // `proposal` is without them, or will be
  std::optional<std::uint64_t> tried;  // up to this step it has failed: the boundary decides

  // Of the register's epoch.
  std::map<PeerId, Seat> seats;                         // of its members
  std::map<std::uint32_t, std::vector<PeerId>> groups;  // its peer groups, in rank order
  std::map<std::uint32_t, std::uint64_t> commit_step;   // peer group -> step of its newest commit
  std::map<std::uint32_t, OpKey> newest_commit;  // that this master has made, in whatever epoch
  std::optional<Failure> failure;  // from there on nothing is committed until a boundary votes
  std::set<PeerId> left;           // departed with the newest change of members
  /// Pairs that went on over a third, have nobody any more, and have been let try without, once.
  std::set<std::pair<PeerId, PeerId>> retried;

  std::size_t unvoted = 0;  // index of a member that had not voted when it was looked for last
  std::map<std::uint32_t, SyncPlan> plans;  // of `proposal`, by peer group
  std::set<PeerId> leavers;                 // members that leave with `proposal`
  std::set<PeerId> unknown;  // connected, of an epoch that the register does not know
};

/// Applies one event to `state` and returns what the caller has to do, in order.
[[nodiscard]] Actions step(State& state, const Event& event);

}  // namespace pccl::master
