#include "engine/operation_table.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pccl {
namespace {

std::vector<std::uint64_t> sizes_of(const std::vector<Buffer>& buffers) {
  std::vector<std::uint64_t> sizes;
  for (const Buffer& buffer : buffers) sizes.push_back(buffer.bytes);
  return sizes;
}

/// The rest depends on its ranks, of which the table knows nothing.
bool may_go_through_areas(const Operation& op) {
  const OpRequest& request = op.request();
  const OpDescriptor& d = request.descriptor;
  return may_go_through_areas(d.kind, d.quantisation, sizes_of(request.inputs),
                              sizes_of(request.outputs));
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
  return through_areas >= kThroughAreasMax && may_go_through_areas(op);
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
