// A simulated world around the two cores of csrc/membership: masters that share a register, peers
// with their programs, links and state, and everything that can happen next. No threads, no clock:
// `moves` lists what is possible, the walk (walk.h) chooses.
//
// Safety must not rest on a lease, so any standby may take over at any time, and whoever has lost
// its office may not notice for long. When the faults are over the lease works: one master has it.
//
// A result is named by the epoch in which it was computed, and by whether every contribution was
// clean; since an operation takes exactly one contribution of every member, the same epoch means
// the same bits.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/random.h"
#include "membership/master.h"
#include "membership/peer.h"
#include "planted.h"

namespace pccl::sim {

/// What may go wrong, each so often.
enum class Fault : std::uint8_t {
  crash,
  stop,
  reset,
  cut,
  cut_half,
  link,
  link_half,
  heal,
  flap,
  hang,
  wish,
  bye,
  mismatch,
  mcrash,
  mstop,
  cut_register,
  partition,
  foreign,
  lease,
  stray,
  move_on,
  repeat,
  lose,
  outage,
  count
};
inline constexpr auto kFaults = static_cast<std::size_t>(Fault::count);

/// What is fixed for a walk.
struct Rules {
  int peers = 3;
  int ranks = 1;  // of each replica
  int masters = 1;
  bool unaware = false;        // who has lost its lease finds out only by a write that is refused
  std::uint32_t founders = 2;  // replicas
  std::uint32_t hold_below = 1;
  bool boundaries = true;  // the program calls refresh after each step
  // R replayed, B broadcast, X needs every pinned member (as all do where on_loss is "raise")
  std::vector<std::string> program;
  std::set<std::uint64_t> resumes;    // steps whose boundary is resume
  std::set<std::uint64_t> verifies;   // steps whose boundary votes in any case
  std::uint64_t window = 2;           // operations in flight
  bool eager = false;                 // timers may end at any time
  bool finishes = false;              // the program finishes the run, and does not just leave
  std::array<int, kFaults> budget{};  // of each fault
  PlantedBugs planted;
  bool slow_adoption = false;  // a proposal may come while a peer replaces its state
  int liar = -1;               // a peer of which nothing that it says need be true
  bool only_lies = false;      // with a liar: nothing else goes wrong
  int local = 0;  // so many peers, the first, run on the machine of master 0, which sees them end
};

enum class Life { absent, up, stopped, dead };

/// A peer's shared state: where it began, and what was committed since.
struct Content {
  std::uint64_t tag = 0;
  std::uint64_t revision = 0;
  std::vector<std::pair<OpKey, EpochId>> ops;
  bool operator==(const Content&) const = default;
};
[[nodiscard]] StateRoot root_of(const Content& content);

struct Outcome {
  OpKey op;
  EpochId epoch;         // 0: it failed
  bool clean = true;     // a result was there, and each contribution was clean
  bool closing = false;  // it failed because this peer goes no further
};

struct OpWorld {
  char kind = 'R';
  PeerId root;
  bool active = false;                             // data flows
  bool dirty = false;                              // the tensor holds partial sums
  std::optional<std::pair<EpochId, bool>> result;  // epoch, clean
};

struct LinkEvent {
  PeerId peer;
  bool back = false;
  bool refused = false;
};

struct PeerWorld {
  peer::State core;
  Life life = Life::absent;
  bool connected = false;
  std::uint64_t conn = 0;
  int master = 0;  // of `conn`
  int home = 0;    // the master of its epoch: tried first when a connection is lost

  // The engine's part.
  std::optional<peer::Connect> connect;
  std::map<PeerId, bool> tries;  // links beside those of the epoch; has it said that they are up?
  std::optional<peer::Fetch> fetch;
  bool adopting = false;  // `staged` may replace `content`
  Content staged;
  bool hash = false;
  bool stopped_data = true;
  EpochId configured;
  std::vector<Member> mates;
  std::map<OpKey, OpWorld> ops;  // without an outcome
  std::set<OpKey> committed;     // of this step
  std::map<OpKey, EpochId> committed_in;
  std::deque<LinkEvent> link_events;
  std::set<std::pair<EpochId, OpKey>> mismatch_said;
  std::tuple<std::uint64_t, EpochId, OpKey> beat;  // its last heartbeat: connection, epoch, issued

