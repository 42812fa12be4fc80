// A simulated world around the two cores of csrc/membership: one master with its register, peers
// with their programs, links and state, and everything that can happen next. No threads, no clock:
// `moves` lists what is possible, the walk (walk.h) chooses.
//
// A result is named by the epoch in which it was computed, and by whether every contribution was
// clean; since an operation takes exactly one contribution of every member, the same epoch means
// the same bits.
#pragma once

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

namespace pccl::sim {

/// What is fixed for a walk.
struct Rules {
  int peers = 3;
  int ranks = 1;               // of each replica
  std::uint32_t founders = 2;  // replicas
  std::uint32_t hold_below = 1;
  bool boundaries = true;  // the program calls refresh after each step
  // R replayed, B broadcast, X needs every pinned member (as all do where on_loss is "raise")
  std::vector<std::string> program;
  std::set<std::uint64_t> resumes;    // steps whose boundary is resume
  std::set<std::uint64_t> verifies;   // steps whose boundary votes in any case
  std::uint64_t window = 2;           // operations in flight
  bool eager = false;                 // timers may end at any time
  std::map<std::string, int> budget;  // of each fault
  PlantedBugs planted;
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

  // The engine's part.
  std::optional<peer::Connect> connect;
  std::optional<peer::Fetch> fetch;
  bool hash = false;
  bool stopped_data = true;
  EpochId configured;
  std::vector<Member> mates;
  std::map<OpKey, OpWorld> ops;  // without an outcome
  std::set<OpKey> committed;     // of this step
  std::deque<LinkEvent> link_events;
  std::set<std::pair<EpochId, OpKey>> mismatch_said;

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
  Content content;
  std::vector<PeerId> numbering;
  EpochId first_epoch;

  // For the invariants.
  std::vector<Outcome> outcomes;
  std::vector<std::pair<std::uint64_t, bool>> crossed;
  std::map<OpKey, std::vector<PeerId>> numbering_at;  // what rank and size were when it was issued
};

using Message = std::variant<std::monostate, PeerToMaster, MasterToPeer>;  // monostate: closed
struct Item {
  std::uint64_t conn = 0;
  Message message;
};

enum class Sort { fair, maybe, fault, timer };
enum class What {
  arrive,
  connect,
  peer_silent,
  peer_to_master,
  master_to_peer,
  rest_lost,
  register_writes,
  register_answers,
  gives_up_write,
  boots,
  takes_over,
  master_silent,
  patience,
  founding,
  refound,
  absence,
  links_up,
  link_fails,
  fetched,
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
  mstop
};

struct Move {
  What what;
  Sort sort = Sort::fair;
  int a = -1;  // a peer
  int b = -1;  // another
  OpKey op;
};

class World {
 public:
  World(Rules rules, Random& random);

  [[nodiscard]] std::vector<Move> moves() const;
  void apply(const Move& move);
  /// The faults are over: everything that is not dead works again.
  void heal();
  [[nodiscard]] std::string label(const Move& move) const;

  // Open to the invariants.
  Rules rules;
  std::vector<PeerWorld> peers;
  std::optional<master::State> master;
  Life master_life = Life::up;
  master::Register held;                        // what the register holds
  std::map<EpochId, Epoch> epochs;              // all that were proposed
  std::map<EpochId, std::set<PeerId>> started;  // by whom
  std::set<EpochId> foundings;                  // epochs that found a run
  std::set<int> faulty;
  bool joined_late = false;      // somebody has called refresh at the door
  bool changed = false;          // something that an invariant reads
  std::string broken;            // a contradiction found on the way
  std::vector<std::string> log;  // with `tracing`
  bool tracing = false;

  [[nodiscard]] static PeerId id(int peer) { return PeerId{static_cast<std::uint64_t>(peer) + 1}; }
  [[nodiscard]] static int index(PeerId peer) { return static_cast<int>(peer.value) - 1; }
  [[nodiscard]] int group(int peer) const { return peer % rules.ranks; }
  [[nodiscard]] int replica(int peer) const { return peer / rules.ranks; }
  [[nodiscard]] const PeerWorld& at(PeerId peer) const {
    return peers[static_cast<std::size_t>(index(peer))];
  }
  [[nodiscard]] EpochId run_of(EpochId epoch) const;  // its founding

 private:
  using Pair = std::pair<int, int>;
  static constexpr int kMaster = -1;

  PeerWorld& peer(int p) { return peers[static_cast<std::size_t>(p)]; }
  const PeerWorld& peer(int p) const { return peers[static_cast<std::size_t>(p)]; }
  bool up(int p) const { return peer(p).life == Life::up; }
  bool master_up() const { return master && master_life == Life::up; }
  bool joined(int a, int b) const { return !cuts_.contains(ordered(a, b)); }
  static Pair ordered(int a, int b) { return a < b ? Pair(a, b) : Pair(b, a); }

  void to_peer(int p, const peer::Event& event);
  void to_master(const master::Event& event);
  void act(int p, peer::Actions actions);
  void act_master(master::Actions actions);
  void put(int from, int to, std::uint64_t conn, Message message);
  void deliver_to_master(int p, bool last);
  void deliver_to_peer(int p, bool last);
  void close_from_master(int p);
  void crash_master();
  void flap(int a, int b);
  void note(const Epoch& epoch);
  void set_outcome(int p, OpKey op, bool failed);
  void enter_step(int p, const peer::EnterStep& action);

  void peer_moves(int p, std::vector<Move>& out) const;
  void program_moves(int p, std::vector<Move>& out) const;
  void master_moves(std::vector<Move>& out, std::vector<Move>& timers) const;
  void fault_moves(std::vector<Move>& out) const;
  [[nodiscard]] bool data_is_there(int p, OpKey op, bool& sure, bool& clean) const;
  [[nodiscard]] std::string letters(std::uint64_t step) const;
  [[nodiscard]] bool siblings_have_ended(int p) const;
  void issue(int p);
  void at_boundary(int p);

  Random& random_;
  std::map<Pair, std::deque<Item>> net_;
  std::set<Pair> cuts_;
  std::set<std::tuple<int, EpochId, OpKey, bool>> data_;  // sent: by whom, in which epoch, clean
  std::set<std::tuple<int, int, EpochId, OpKey>> lost_;   // segments that a flapping link has eaten
  std::set<std::pair<EpochId, OpKey>> mismatched_;        // run, operation
  std::map<PeerId, std::uint64_t> conns_;                 // of the master
  std::set<master::TimerKind> timers_;
  std::set<PeerId> absences_;
  struct Write {
    master::Register from, to;
    bool answered = false;
    bool ok = false;
  };
  std::optional<Write> write_;
  bool woke_ = false;  // it does not know yet that it was stopped
  std::map<std::tuple<int, EpochId, OpKey>, int> timeouts_;
  std::map<int, int> beats_;  // heartbeats that each has sent since `expired`
};

}  // namespace pccl::sim
