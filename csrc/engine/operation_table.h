// The operations of a group that have no outcome yet, in the order of their calls, and which of
// them may run beside each other. Moves no data: its group starts and stops what it names. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/operation.h"

namespace pccl {

/// An operation and the numbering in which its caller issued it.
struct Pending {
  std::unique_ptr<Operation> op;
  Numbering numbering;
  std::vector<PeerId> contributors;             // of its last run
  std::map<PeerId, std::uint64_t> early_bytes;  // that came while it waited for its turn
  std::uint64_t preimage_bytes = 0;             // that the table counts for it
  bool gave_up = false;     // it has no memory here: stands still until it fails for all
  bool asked_back = false;  // it is done here, and others who are not have called something else
  // Of a barrier:
  std::map<PeerId, std::uint64_t> sends_before;  // in the epoch in which it was issued, or waits
  std::set<PeerId> unanswered;                   // asked (Flush) whether these have arrived

  [[nodiscard]] OpKey key() const { return op->key(); }
  [[nodiscard]] bool is_barrier() const { return op->request().descriptor.kind == OpKind::barrier; }
};

class OperationTable {
 public:
  using Map = std::map<OpKey, Pending>;

  /// In an elastic group operations begin in the order of their calls at every member, and keep
  /// preimages, of at most `preimage_bytes_max` together.
  OperationTable(bool elastic, std::uint64_t preimage_bytes_max)
      : elastic_(elastic), preimage_bytes_max_(preimage_bytes_max) {}

  Pending& add(std::unique_ptr<Operation> op, Numbering numbering);
  /// Of an operation that has stopped.
  [[nodiscard]] Pending take(OpKey key);
  /// Null: it has its outcome, or has not been issued.
  [[nodiscard]] Pending* find(OpKey key);
  [[nodiscard]] Pending& at(OpKey key) { return ops_.at(key); }
  /// The one that was called next; null: none.
  [[nodiscard]] Pending* after(OpKey key);
  [[nodiscard]] std::vector<OpKey> keys() const;
  [[nodiscard]] bool empty() const { return ops_.empty(); }
  [[nodiscard]] std::size_t size() const { return ops_.size(); }
  [[nodiscard]] Map::iterator begin() { return ops_.begin(); }
  [[nodiscard]] Map::iterator end() { return ops_.end(); }
  [[nodiscard]] Map::const_iterator begin() const { return ops_.begin(); }
  [[nodiscard]] Map::const_iterator end() const { return ops_.end(); }

  /// Has it to wait for an earlier call, or for memory? Operations on the same memory run one after
  /// the other, a barrier begins when all before it are done here, and what does not fit in the
  /// memory for preimages starts after a commit: so the oldest always runs.
  [[nodiscard]] bool must_wait(const Pending& pending) const;
  /// It waits until its turn comes.
  void defer(const Pending& pending);
  /// Its turn has come.
  void started(Pending& pending);
  /// It runs no more, or does not wait any more.
  void stopped(Pending& pending);
  [[nodiscard]] bool is_deferred(OpKey key) const { return deferred_.contains(key); }
  [[nodiscard]] bool barrier_deferred() const { return deferred_barriers_ > 0; }
  /// In the order of their calls.
  [[nodiscard]] const std::set<OpKey>& deferred() const { return deferred_; }

 private:
  const bool elastic_;
  const std::uint64_t preimage_bytes_max_;
  Map ops_;
  std::set<OpKey> deferred_;
  std::size_t deferred_barriers_ = 0;  // of these
  std::uint64_t preimage_bytes_ = 0;   // of operations that run
};

}  // namespace pccl
