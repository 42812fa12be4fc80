// A peer's side of membership and commit, as a function: step(state, event) -> actions. No I/O, no
// clock, no random number, no thread. engine/elastic_group.cpp runs it, tests/sim too.
//
// The rules are in docs/architecture/rules.md. Duties of the caller:
//  - Operations are named by `next_key()` before OpIssued. Data of an operation flows between RunOp
//  and
//    StopData, CommitOp or FailOp, in the epoch of the last Configure.
//  - After StopData nothing is completed until the next Configure. RestoreOp puts the tensors back
//  as
//    the caller of the operation gave them.
//  - CommitOp and FailOp are the outcome: exactly one for each operation, and wait() returns after
//  it.
//  - LinksUp or LinkFailed answers Connect. An answer to an older Connect than the newest changes
//    nothing.
//  - Verified answers Fetch: the state lies beside the caller's own, whole and checked. The caller
//    replaces its own state only after Adopt, and then says what it holds by Fetched, also where
//    nothing came of it. Without Adopt its state stays as it is.
//  - TimedOut is repeated as long as the operation is pending (a master that dies has forgotten
//  it); a
//    boundary whose time is over is named by next_key().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "wire/messages.h"

namespace pccl::peer {

/// What an operation is to a loss (docs/architecture/rules.md).
enum class LossClass : std::uint8_t {
  replay,      // all_reduce, reduce_scatter of equal parts, barrier: replayed among the survivors
  needs_root,  // broadcast, scatter, reduce: replayed if its root survived
  needs_all    // everything else, and all where on_loss is "raise": fails in an epoch that lacks a
               // pinned member
};

// ---------------------------------------------------------------------------------------- events

struct MasterConnected {};  // a new connection: say Hello
struct MasterLost {};
/// All but Heartbeat, StoreReply.
struct FromMaster {
  MasterToPeer message;
};
struct Issued {
  LossClass loss = LossClass::replay;
  PeerId root;
};
/// Its part is complete (in the configured epoch).
struct Completed {
  OpKey op;
};
/// The wait() of a committed operation has returned.
struct Returned {
  OpKey op;
};
/// Its own time-out has passed.
struct TimedOut {
  OpKey op;
};
/// This operation cannot be done as it was called: it fails at all members.
struct FoundMismatch {
  OpKey op;
  std::string text;
  ErrorCode code = ErrorCode::mismatch;  // or no_memory: this member has none for it
};
struct AtBoundary {  // the program calls refresh or resume
  VoteKind kind = VoteKind::refresh;
  bool verify = false;    // vote in any case (the same at all members)
  bool has_root = false;  // `root` is set; else the state is hashed on demand
  StateRoot root;
};
/// Answer to HashState.
struct RootKnown {
  StateRoot root;
};
/// Answer to Fetch.
struct Verified {
  StateRoot root;
};
/// The state that this peer holds from now on.
struct Fetched {
  StateRoot root;
};
/// Answer to Connect.
struct LinksUp {
  EpochId epoch;
};
/// The link is not back in time.
struct LinkFailed {
  EpochId epoch;
  PeerId peer;
  std::string reason;
};
/// Evidence; the link is being dialled again.
struct LinkClosed {
  PeerId peer;
  bool refused = false;
};
/// The link to a member of the newest epoch is back.
struct LinkBack {
  PeerId peer;
};
/// May come again with `at_once`.
struct WantsToLeave {
  bool at_once = false;  // need not wait for the boundary: no operation follows in this step
};
struct SaysBye {
  std::string failure = {};  // that ends the program; empty: it goes in good order
};

using Event = std::variant<MasterConnected, MasterLost, FromMaster, Issued, Completed, Returned,
                           TimedOut, FoundMismatch, AtBoundary, RootKnown, Verified, Fetched,
                           LinksUp, LinkFailed, LinkClosed, LinkBack, WantsToLeave, SaysBye>;

// ---------------------------------------------------------------------------------------- actions

struct ToMaster {
  PeerToMaster message;
};
/// The epoch has ended: what is in flight stands still.
struct StopData {
  Error error = {};  // why no epoch follows at this peer; none: one does, or may
};
/// Members of the own peer group, without self.
struct Connect {
  EpochId epoch;
  std::vector<Member> members;
  std::map<PeerId, PeerId> via = {};  // whom this peer reaches over whom
};
struct HashState {};  // this boundary votes: answer with RootKnown
/// Own state differs from the plan's.
struct Fetch {
  EpochId epoch;
  SyncPlan plan;
};
/// Answer to Verified while the newest proposal asks for that state.
struct Adopt {};
struct Configure {  // a new epoch is in force
  EpochId epoch;
  std::vector<Member> members;  // own peer group, in rank order, with self
  std::vector<PeerId> lost;     // members of the epoch before (all peer groups) that are gone
  std::vector<PeerId> joined;
  std::vector<Relay> relays = {};  // of the own peer group
};
/// Runs it (again) in the configured epoch.
struct RunOp {
  OpKey op;
};
struct RestoreOp {
  OpKey op;
};
struct CommitOp {
  OpKey op;
};
/// Its tensors have been restored by then.
struct FailOp {
  OpKey op;
  Error error;
};
struct EnterStep {  // the boundary is over: refresh or resume returns
  std::uint64_t step = 0;
  bool voted = false;
  bool admitted = false;  // it was this newcomer's first
  StateRoot root;         // the state that all hold, if it voted with one
};
struct Renumber {              // rank and size change here, at all members alike
  std::vector<PeerId> pinned;  // own peer group, in rank order
};
struct WasEvicted {
  std::string text;
};
struct WasRefused {
  Error error;
};
struct HasLeft {};
struct Greeted {
  Welcome welcome;
};
struct Say {
  bool warning = false;
  std::string text;
};

using Action = std::variant<ToMaster, StopData, Connect, HashState, Fetch, Adopt, Configure, RunOp,
                            RestoreOp, CommitOp, FailOp, EnterStep, Renumber, WasEvicted,
                            WasRefused, HasLeft, Greeted, Say>;
using Actions = std::vector<Action>;

// ---------------------------------------------------------------------------------------- state

enum class Phase : std::uint8_t { issued, done, committed, failed };

struct Op {
  LossClass loss = LossClass::replay;
  PeerId root;
  Phase phase = Phase::issued;
  std::vector<PeerId> numbering;  // pinned members (all peer groups) when issued; empty for replay
  EpochId completed_in;           // epoch of its result
};

struct State {
  std::string run;  // from the URL; empty: any
  Member self;