  // The program's part.
  bool welcomed = false;  // told that a run is there
  bool in_boundary = false;
  bool failed_step = false;
  bool entered = false;  // it has begun a step
  std::uint64_t step = 0;
  std::uint64_t waited = 0;  // index of the operation that the program waits for next
  bool hung = false;
  bool leaving = false;
  bool over = false;
  bool evicted = false;
  bool said_bye = false;
  bool foreign = false;  // of another run
  Content content;
  std::vector<PeerId> numbering;
  EpochId first_epoch;

  // For the invariants.
  std::vector<Outcome> outcomes;
  std::vector<std::pair<std::uint64_t, bool>> crossed;
  std::map<OpKey, std::vector<PeerId>> numbering_at;  // what rank and size were when it was issued
  std::set<EpochId> ready_busy;  // proposals that it answered with something issued in its step
};

using Message = std::variant<std::monostate, PeerToMaster, MasterToPeer>;  // monostate: closed
struct Item {
  std::uint64_t conn = 0;
  Message message;
};

struct MasterWorld {
  std::optional<master::State> core;  // none: its process is not there
  Life life = Life::up;
  std::map<PeerId, std::uint64_t> conns;
  std::set<master::TimerKind> timers;
  std::set<PeerId> absences;
  std::optional<master::Register> read;  // what it will take over from
  std::uint64_t write = 0;               // the one whose answer it waits for
  bool woke = false;                     // it does not know yet that it was stopped
  bool refounds = false;                 // TimerKind::refound has just ended
  std::map<int, int> beats;              // heartbeats that each has sent since `expired`
  int measurings = 0;                    // seconds in which it has had links measured
};

/// A request to the register. It outlives the master that has given it up or died.
struct Write {
  std::uint64_t number = 0;
  int master = 0;
  master::Register from, to;
  bool answered = false;
  bool ok = false;
  bool waited = false;  // the members were given their time to come back
};

enum class Sort { fair, maybe, fault, timer };
enum class What {
  arrive,
  connect,
  peer_silent,
  peer_to_master,
  master_to_peer,
  rest_lost_up,
  rest_lost_down,
  register_writes,
  register_answers,
  gives_up_write,
  operator_answers,
  boots,
  reads,
  takes_over,
  ousted,
  master_silent,
  patience,
  founding,
  refound,
  absence,
  sees_death,
  links_up,
  link_fails,
  tried_up,
  tried_in_vain,
  fetched,
  adopts,
  hashed,
  link_event,
  issue,
  boundary,
  complete,
  door,
  leave,
  end_leave,
  end_bye,
  returned,
  times_out,
  heartbeat,
  finds_mismatch,
  wakes,
  master_wakes,
  // faults
  crash,
  stop,
  reset,
  cut,
  link,
  heal,
  flap,
  hang,
  wish,
  bye,
  mismatch,
  mcrash,
  mstop,
  cut_register,
  partition,
  foreign,
  strays,
  moves_on,
  repeat_up,
  repeat_down,
  outage,
  founders_again,
  newcomers_again,
  has_measured
};

/// Which way of a cut is lost.
enum class Way { both, there, back };

struct Move {
  What what;
  Sort sort = Sort::fair;
  int a = -1;  // a peer
  int b = -1;  // another
  OpKey op;
  int m = -1;  // a master
  Way way = Way::both;
  std::uint64_t number = 0;  // of a write
};

class World {
 public:
  World(Rules rules, Random& random);

