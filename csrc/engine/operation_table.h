// The operations of a group that have no outcome yet, in the order of their calls. The table
// decides which of them may run beside each other; the group starts and stops them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/limits.h"
#include "engine/group_kind.h"
#include "engine/memory_users.h"
#include "engine/operation.h"

namespace pccl {

/// An operation, the numbering in which its caller issued it, and what the group notes about it.
struct Pending {
  std::unique_ptr<Operation> op;
  Numbering numbering;
  std::vector<PeerId> contributors;             // of its last run
  std::map<PeerId, std::uint64_t> early_bytes;  // arrived while the operation was deferred
  std::uint64_t preimage_bytes = 0;             // counted by the table
  std::optional<OpKey> behind;  // deferred, and asked again when that operation has ended
  bool gave_up = false;     // no memory for it here: it stands still until it fails at all members
  bool asked_back = false;  // complete here; the contributors were asked, because one has called
                            // another operation
  std::uint64_t waited_ms = 0;  // of its time-out; stands still while the group holds
  std::uint64_t waited_total_ms = 0;
  bool expired = false;  // its time-out has been reported
  bool asked = false;    // the contributors were asked whether they have called the same operation
  std::uint64_t say_waiting_ms = kSayWaitingMs;  // age at its next line in the log; doubled then
  std::uint64_t said_ms = 0;                     // age at its last line in the log
  std::uint64_t said_bytes = 0;                  // bytes moved by then
  std::uint64_t said_came = 0;  // by then: bytes of segments that have come over all links,
  std::uint64_t said_held = 0;  // and milliseconds for which the rate of this process held data
  // The next three are used by barriers only.
  std::map<PeerId, std::uint64_t> sends_before;  // to each peer, in this epoch, called before it
  std::set<PeerId> unanswered;  // peers that were asked (Flush) whether those sends have arrived
  std::map<PeerId, std::uint64_t> sends_asked;  // whether so many have: others had not begun yet

  [[nodiscard]] OpKey key() const { return op->key(); }
  [[nodiscard]] bool is_barrier() const { return op->request().descriptor.kind == OpKind::barrier; }
};

class OperationTable {
 public:
  using Map = std::map<OpKey, Pending>;

  /// In an elastic group operations begin in the order of their calls at every member, and keep
  /// preimages, of at most `preimage_bytes_max` together.
  OperationTable(GroupKind kind, std::uint64_t preimage_bytes_max)
      : elastic_(kind == GroupKind::elastic), preimage_bytes_max_(preimage_bytes_max) {}

  Pending& add(std::unique_ptr<Operation> op, Numbering numbering);
  /// Takes out an operation that has stopped.
  [[nodiscard]] Pending take(OpKey key);
  /// Null: the operation has its outcome, or has not been issued.
  [[nodiscard]] Pending* find(OpKey key);
  [[nodiscard]] Pending& at(OpKey key) { return ops_.at(key); }
  /// The operation that was called next after `key`; null: none.
  [[nodiscard]] Pending* after(OpKey key);
  [[nodiscard]] std::vector<OpKey> keys() const;
  [[nodiscard]] bool empty() const { return ops_.empty(); }
  [[nodiscard]] std::size_t size() const { return ops_.size(); }
  [[nodiscard]] Map::iterator begin() { return ops_.begin(); }
  [[nodiscard]] Map::iterator end() { return ops_.end(); }
  [[nodiscard]] Map::const_iterator begin() const { return ops_.begin(); }
  [[nodiscard]] Map::const_iterator end() const { return ops_.end(); }

  /// Has the operation to wait for an earlier one, or for memory? Operations on the same memory run
  /// one after the other. A barrier begins when all earlier operations are complete here. An
  /// operation that does not fit in the memory for preimages waits for a commit. One
  /// that may go through areas waits while kThroughAreasMax earlier ones do: more of them would
  /// only take the caches from each other. The oldest operation never waits.
  [[nodiscard]] bool must_wait(const Pending& pending) const;
  /// Notes that the operation waits for earlier ones.
  void defer(Pending& pending);
  /// Notes that the operation runs.
  void started(Pending& pending);
  /// Notes that the operation neither runs nor waits.
  void stopped(Pending& pending);
  [[nodiscard]] bool is_deferred(OpKey key) const { return deferred_.contains(key); }
  [[nodiscard]] bool barrier_deferred() const { return deferred_barriers_ > 0; }
  /// The first deferred operation after `key` that may begin now, as far as memory goes; null:
  /// none. The others use memory of one that has not ended.
  [[nodiscard]] Pending* next_to_ask(std::optional<OpKey> key);

 private:
  const bool elastic_;
  const std::uint64_t preimage_bytes_max_;
  Map ops_;
  MemoryUsers users_;
  std::set<OpKey> deferred_;
  std::set<OpKey> to_ask_;                   // those of `deferred_` without Pending::behind
  std::map<OpKey, std::set<OpKey>> behind_;  // the others, by Pending::behind
  std::size_t deferred_barriers_ = 0;        // number of barriers in `deferred_`
  std::uint64_t preimage_bytes_ = 0;         // of the operations that run
};

}  // namespace pccl
