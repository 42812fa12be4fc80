#include "engine/operation_table.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pccl {
namespace {

constexpr std::size_t kThroughAreasMax = 2;

bool are_equal(const std::vector<Buffer>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const Buffer& part) { return part.bytes == parts[0].bytes; });
}

/// May the operation go through areas? The rest depends on its ranks, of which the table knows
/// nothing.
bool is_large(const Operation& op) {
  constexpr std::uint64_t kLeast = 3 * kAreaBytesMinPerRank;
  const OpRequest& request = op.request();
  const OpDescriptor& d = request.descriptor;
  switch (d.kind) {
    case OpKind::all_reduce:
      return d.quantisation == Quantisation::none && op.output_bytes() >= kLeast;
    case OpKind::all_gather:
      return op.output_bytes() >= kLeast && are_equal(request.outputs);
    case OpKind::reduce_scatter:
      return total_bytes(request.inputs) >= kLeast && are_equal(request.inputs);
    default:
      return false;
  }
}

}  // namespace

Pending& OperationTable::add(std::unique_ptr<Operation> op, Numbering numbering) {
  Pending& pending = ops_[op->key()];
  pending.op = std::move(op);
  pending.numbering = std::move(numbering);
  return pending;
}

Pending OperationTable::take(OpKey key) { return std::move(ops_.extract(key).mapped()); }

Pending* OperationTable::find(OpKey key) {
  const auto it = ops_.find(key);
  return it == ops_.end() ? nullptr : &it->second;
}

Pending* OperationTable::after(OpKey key) {
  const auto it = ops_.upper_bound(key);
  return it == ops_.end() ? nullptr : &it->second;
}

std::vector<OpKey> OperationTable::keys() const {
  std::vector<OpKey> keys;
  for (const auto& [key, pending] : ops_) keys.push_back(key);
  return keys;
}

bool OperationTable::must_wait(const Pending& pending) const {
  const Operation& op = *pending.op;
  if (elastic_) {
    if (!deferred_.empty() && *deferred_.begin() < op.key()) return true;
    const std::uint64_t bytes = preimage_bytes_ + op.output_bytes();
    if (preimage_bytes_ > 0 && bytes > preimage_bytes_max_) return true;
  }
  std::size_t through_areas = 0;
  for (const auto& [key, other] : ops_) {
    if (!(key < op.key())) break;
    if (op.overlaps(*other.op) || (pending.is_barrier() && !other.op->complete())) return true;
    if (other.op->through_areas() && !other.op->complete()) ++through_areas;
  }
  return through_areas >= kThroughAreasMax && is_large(op);
}

void OperationTable::defer(const Pending& pending) {
  if (deferred_.insert(pending.key()).second && pending.is_barrier()) ++deferred_barriers_;
}

void OperationTable::started(Pending& pending) {
  stopped(pending);
  if (elastic_) pending.preimage_bytes = pending.op->output_bytes();
  preimage_bytes_ += pending.preimage_bytes;
}

void OperationTable::stopped(Pending& pending) {
  if (deferred_.erase(pending.key()) > 0 && pending.is_barrier()) --deferred_barriers_;
  preimage_bytes_ -= std::exchange(pending.preimage_bytes, 0);
}

}  // namespace pccl
