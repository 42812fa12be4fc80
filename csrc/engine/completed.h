// What has succeeded here, the newest calls of a group: who sends for one of them, or waits in it,
// and calls something else finds nobody in that operation who could tell it so but us. A rank that
// only sends is done before anybody has looked at what it sent. Engine's thread.
#pragma once

#include <cstddef>
#include <vector>

#include "base/ids.h"
#include "base/types.h"

namespace pccl {

/// Do both mean the same operation? (A count of 0: sizes may differ by rank.)
[[nodiscard]] inline bool alike(const OpDescriptor& a, const OpDescriptor& b) {
  const bool counts = a.count == 0 || b.count == 0 || a.count == b.count;
  return counts && a.kind == b.kind && a.reduce == b.reduce && a.dtype == b.dtype &&
         a.root == b.root;
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
  /// A difference in it is known.
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
