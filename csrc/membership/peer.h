// A peer's side of membership and commit, as a function: step(state, event) -> actions. No I/O, no
// clock, no random number, no thread. engine/elastic_group.cpp runs it, tests/sim too.
//
// The rules are in docs/architecture/rules.md. Duties of the caller:
//  - Before Issued the caller names the operation by `next_key()`. Data of an operation flows from
//    RunOp to StopData, CommitOp or FailOp, in the epoch of the last Configure.
//  - After StopData no operation is completed until the next Configure. RestoreOp gives the tensors
//    the values that they had before the operation.
//  - CommitOp or FailOp is the outcome of an operation: each operation gets exactly one, and wait()
//    returns after it.
//  - LinksUp or LinkFailed answers Connect. An answer to a Connect that is not the newest changes
//    nothing.
//  - MasterConnected forgets all links of TryLinks: the master names them again.
//  - Verified answers Fetch: the fetched state lies beside the peer's own state, whole and checked.
//    The caller replaces its own state only after Adopt, and then reports the state that it holds
//    by Fetched, even if the replacement failed. Without Adopt its state stays as it is.
//  - TimedOut is repeated as long as the operation is pending, because a restarted master does not
//    know of the first one. For a boundary that has timed out the event names next_key().
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

/// What happens to an operation when a member is lost (docs/architecture/rules.md).
enum class LossClass : std::uint8_t {
  replay,      // all_reduce, reduce_scatter of equal parts, barrier: replayed among the survivors
  needs_root,  // broadcast, scatter, reduce: replayed if its root survived
  needs_all    // all other operations, and every operation with on_loss="raise": fails in an epoch
               // that lacks a pinned member
};

// ---------------------------------------------------------------------------------------- events

struct MasterConnected {};  // there is a new connection to a master: Hello follows
struct MasterLost {};
/// Every message of the master but Heartbeat and StoreReply.
struct FromMaster {
  MasterToPeer message;
};
struct Issued {
  LossClass loss = LossClass::replay;
  PeerId root;
};
/// This peer's part of the operation is complete, in the configured epoch.
struct Completed {
  OpKey op;
};
/// The wait() of a committed operation has returned.
struct Returned {
  OpKey op;
  EpochId in;  // CommitOp::in
};
/// The time-out of the operation has passed at this peer.
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
  bool verify = false;    // vote even if nothing else asks for it (the same at all members)
  bool has_root = false;  // `root` is set; else HashState asks for it when it is needed
  StateRoot root;
  bool finish = false;  // the run is finished here, if all members say so; with a vote
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
/// Answer to Connect. `trips`: those of this peer's links to the members that Connect has named.
struct LinksUp {
  EpochId epoch;
  Trips trips = {};
};
/// The link to this peer was not up again in time.
struct LinkFailed {
  EpochId epoch;
  PeerId peer;
  std::string reason;
};
/// The link to a peer has closed and is being dialled again: evidence, and alone no loss.
struct LinkClosed {
  PeerId peer;
  bool refused = false;
};
/// The link to a member of the newest epoch is up again.
struct LinkBack {
  PeerId peer;
};
/// Answer to TryLinks, for each link that it names, and again when a link that was up has changed.
/// One event for many links is one message to the master.
struct LinksTried {
  std::vector<TriedLink> links;
};
/// Answer to MeasureLink: bytes a second that the link carries (0: not measured), and the time
/// there and back.
struct LinkMeasured {
  PeerId peer;
  std::uint64_t rate = 0;
  std::uint64_t trip_us = 0;
};
/// The program wants to leave. The event may come a second time, with `at_once`.
struct WantsToLeave {
  // This program issues no more operations in this step: leave before its end.
  bool at_once = false;
};
struct SaysBye {
  std::string failure = {};  // the error that ends the program; empty: it ends in good order
};

using Event =
    std::variant<MasterConnected, MasterLost, FromMaster, Issued, Completed, Returned, TimedOut,
                 FoundMismatch, AtBoundary, RootKnown, Verified, Fetched, LinksUp, LinkFailed,
                 LinkClosed, LinkBack, LinksTried, LinkMeasured, WantsToLeave, SaysBye>;

// ---------------------------------------------------------------------------------------- actions