  bool connected = false;       // to a master
  bool has_boundaries = false;  // this program has called refresh
  std::optional<Epoch> started;
  std::optional<Epoch> accepted;     // newest proposal that it answered Ready
  std::optional<Propose> preparing;  // newest proposal heard, not answered yet
  bool links_up = false;             // for `preparing`
  bool synced = false;               // for `preparing`
  bool stopped = false;              // between StopData and Configure
  std::uint64_t step = 0;
  std::uint64_t next = 0;   // index of the next operation
  std::map<OpKey, Op> ops;  // of this step, from the oldest without an outcome on
  OpKey committed_below;    // all earlier ones of this step are committed
  std::map<std::uint64_t, bool> flags;
  std::optional<Failure> failure;
  std::uint64_t passed = 0;
  std::vector<PeerId> pinned;  // all peer groups
  VoteKind vote = VoteKind::none;
  bool at_boundary = false;  // the program stands in refresh or resume
  bool at_door = false;      // a newcomer that has called refresh
  StateRoot root;
  bool root_known = false;
  VoteKind boundary_kind = VoteKind::none;  // what the program has called, with at_boundary
  bool verify = false;
  bool voting = false;        // this boundary votes; the root may still be missing
  bool hashing = false;       // between HashState and RootKnown
  bool adopting = false;      // between Adopt and Fetched: which state it holds is not known
  StateRoot agreed;           // of the newest boundary proposal that it answered Ready
  std::string why;            // of that proposal
  std::uint64_t pending = 0;  // operations without an outcome
  std::set<PeerId> here;      // members of `started`
  std::map<PeerId, std::uint32_t>
      group_of;         // peer groups of all in `pinned`, `started` and proposals
  EpochId numbered_in;  // epoch whose members the newest numbering names
  std::map<OpKey, std::vector<PeerId>> renumber;  // numberings that wait for Returned
  /// The newest step with an operation that makes no sense without one of the pinned members.
  std::optional<std::uint64_t> rigid_step;
  bool leaving = false;
  bool at_once = false;  // with `leaving`: it need not wait for the boundary
  bool over = false;     // evicted, refused or left
};

/// The key of the operation that the next Issued names.
[[nodiscard]] inline OpKey next_key(const State& state) { return OpKey{state.step, state.next}; }

/// Applies one event to `state` and returns what the caller has to do, in order.
[[nodiscard]] Actions step(State& state, const Event& event);

/// The members of a peer group among `members`, in rank order.
[[nodiscard]] std::vector<Member> peer_group(const std::vector<Member>& members,
                                             std::uint32_t group);

}  // namespace pccl::peer