  [[nodiscard]] std::vector<Move> moves() const;
  void apply(const Move& move);
  /// The faults are over: everything that is not dead works again.
  void settle();
  /// Time goes on: peers repeat time-outs and heartbeats, of which `moves` has only some.
  void remind();
  [[nodiscard]] std::string label(const Move& move) const;

  // Open to the invariants.
  Rules rules;
  std::vector<PeerWorld> peers;
  std::vector<MasterWorld> masters;
  master::Register held;                        // what the register holds
  std::map<EpochId, Epoch> epochs;              // all that were proposed
  std::map<EpochId, std::set<PeerId>> started;  // by whom
  std::map<std::pair<EpochId, std::uint32_t>, std::vector<PeerId>> rings;  // of peer groups
  std::map<std::pair<EpochId, std::uint32_t>, Lines> lines_of_epochs;      // the same
  std::set<EpochId> foundings;                  // epochs that found a run
  std::map<EpochId, std::set<PeerId>> at_once;  // who left with an epoch that ends no boundary
  std::set<int> faulty;
  bool contested = false;        // two masters may have had peers
  bool lost = false;             // the register has been lost or set back
  EpochId given_up;              // the newest epoch of a run that was given up by --refound
  bool joined_late = false;      // somebody has called refresh at the door
  std::set<int> parted;          // sound replicas that went since they could not reach another
  bool changed = false;          // something that an invariant reads
  bool lied_of_failure = false;  // the liar has said that an operation fails
  bool was_lost = false;         // `lost` was true once: an operator was needed
  std::string broken;   // a contradiction found on the way; none that a liar alone has seen
  std::string crashed;  // with a liar: what a core that is sound has not borne
  std::vector<std::string> log;  // with `tracing`
  bool tracing = false;

  [[nodiscard]] static PeerId id(int peer) { return PeerId{static_cast<std::uint64_t>(peer) + 1}; }
  [[nodiscard]] static int index(PeerId peer) { return static_cast<int>(peer.value) - 1; }
  [[nodiscard]] int group(int peer) const { return peer % rules.ranks; }
  [[nodiscard]] int replica(int peer) const { return peer / rules.ranks; }
  [[nodiscard]] bool lies(int peer) const { return peer == rules.liar; }
  /// Does this peer, or another rank of its replica, lie? Its replica goes with it.
  [[nodiscard]] bool goes_with_liar(int peer) const {
    return rules.liar >= 0 && replica(peer) == replica(rules.liar);
  }
  [[nodiscard]] const PeerWorld& at(PeerId peer) const {
    return peers[static_cast<std::size_t>(index(peer))];
  }
  [[nodiscard]] EpochId run_of(EpochId epoch) const;  // its founding
  /// The master whose incarnation is the register's; null: nobody is in office.
  [[nodiscard]] const master::State* in_office() const;

 private:
  using Pair = std::pair<int, int>;
  static constexpr int kRegister = -1000;
  static int node(int m) { return -1 - m; }  // of a master; a peer's is its number

  PeerWorld& peer(int p) { return peers[static_cast<std::size_t>(p)]; }
  const PeerWorld& peer(int p) const { return peers[static_cast<std::size_t>(p)]; }
  MasterWorld& master(int m) { return masters[static_cast<std::size_t>(m)]; }
  const MasterWorld& master(int m) const { return masters[static_cast<std::size_t>(m)]; }
  /// The master that this peer is connected to, or was.
  const MasterWorld& master_of(int p) const { return master(peer(p).master); }
  bool up(int p) const { return peer(p).life == Life::up; }
  bool master_up(int m) const { return master(m).core && master(m).life == Life::up; }
  /// Does what one sends reach the other?
  bool reaches(int from, int to) const { return !cuts_.contains(Pair(from, to)); }
  bool joined(int a, int b) const { return reaches(a, b) && reaches(b, a); }
  /// The peer over whom an epoch lets these two reach each other; -1: nobody, they have a link.
  [[nodiscard]] static int relay_of(const Epoch& epoch, int a, int b);
  /// Can these two peers have a link in this epoch?
  [[nodiscard]] bool linked(const Epoch& epoch, int a, int b) const;
  [[nodiscard]] bool linked(EpochId epoch, int a, int b) const;

