// The engine of a process: all groups, all links, one loop (driver.h says which thread runs it).
// What csrc/torch/ and the tests see. Knows no torch, takes no GIL, never blocks.
//
// Thread-safety: every member function may be called on any thread but those of the engine's own
// callbacks. Memory named in an OpRequest stays valid and unwritten by the caller from `post` to
// the outcome of its Ticket.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/ids.h"
#include "base/types.h"
#include "engine/options.h"
#include "wire/messages.h"

namespace pccl {

/// The outcome of something that was posted. Completed exactly once, on the thread that drives the
/// engine.
class Ticket {
 public:
  /// Waits up to `timeout_ms` (nullopt: until the outcome, which has deadlines of its own). False:
  /// not yet.
  bool wait(std::optional<std::uint64_t> timeout_ms);
  [[nodiscard]] bool done() const;
  /// After done(): what went wrong; code none if nothing did.
  [[nodiscard]] Error error() const;
  /// Calls `function` once the outcome is there, on the engine's thread or, if it is there, at
  /// once. It must not block and not take the GIL.
  void on_done(std::function<void()> function);

  void complete(Error error);  // by the engine

  // Set before completion, read after it.
  OpKey op = kNoOp;                  // of a collective that the group has taken
  std::vector<PeerId> contributors;  // whose contributions a committed collective took
  std::int32_t source = -1;          // recv: the rank that sent it
  std::uint64_t amount = 0;   // pull: bytes; store: StoreReply::amount; boundary_adopt: 1: yes
  std::vector<Bytes> values;  // store replies
  std::vector<std::string> keys;
  std::vector<std::byte> bytes;  // pull into no memory: the payload

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Error error_;
  std::vector<std::function<void()>> callbacks_;
};

/// Caller's memory; `data` may be null if `bytes` is 0.
struct Buffer {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Have they a byte in common?
inline bool touch(const Buffer& a, const Buffer& b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

inline std::uint64_t total_bytes(const std::vector<Buffer>& buffers) {
  std::uint64_t bytes = 0;
  for (const Buffer& b : buffers) bytes += b.bytes;
  return bytes;
}

/// How much of an operation's inputs is there, where somebody still fills them (copies from a
/// device). Written by who fills them, read by the engine; thread-safe.
struct InputGate {
  /// So many bytes of the inputs, one after the other in their order, hold data. Grows only.
  std::atomic<std::uint64_t> bytes{0};
};

/// The peer of each rank.
using Numbering = std::shared_ptr<const std::vector<PeerId>>;

/// One operation of a group. Buffers as collectives/schedule.h says, in the numbering that the
/// caller sees (rank() and size() of the group); ranks likewise.
struct OpRequest {
  OpDescriptor descriptor;  // root: rank, -1 if none; count: 0 where shapes may differ
  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  /// What the ranks of this request mean, as the caller saw it (GroupView::numbering); null: the
  /// numbering of the moment in which the engine takes the request.
  Numbering numbering;
  std::shared_ptr<const InputGate> gate;  // null: the inputs are there
  std::int32_t peer = -1;                 // send, recv: the other rank; recv: -1 is any
  std::uint64_t tag = 0;                  // send, recv
  std::uint64_t timeout_ms = 0;           // 0: none
  std::uint64_t order = 0;                // among the calls of the group; the engine counts
  std::shared_ptr<void> keep_alive;  // released after the outcome (tensors), on the engine's thread
};

struct GroupView {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  EpochId epoch;  // the newest configured
  std::uint64_t step = 0;
  Numbering numbering = std::make_shared<const std::vector<PeerId>>();
  /// Members of the epoch, in the order in which data go round.
  std::shared_ptr<const std::vector<PeerId>> ring = numbering;
  bool elastic = false;
  bool admitted = true;  // false: a newcomer before its first refresh
  bool evicted = false;
  bool left = false;
  Error failure;  // a fixed group that has failed, why
};

struct JoinOptions {
  std::vector<std::string> masters;              // "host:port", in list order
  std::string run;                               // empty: whichever
  Place place;                                   // replica empty: a replica of one rank
  bool raises = false;                           // on_loss="raise": no operation is replayed
  std::uint64_t timeout_ms = 30ULL * 60 * 1000;  // for the founding
};

/// refresh and resume.
struct BoundaryRequest {
  VoteKind kind = VoteKind::refresh;
  bool verify = false;
  std::uint64_t timeout_ms = 0;  // 0: none
};

/// One collective meeting at a boundary, as the user's thread sees it: a conversation, because
/// hashing and checking run on the user's thread. `next` until `finished` or an error.
struct BoundaryEvent {
  enum class What : std::uint8_t {
    hash,     // it votes: hash the state, answer with Engine::boundary_root; `contributors`
    fetch,    // own state differs: pull from one of `plan.sources`, then ask boundary_adopt
    finished  // `step`, `voted`, `admitted`, `left`, `root`, `contributors`
  };
  What what = What::finished;
  EpochId epoch;  // fetch: names the proposal
  SyncPlan plan;  // fetch
  std::uint64_t step = 0;
  bool voted = false;
  bool admitted = false;
  bool left = false;
  StateRoot root;
  std::vector<std::uint32_t> contributors;  // ranks of the step that has ended, ascending
};

/// The state that a member offers while it stands at a boundary: item 0 is the manifest.
struct Snapshot {
  Digest digest{};
  std::vector<Buffer> items;
  std::shared_ptr<void> keep_alive;
};

struct EngineCounters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t ops_committed = 0;
  std::uint64_t ops_replayed = 0;
  std::uint64_t ops_failed = 0;
  std::uint64_t epochs = 0;
  std::uint64_t bytes_relayed = 0;
};

/// What an operation in flight looks like from outside (the demo's killer, diagnostics).
struct OpInFlight {
  OpKey op;
  OpDescriptor descriptor;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  bool complete = false;  // its own part is; not committed yet
};

/// Membership changes and the like, for hooks and logs; delivered on the engine's thread.
struct GroupEvent {
  enum class What : std::uint8_t { epoch, master_lost, master_back, evicted, left };
  What what = What::epoch;
  EpochId epoch;
  std::vector<PeerId> lost, joined;
  std::int32_t members = 0;
  std::string text;
};

class Engine {
 public:
  /// Opens the listening port and starts the engine's thread.
  [[nodiscard]] static Result<std::shared_ptr<Engine>> create(const EngineOptions& options);
  virtual ~Engine() = default;

