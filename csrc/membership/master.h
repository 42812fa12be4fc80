// The master's decisions, as a function: step(state, event) -> actions. No I/O, no clock, no random
// number, no thread. master/run_server.cpp calls it with sockets and a file, tests/sim in a
// simulated world.
//
// The rules are in docs/architecture/rules.md. Duties of the caller:
//  - Between a WriteRegister action and its RegisterWritten (or RegisterUnanswered) the caller
//    applies no other event, but keeps events aside, in order.
//  - Actions are carried out in order. A Send to a peer without a connection is dropped.
//  - The caller numbers the connections, and passes on nothing that arrives on an older connection
//    of a peer.
//  - StartTimer{kind} restarts that timer; its event comes when the timer ends (durations:
//    options).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "membership/topology.h"
#include "wire/messages.h"

namespace pccl::master {

struct Config {
  std::string run;               // name of the run; guards against joining the wrong one
  std::uint32_t min_peers = 2;   // a run is founded when so many replicas wait
  std::uint32_t hold_below = 1;  // with fewer replicas the run holds at its next boundary
  std::uint32_t max_peers = static_cast<std::uint32_t>(
      kMembersMax);           // members of an epoch; further newcomers wait at the door
  bool measure_links = true;  // and order rings by what the links of members carry
  // The operator's answer when members report an epoch that the register does not know:
  bool adopt = false;    // go on with that epoch; the operator says that no other master runs
  bool refound = false;  // give up its members, and members of the register's epoch that stay away
  bool again = false;    // open a run anew that is finished
  std::uint64_t heartbeat_ms = 1000;       // from one heartbeat of a peer to the next
  std::uint64_t patience_ms = 15000;       // TimerKind::patience
  std::uint64_t refound_after_ms = 60000;  // TimerKind::refound, where all were seen to be lost
  std::uint64_t lapse_ms = 0;  // for so long another master may go on without the register
  // By which a register knows its masters: HKDF of the key of the master; none: it takes no tokens.
  std::optional<Digest> key = {};
  // Several masters share the register: a peer that knows a higher incarnation has another master.
  bool shared = false;
  std::uint32_t read_for = 0;  // the highest such incarnation for which the register was read anew
};

/// How a run was finished.
struct Ending {
  std::uint64_t step = 0;            // of the run's state
  std::uint64_t unix_s = 0;          // when; 0: not known
  std::uint64_t boundary = 0;        // the number of the step that the last boundary ended
  std::vector<PeerId> members = {};  // that finished the run, in rank order; empty: not known
  static constexpr std::string_view kAddedFrom = "boundary";
  bool operator==(const Ending&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("step", self.step);
    visit("unix_s", self.unix_s);
    visit("boundary", self.boundary);
    visit("members", self.members, kMembersMax);
  }
};

inline constexpr std::size_t kRevokedMax = 1024;  // tokens in the register; the newest stay

/// A token, as the register names it: its name, and a mark that only a master with the run's key
/// can make, and only of the same secret. So a later token of that name is another one.
struct TokenMark {
  std::string name;
  Digest mark{};
  bool operator==(const TokenMark&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("name", self.name, kTokenNameBytesMax);
    visit("mark", self.mark);
  }
};

/// The register: the values that outlive a master. Changed by compare-and-write only; never the
/// same value twice.
struct Register {
  std::uint32_t incarnation = 0;  // the highest that a master has taken
  // The last epoch that was, or may have been, started; none: not founded.
  std::optional<Epoch> epoch;
  std::uint64_t passed = 0;          // the step that its last voted boundary began
  bool over = false;                 // the run is over: the next newcomers found another
  std::optional<Ending> ended = {};  // with `over`: the run is finished, and no other is founded
  // By which nobody enters, whatever the file of a master says.
  std::vector<TokenMark> revoked = {};
  /// The members of the last voted boundary, in rank order: by their number means are divided.
  /// Empty: an older master wrote this value, or the run was adopted.
  std::vector<PeerId> pinned = {};
  /// With an epoch that is a boundary, for a master that finds it not started: the numbering of
  /// before it, and the members that it admits.
  std::uint64_t before_passed = 0;
  std::vector<PeerId> before_pinned = {};
  std::vector<PeerId> admitted = {};
  /// Config::key of the master that wrote this value; none: it took no tokens, or was an older one.
  std::optional<Digest> key = {};
  static constexpr std::string_view kAddedFrom = "ended";
  bool operator==(const Register&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("incarnation", self.incarnation);
    visit("epoch", self.epoch);
    visit("passed", self.passed);
    visit("over", self.over);
    visit("ended", self.ended);
    visit("revoked", self.revoked, kRevokedMax);
    visit("pinned", self.pinned, kMembersMax);
    visit("before_passed", self.before_passed);
    visit("before_pinned", self.before_pinned, kMembersMax);
    visit("admitted", self.admitted, kMembersMax);
    visit("key", self.key);
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
struct RegisterUnanswered {
  std::string why;
};
struct PeerConnected {
  Hello hello;
  std::string origin = {};  // its token and network, which it cannot choose
};
/// The connection of a peer has closed; the peer may come back.
struct PeerDisconnected {
  PeerId peer;
};
/// A peer will not come back: it was silent, has said goodbye, or has not come back in time.
struct PeerGone {
  PeerId peer;
  std::string why;
};
/// The process of a peer was seen to have ended: it runs on the machine of this master.
struct PeerDied {
  PeerId peer;
};
/// Who may be in the run: peers that came by a token of another name are expelled, or by one that
/// the register calls revoked.
struct TokensAre {
  std::vector<TokenMark> valid;
  std::vector<TokenMark> gone = {};  // revoked: the register is to name them
};
/// Every message of a peer but Hello and StoreRequest.
struct PeerMessage {
  PeerId peer;
  PeerToMaster message;
};
struct PatienceOver {};  // TimerKind::patience
struct FoundingOver {};  // TimerKind::founding
struct RefoundOver {};   // TimerKind::refound
struct Woke {};          // the master's own loop was late: silence in that time does not count
/// SIGINT (`ends_wait`) or SIGTERM, which is also what restarts a service.
struct OperatorStops {
  bool ends_wait = false;
};
/// About once a second, with the time of any clock that does not go back.
struct Clock {
  std::uint64_t now_s = 0;
  std::uint64_t unix_s = 0;  // the time of day, for people; 0: not known
};

using Event = std::variant<TakenOver, RegisterWritten, RegisterUnanswered, PeerConnected,
                           PeerDisconnected, PeerGone, PeerDied, TokensAre, PeerMessage,
                           PatienceOver, FoundingOver, RefoundOver, Woke, OperatorStops, Clock>;

// ---------------------------------------------------------------------------------------- actions

enum class TimerKind : std::uint8_t {
  patience,  // after a take-over, or when all were cut off: members may come back
  founding,  // with an empty register: no run is founded before it ends
  refound,   // all members are lost: another run may be founded when it ends
  absence    // of one peer: its connection has closed; PeerGone when it ends
};

struct Send {
  PeerId peer;
  MasterToPeer message;
};
/// One message to several peers. The caller encodes it once, because a proposal is as large as the
/// list of all members.
struct SendAll {
  std::vector<PeerId> peers;
  MasterToPeer message;
};
struct WriteRegister {
  Register from;
  Register to;
};
/// Close the connection of a peer, after everything queued for it has been sent.
struct Close {
  PeerId peer;
};
/// `peer` is set for `absence` only.
struct StartTimer {
  TimerKind kind;
  PeerId peer;
};
struct StopTimer {
  TimerKind kind;
  PeerId peer;
};
/// Write a log line; each change of a member is one.
struct Say {
  bool warning = false;
  std::string text;
  /// PeerConnected::origin of the process that it is about, where that is no member: any number of
  /// them may come, so the server leaves lines out.
  std::string origin = {};
};
/// Close all connections and read the register anew: another master may be in charge.
struct Deposed {
  std::string why;
};
struct RunOver {};  // the register says that the run is over; the operator may stop the master

using Action =
    std::variant<Send, SendAll, WriteRegister, Close, StartTimer, StopTimer, Say, Deposed, RunOver>;
using Actions = std::vector<Action>;

// ---------------------------------------------------------------------------------------- state

/// A member of the register's epoch, connected or not.
struct Seat {
  std::uint32_t group = 0;  // its peer group
  /// The member has no connection and may come back until this timer ends: `absence` if the
  /// connection was one to this master, else `patience`.
  std::optional<TimerKind> awaited;
  /// Nothing is known of its loss but that its connection to this master has ended.
  bool cut_off = false;
  bool suspected = false;  // another member has lost its link to this one
  bool expelled = false;   // may not go on, even if it comes back
  bool dead = false;       // its process was seen to have ended
  bool revoked = false;    // the token by which it came was revoked: it cannot come back
  bool departed = false;   // said goodbye: it will not come back
  bool failed = false;     // with `departed`: an error ended its program
  bool said = false;       // with `departed`: the log has the line
  bool quiet = false;  // has issued nothing in this step, said after a wish to leave (leaving.cpp)
  // Why the member is gone, for the log; empty: it is connected, or nothing is known.
  std::string reason;
  bool of_mate = false;  // `reason` is about another rank of its replica
};

/// A member says that its time-out has passed at an operation, or at a boundary (lateness.cpp).
struct Accusation {
  OpKey place;
  std::uint64_t since_s = 0;
  bool operator==(const Accusation&) const = default;
};

/// Two members could not reach each other, and one of them had to go (reachability.cpp).
struct Parted {
  std::uint64_t since_s = 0;
  std::uint64_t arrivals = 0;  // of peers until then
};

/// How often a member has made all begin anew, since an operation was committed (restarts.cpp).
struct Restarts {
  unsigned count = 0;
  std::uint64_t last_s = 0;
};

/// The state on its way to peers that are not ready, while others wait for them (fetches.cpp).
struct Fetches {
  std::uint64_t fetched = 0;          // bytes, by the words of those that fetch
  std::uint64_t served = 0;           // by the words of those that serve
  std::uint64_t fetched_still_s = 0;  // since `fetched` has grown
  std::uint64_t served_still_s = 0;
  std::uint64_t for_s = 0;
};

/// How long members have been asked to be ready for a proposal (unready.cpp).
struct Unready {
  EpochId proposal;
  std::size_t ready = 0;  // of all in the proposal
  Fetches fetches;
};

/// Newcomers that were asked to be ready since the last Start (newcomers.cpp).
struct NewcomersAsked {
  bool any = false;
  Fetches fetches;  // since the first was asked, while a proposal stood
  /// The time is over: none but these are admitted before the next Start.
  std::optional<std::set<PeerId>> let_in;
};
/// How often something was done in the second `second_s`.
struct Pace {
  std::uint64_t second_s = 0;
  std::uint64_t times = 0;
};
/// The links of a newcomer to the members of its peer group, and to newcomers of it whose trial has
/// begun before, are being tried, or are up (trials.cpp).
struct Trial {
  std::uint64_t number = 0;    // in the order in which trials begin
  std::set<PeerId> mates;      // the others, but those that it cannot reach
  std::set<PeerId> unsaid;     // of these: it has not said that the link is up
  std::set<PeerId> silent;     // the other has not said so
  std::uint64_t waited_s = 0;  // since it was asked last
  std::uint64_t silent_s = 0;  // for which nothing but the word of others was missing, in all
};
/// A newcomer that could not be reached.
struct Unreachable {
  std::uint64_t times = 0;
  std::uint64_t retry_s = 0;  // when it is tried again; 0: that time has come
  std::string why = {};
};
/// At which sites the members of a peer group stand, as the last Start has told them.
struct SitesTold {
  std::string text;                      // the log's last word
  std::map<PeerId, std::uint32_t> site;  // of each member, from 1
};
/// What is held against the newcomers of one token and network.
struct Origin {
  std::uint64_t unready = 0;    // times that one was not ready in time
  std::uint64_t unreached = 0;  // times that a member could not reach one
  std::uint64_t until_s = 0;    // until then they wait at the door
  std::uint64_t last_s = 0;
};

/// A connected peer, with its last report.
struct PeerState {
  Member member;
  Report report;
  bool at_door = false;                      // a newcomer that has called refresh
  std::optional<std::uint64_t> told_s = {};  // when it heard for whom the run stands still
  StateRoot door_root;
  std::string host;                 // as its hello says, for people
  std::string origin;               // its token and network; empty: not known
  Heartbeat beat;                   // the newest
  bool beats = false;               // there has been one
  Heartbeat beat_before;            // at the last look (fetches.cpp)
  std::uint64_t unready_s = 0;      // for which it has been asked to be ready
  std::uint64_t moved_s = 0;        // when its program has come further
  OpKey furthest;                   // to which it has come; who says less later has not moved
  std::uint64_t arrived = 0;        // order of arrival: newcomers come last, in this order
  std::optional<Trips> trips = {};  // of its links, as it said when it was ready
};

struct State {
  Config config;
  std::optional<Register> held;  // the value that this master last read from the register or wrote
  std::optional<Register> writing;  // a write that has no answer yet
  bool holds = false;               // this master has taken an incarnation: it is in charge
  std::uint32_t counter = 0;        // number of the newest epoch of this incarnation
  std::uint64_t arrivals = 0;
  std::size_t tokens = 0;             // that open the run
  std::map<PeerId, PeerState> peers;  // connected
  std::optional<Epoch> proposal;
  std::set<PeerId> ready;
  bool running = false;  // the register's epoch is in force: commits are made
  std::map<std::pair<std::uint32_t, OpKey>, std::set<PeerId>> done;  // (peer group, operation)
  std::map<std::uint64_t, bool> flags;         // step -> does its boundary vote
  std::set<std::pair<PeerId, PeerId>> cannot;  // (younger, older) that cannot reach each other
  std::map<std::pair<PeerId, PeerId>, std::string> why_not;  // of `cannot`: the newest reason
  // Third members over which such a pair did not reach each other.
  std::map<std::pair<PeerId, PeerId>, std::set<PeerId>> useless;
  std::map<PeerId, std::map<PeerId, Parted>> parted;  // by member, then by who had to go
  Unready unready;
  std::map<std::pair<PeerId, PeerId>, Restarts> restarts;  // (p, q): p about its link to q
  std::map<PeerId, Accusation> accusations;                // by the members that say so
  bool founding_delay = false;                             // TimerKind::founding runs
  bool holding = false;        // --hold-below: the members have been told
  std::size_t holds_with = 0;  // replicas, with `holding`: those that would go on
  bool deserted = false;       // at the last look no whole replica of the register's epoch was here
  bool patient = false;        // TimerKind::patience runs
  bool refounding = false;     // TimerKind::refound runs
  std::uint64_t stands_until_s = 0;     // with `patient`, `refounding`: when it ends
  std::uint64_t tells_again_s = 0;      // when newcomers are told again
  std::optional<std::uint64_t> woke_s;  // when the master's loop was late the last time
  bool adopting = false;                // `writing` is an epoch that peers reported
  bool revoking = false;                // `writing` names more tokens as revoked, and nothing else
  std::uint64_t now_s = 0;
  std::uint64_t unix_s = 0;
  // Replica name -> times of its recent losses.
  std::map<std::string, std::vector<std::uint64_t>> losses;
  std::map<PeerId, Unreachable> unreachable;
  std::map<PeerId, Trial> trials;
  std::uint64_t trials_begun = 0;
  bool trials_changed = false;  // peers, or what is held against them
  Topology topology;
  std::map<std::uint32_t, SitesTold> sites_told;  // by peer group
  bool trials_later = false;  // the next second begins trials, and asks for links
  Pace asks_for_links;
  std::map<PeerId, Try> links_to_ask;  // by receiver
  NewcomersAsked asked;
  std::map<std::string, Origin> origins;
  // Founders that cannot reach each other (founding.cpp): when they are proposed again, and how
  // often they were. 0: there are none, or they are proposed.
  std::uint64_t apart_again_s = 0;
  std::uint64_t apart_tries = 0;
  std::set<PeerId> kept_waiting;  // newcomers that were told why they are not admitted yet
  // Leaving at once (leaving.cpp).
  bool wishes = false;   // a member wishes to leave at once
  bool at_once = false;  // `proposal` is, or will be, without those members
  // Leaving at once has failed up to this step: its boundary decides.
  std::optional<std::uint64_t> tried;

  /// Why members of earlier epochs are gone, the newest last.
  std::deque<std::pair<PeerId, std::string>> lost_lately;

  // Of the register's epoch.
  std::map<PeerId, Seat> seats;                         // its members
  std::map<std::uint32_t, std::vector<PeerId>> groups;  // its peer groups, in rank order
  std::map<std::uint32_t, std::uint64_t> commit_step;   // peer group -> step of its newest commit
  // Peer group -> newest commit of this master, in any epoch.
  std::map<std::uint32_t, OpKey> newest_commit;
  std::map<std::uint32_t, OpSet> committed;  // peer group -> what is known to be committed
  std::optional<Failure> failure;  // no operation from there on is committed until a boundary votes
  std::set<PeerId> left;           // departed with the newest change of members
  /// The furthest step that a member had reached when it came from an epoch of another incarnation:
  /// the commits of that step are not known to this master.
  std::uint64_t brought_step = 0;
  /// Pairs whose data a third member passed on, that have no third member any more, and that were
  /// asked once to connect to each other again.
  std::set<std::pair<PeerId, PeerId>> retried;

  std::size_t unvoted = 0;                  // index of a member that had not voted at the last look
  std::map<std::uint32_t, SyncPlan> plans;  // of `proposal`, by peer group
  std::set<PeerId> leavers;                 // members that leave with `proposal`
  std::set<PeerId> unknown;  // connected, of an epoch that the register does not know
  Pace founding_proposals;
  bool found_later = false;  // there were too many: the next second proposes
};

// What the caller may ask.

/// Is the peer a member of the register's epoch?
[[nodiscard]] bool is_own_member(const State& state, PeerId peer);
/// The name of a peer in logs: "rank 2 (00..1f)" if it is a member.
[[nodiscard]] std::string name(const State& state, PeerId peer);
/// Why a Hello is refused; code none: it is accepted.
[[nodiscard]] Error check_hello(const State& state, const Hello& hello);
/// The newcomers whose replica lacks ranks, with the missing ranks. They wait without a limit.
[[nodiscard]] std::map<PeerId, std::string> incomplete(const State& state);
/// How long TimerKind::refound is.
[[nodiscard]] std::uint64_t refound_ms(const State& state);
/// A text for the log and for newcomers while all members of the register's epoch are gone, or not
/// back yet: which members the run waits for, how long still, and what ends the wait at once.
/// Empty: a member is connected, or there is no epoch.
[[nodiscard]] std::string standstill(const State& state);
/// A text for the log while the run is not founded because founders cannot reach each other: which,
/// when they are proposed again, and what helps. Empty: that is not the reason.
[[nodiscard]] std::string founders_apart(const State& state);

/// Does the register say that this token was revoked?
[[nodiscard]] bool is_revoked(const Register& held, const TokenMark& token);
/// The names of those of `valid` that open the run: all that are not revoked.
[[nodiscard]] std::set<std::string> names_that_open(const Register& held,
                                                    const std::vector<TokenMark>& valid);
/// Why no member of the run in `held` could come to a master with this key and these tokens, and
/// what to do: that master is not to take the run over. Empty: it may.
[[nodiscard]] std::string lockout(const Register& held, const Config& config,
                                  const std::vector<TokenMark>& valid);

/// Applies one event to `state` and returns what the caller has to do, in order.
[[nodiscard]] Actions step(State& state, const Event& event);

}  // namespace pccl::master