  /// A contradiction at this peer. What a liar sees is no matter.
  void breaks(int p, std::string what) {
    if (!lies(p)) broken = std::move(what);
  }
  void to_peer(int p, const peer::Event& event);
  void act(int p, peer::Actions actions);
  void check_ring(int p, const peer::Configure& action);
  void put(int from, int to, std::uint64_t conn, Message message);
  void deliver_to_peer(int p, int m, bool last);
  void cut(int a, int b, Way way);
  void heal();
  void partition();
  void flap(int a, int b);
  void close_links(int a, int b, bool sure);
  void arrive_foreign(int p);
  void note(const Epoch& epoch);
  void set_outcome(int p, OpKey op, bool failed);
  void enter_step(int p, const peer::EnterStep& action);
  void spend(const Move& move);
  void apply_fault(const Move& move);
  void forget_data();

  // masters.cpp
  master::State fresh_master() const;
  void to_master(int m, const master::Event& event);
  void judge(int m, const master::Send& send);
  void judge_eviction(int m, int p, const std::string& why);
  void act_master(int m, master::Actions actions);
  void deliver_to_master(int m, int p, bool last);
  void close_from_master(int m, int p);
  void depose(int m, const std::string& why);
  void crash_master(int m);
  void outage(int m);
  void write_register(Write& write);
  [[nodiscard]] std::string wrong_end(const Write& write) const;
  [[nodiscard]] std::string ends_by_a_lie(const Write& write) const;
  [[nodiscard]] bool may_lose_register() const;
  void lose_register();
  bool apply_at_master(const Move& move);

  void peer_moves(int p, std::vector<Move>& out) const;
  void connect_moves(int p, std::vector<Move>& out) const;
  void link_moves(int p, std::vector<Move>& out) const;
  void try_moves(int p, std::vector<Move>& out) const;
  [[nodiscard]] static std::uint64_t next_retry_s(const master::State& core);
  void net_moves(std::vector<Move>& out) const;
  void program_moves(int p, std::vector<Move>& out) const;
  void master_moves(int m, std::vector<Move>& out, std::vector<Move>& timers) const;
  void register_moves(std::vector<Move>& out) const;
  void timeout_moves(std::vector<Move>& timers) const;
  void fault_moves(std::vector<Move>& out) const;
  void network_faults(std::vector<Move>& out) const;
  [[nodiscard]] bool has_left(Fault fault) const {
    return rules.budget[static_cast<std::size_t>(fault)] > 0;
  }
  [[nodiscard]] bool may_take_over(int m) const;
  [[nodiscard]] bool data_is_there(int p, OpKey op, bool& sure, bool& clean) const;
  [[nodiscard]] std::string letters(std::uint64_t step) const;
  [[nodiscard]] bool siblings_have_ended(int p) const;
  void say(int p, PeerToMaster message);
  void issue(int p);
  void at_boundary(int p);

  Random& random_;
  bool healed_ = false;
  std::map<Pair, std::deque<Item>> net_;
  std::set<Pair> cuts_;                                   // (from, to): what is sent is lost
  std::set<std::tuple<int, EpochId, OpKey, bool>> data_;  // sent: by whom, in which epoch, clean
  std::set<std::tuple<int, int, EpochId, OpKey>> lost_;   // segments that a flapping link has eaten
  std::set<std::pair<EpochId, OpKey>> mismatched_;        // run, operation
  std::vector<Write> writes_;                             // on their way to the register
  std::uint64_t write_numbers_ = 0;
  std::vector<master::Register> history_;  // all that the register has held
  bool adopts_ = false;                    // the operator has said --adopt
  bool refounds_ = false;                  // the operator says --refound if he is asked
  std::map<std::tuple<int, EpochId, OpKey>, int> timeouts_;
};

}  // namespace pccl::sim
