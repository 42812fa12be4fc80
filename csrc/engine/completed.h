// The newest operations of a group that have succeeded at this rank. Ranks that have called
// different operations under one key find out when one of them looks at the data of the other. A
// rank that only sends succeeds before any other rank has looked. If a rank with another operation
// then sends data or asks under this key, only this table still knows what this rank has called.
// Engine's thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/types.h"
#include "wire/peer_messages.h"

namespace pccl {

/// Do both describe the same operation? (A count of 0: sizes may differ by rank.)
[[nodiscard]] inline bool alike(const OpDescriptor& a, const OpDescriptor& b) {
  const bool counts = a.count == 0 || b.count == 0 || a.count == b.count;
  return counts && a.kind == b.kind && a.reduce == b.reduce && a.dtype == b.dtype &&
         a.root == b.root && a.quantisation == b.quantisation;
}

/// The call that the sender of the question means.
[[nodiscard]] inline OpDescriptor descriptor_of(const AskIssued& ask) {
  return {static_cast<OpKind>(ask.kind),
          static_cast<ReduceOp>(ask.reduce),
          static_cast<DType>(ask.dtype),
          static_cast<std::int32_t>(ask.root),
          ask.count,
          static_cast<Quantisation>(ask.quantisation)};
}

/// The question whether a peer has issued this call under this key.
[[nodiscard]] inline AskIssued ask_about(GroupId group, OpKey op, const OpDescriptor& called) {
  AskIssued ask;
  ask.group = group;
  ask.op = op;
  ask.kind = static_cast<std::uint32_t>(called.kind);
  ask.reduce = static_cast<std::uint32_t>(called.reduce);
  ask.dtype = static_cast<std::uint32_t>(called.dtype);
  ask.root = called.root;
  ask.count = called.count;
  ask.quantisation = static_cast<std::uint32_t>(called.quantisation);
  return ask;
}

/// The call in words: "broadcast(float32, 4 elements, root 2)".
[[nodiscard]] std::string describe(const OpDescriptor& descriptor);
/// The rank `them` calls an operation that the rank `me` has completed as another one.
[[nodiscard]] inline std::string difference_text(const std::string& them,
                                                 const OpDescriptor& theirs, const std::string& me,
                                                 const OpDescriptor& mine) {
  return them + " calls " + describe(theirs) + ", " + me + " has completed " + describe(mine);
}

class Completed {
 public:
  static constexpr std::size_t kMax = 1024;

  void add(OpKey op, const OpDescriptor& descriptor) {
    if (entries_.size() <= place(op)) entries_.resize(place(op) + 1);
    entries_[place(op)] = Entry{op, descriptor};
  }
  [[nodiscard]] const OpDescriptor* find(OpKey op) const {
    const std::size_t at = place(op);
    return at < entries_.size() && entries_[at].op == op ? &entries_[at].descriptor : nullptr;
  }
  /// The mismatch in this operation is known: it is not looked for again.
  void forget(OpKey op) {
    if (find(op) != nullptr) entries_[place(op)] = Entry{};
  }

 private:
  struct Entry {
    OpKey op = kNoOp;
    OpDescriptor descriptor;
  };
  [[nodiscard]] static std::size_t place(OpKey op) { return op.index % kMax; }

  std::vector<Entry> entries_;  // as many as there were operations, at most kMax
};

}  // namespace pccl