  /// How others reach this process, when they are told so by somebody who sees it as `seen_host`
  /// (used where options.advertise is empty).
  [[nodiscard]] virtual Handle handle(const std::string& seen_host) const = 0;
  /// The address of this machine that is used to reach host:port ("" if there is none).
  [[nodiscard]] virtual std::string local_host_towards(const std::string& address) const = 0;

  // Fixed groups. Connects to all members; the ticket's outcome says whom it could not reach.
  [[nodiscard]] virtual std::shared_ptr<Ticket> configure_fixed(GroupId group, std::string name,
                                                                std::vector<Handle> members,
                                                                std::int32_t rank,
                                                                std::uint64_t timeout_ms) = 0;
  /// The same of members of the elastic group, whose handles the engine knows. A member that the
  /// run has lost, or loses while the group connects, is a `peer_lost`.
  [[nodiscard]] virtual std::shared_ptr<Ticket> configure_of_run(GroupId group, std::string name,
                                                                 std::vector<PeerId> members,
                                                                 std::int32_t rank,
                                                                 std::uint64_t timeout_ms) = 0;
  /// By rank; empty: there is no such group.
  [[nodiscard]] virtual std::vector<Handle> members_of(GroupId fixed_group) const = 0;

  // Elastic group: one per engine. `group` is its number once the ticket is done.
  [[nodiscard]] virtual std::shared_ptr<Ticket> join(const JoinOptions& options) = 0;
  [[nodiscard]] virtual GroupId elastic_group() const = 0;
  virtual void on_group_event(std::function<void(const GroupEvent&)> function) = 0;
  /// A wish: takes effect at the next boundary, or before it, if nobody has issued anything.
  virtual void leave(GroupId group, bool at_once) = 0;
  [[nodiscard]] virtual std::shared_ptr<Ticket> store(StoreRequest request) = 0;