struct ToMaster {
  PeerToMaster message;
};
/// The epoch has ended: the data of all operations in flight stops.
struct StopData {
  Error error = {};  // why no epoch follows at this peer; code none: an epoch may follow
};
/// Bring up the links to these members of the own peer group (without this peer).
struct Connect {
  EpochId epoch;
  std::vector<Member> members;
  std::map<PeerId, PeerId> via = {};  // member -> third member that passes its data on
};
/// Bring up the links to the peers of `open`, which may be members later, beside those of the
/// epoch, and keep them. Those to `drop` are needed for that no more.
struct TryLinks {
  std::vector<Handle> open;
  std::vector<PeerId> drop;
};
struct HashState {};  // this boundary votes: answer with RootKnown
/// This peer's state differs from the plan's: fetch it.
struct Fetch {
  EpochId epoch;
  SyncPlan plan;
};
/// Answer to Verified while the newest proposal asks for that state.
struct Adopt {};
/// Find out how much the link to this member of the own peer group carries; LinkMeasured answers.
struct MeasureLink {
  PeerId peer;
  std::uint64_t known = 0;  // bytes a second that it carried before; 0: not known
};
struct Configure {  // a new epoch has begun
  EpochId epoch;
  std::vector<Member> members;  // own peer group, in rank order, with self
  std::vector<PeerId> lost;     // members of the epoch before (all peer groups) that are gone
  std::vector<PeerId> joined;
  std::vector<Relay> relays = {};  // of the own peer group
  std::vector<PeerId> ring = {};   // `members` in the order in which data go round
  Lines lines = {};                // of the own peer group, the same ones at all its members
};
/// Run the operation (again) in the configured epoch.
struct RunOp {
  OpKey op;
};
struct RestoreOp {
  OpKey op;
};
struct CommitOp {
  OpKey op;
  EpochId in;  // the epoch in which it was completed: the same at all members
};
/// The operation fails; its tensors have been restored before.
struct FailOp {
  OpKey op;
  Error error;
};
struct EnterStep {  // the boundary is over: refresh or resume returns
  std::uint64_t step = 0;
  bool voted = false;
  bool admitted = false;  // the boundary has admitted this newcomer
  StateRoot root;         // the state that all members hold, if the boundary voted with one
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
struct HasLeft {
  std::string ended = {};  // how the run was finished; empty: only this peer has left
};
struct Greeted {
  Welcome welcome;
};
struct Say {
  bool warning = false;
  std::string text;
};

using Action = std::variant<ToMaster, StopData, Connect, TryLinks, MeasureLink, HashState, Fetch,
                            Adopt, Configure, RunOp, RestoreOp, CommitOp, FailOp, EnterStep,
                            Renumber, WasEvicted, WasRefused, HasLeft, Greeted, Say>;
using Actions = std::vector<Action>;

// ---------------------------------------------------------------------------------------- state

enum class Phase : std::uint8_t { issued, done, committed, failed };

struct Op {
  LossClass loss = LossClass::replay;
  PeerId root;
  Phase phase = Phase::issued;
  // The pinned members (all peer groups) when the operation was issued; empty for class `replay`.
  std::vector<PeerId> numbering;
  EpochId completed_in;  // the epoch in which this peer's part was completed
};

struct State {
  std::string run;  // from the URL; empty: any
  Member self;

  bool connected = false;       // to a master
  bool has_boundaries = false;  // this program has called refresh
  std::optional<Epoch> started;
  Digest started_mark{};          // of `started`, for masters that ask for it
  std::optional<Epoch> accepted;  // newest proposal that this peer has answered with Ready
  Digest accepted_mark{};
  std::optional<Propose> preparing;  // newest proposal, while it is not answered yet
  bool links_up = false;             // for `preparing`
  Trips trips;                       // of these links
  bool synced = false;               // for `preparing`
  bool stopped = false;              // between StopData and Configure
  std::uint64_t step = 0;
  std::uint64_t next = 0;   // index of the next operation
  std::map<OpKey, Op> ops;  // of this step, from the oldest without an outcome on
  OpKey committed_below;    // all earlier operations of this step are committed
  std::map<std::uint64_t, bool> flags;
  std::optional<Failure> failure;
  std::uint64_t passed = 0;
  std::vector<PeerId> pinned;  // all peer groups
  VoteKind vote = VoteKind::none;
  bool at_boundary = false;  // the program stands in refresh or resume
  bool at_door = false;      // a newcomer that has called refresh
  StateRoot root;
  bool root_known = false;
  VoteKind boundary_kind = VoteKind::none;  // with at_boundary: refresh or resume
  bool verify = false;
  bool finish = false;
  bool voting = false;    // this boundary votes; the root may still be missing
  bool hashing = false;   // between HashState and RootKnown
  bool adopting = false;  // between Adopt and Fetched: the state that this peer holds is not known
  StateRoot agreed;       // of the newest proposal at a boundary that was answered with Ready
  std::string why;        // `why` of that proposal
  std::string said_why;   // of the newest epoch with a line, if its members stayed the same
  std::uint64_t pending = 0;  // operations without an outcome
  std::set<PeerId> here;      // members of `started`
  std::map<PeerId, std::uint32_t>
      group_of;                         // peer groups of all in `pinned`, `started` and proposals
  std::map<PeerId, std::string> names;  // of the same
  EpochId pinned_in;                    // epoch whose members `pinned` names
  EpochId numbered_in;                  // and the newest numbering
  struct Renumbering {
    EpochId in;
    std::vector<PeerId> pinned;
  };
  // Numberings that wait until wait() of an operation has returned.
  std::map<OpKey, Renumbering> renumber;
  /// The newest step with an operation in which all pinned members must take part.
  std::optional<std::uint64_t> rigid_step;
  bool leaving = false;
  bool at_once = false;  // with `leaving`: this peer need not wait for the boundary
  bool over = false;     // evicted, refused or left
};

/// The key that the operation of the next Issued gets.
[[nodiscard]] inline OpKey next_key(const State& state) { return OpKey{state.step, state.next}; }

/// Applies one event to `state` and returns what the caller has to do, in order.
[[nodiscard]] Actions step(State& state, const Event& event);

/// The members of a peer group among `members`, in rank order.
[[nodiscard]] std::vector<Member> peer_group(const std::vector<Member>& members,
                                             std::uint32_t group);

}  // namespace pccl::peer