  // Operations.
  [[nodiscard]] virtual std::shared_ptr<Ticket> post(GroupId group, OpRequest request) = 0;
  /// More of the inputs of the operation with this gate is there. (If the rest never comes: abort.)
  virtual void inputs_came(GroupId group, std::shared_ptr<const InputGate> gate) = 0;
  /// Waits as Ticket::wait does, and lends the engine this thread meanwhile: the shortest way for a
  /// small operation.
  virtual bool wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms) = 0;
  /// The caller's wait() has returned: where a run has no boundaries, rank and size may change
  /// here.
  virtual void returned(GroupId group, OpKey op) = 0;
  [[nodiscard]] virtual GroupView view(GroupId group) const = 0;
  [[nodiscard]] virtual std::vector<OpInFlight> in_flight(GroupId group) const = 0;
  [[nodiscard]] virtual EngineCounters counters() const = 0;
  /// Default time-out of operations posted without one.
  virtual void set_timeout(GroupId group, std::uint64_t timeout_ms) = 0;

  // Boundaries of the elastic group. One at a time.
  [[nodiscard]] virtual Error boundary_begin(GroupId group, const BoundaryRequest& request) = 0;
  /// Blocks up to timeout_ms; nullopt: nothing yet.
  [[nodiscard]] virtual std::optional<Result<BoundaryEvent>> boundary_next(
      GroupId group, std::uint64_t timeout_ms) = 0;
  virtual void boundary_root(GroupId group, const StateRoot& root, Snapshot snapshot) = 0;
  /// The state with this root lies beside the own one, whole and checked: may it replace the own
  /// one? Ticket::amount is 1: yes, and boundary_fetched follows, whatever becomes of it; 0: the
  /// run has moved on, and the next event says to what.
  [[nodiscard]] virtual std::shared_ptr<Ticket> boundary_adopt(GroupId group,
                                                               const StateRoot& root) = 0;
  /// The state that this peer holds from now on.
  virtual void boundary_fetched(GroupId group, const StateRoot& root, Snapshot snapshot) = 0;
  /// Fetches item `item` of the snapshot with `digest` from `source` into `to` (its size must fit),
  /// or into Ticket::bytes if to.data is null. A source that is too slow fails it (kPullIdleMs,
  /// kPullBytesPerSecondMin).
  [[nodiscard]] virtual std::shared_ptr<Ticket> pull(GroupId group, PeerId source,
                                                     const Digest& digest, std::uint32_t item,
                                                     Buffer to) = 0;
  /// Ends a pull: when its ticket is done, nothing writes to its memory any more.
  virtual void cancel_pull(GroupId group, std::shared_ptr<Ticket> ticket) = 0;

  /// Ends a group in good order: sends what is owed and a goodbye; pending operations fail with
  /// `closed`.
  virtual void close(GroupId group) = 0;
  /// Fails all pending operations of the group and tells the others.
  virtual void abort(GroupId group, const std::string& why) = 0;
  /// Closes all groups, waits up to options.goodbye_timeout_ms, ends the thread. Idempotent.
  virtual void shutdown() = 0;
  /// Ends as a SIGKILL does: every descriptor is closed without a word to anybody, and nothing runs
  /// any more. For tests of what the others do then.
  virtual void vanish() = 0;
  /// Breaks an invariant on the thread that drives, with these words. For tests of what ends then.
  virtual void break_invariant(const std::string& what) = 0;
  /// In a forked child: closes all descriptors without a word to anybody; every later call fails.
  virtual void forked() = 0;
};

}  // namespace pccl
