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
  users_.add(pending.key(), pending.op->request());
  return pending;
}

Pending OperationTable::take(OpKey key) {
  // Nothing here needs memory: there may be none, and the operation's caller still has to hear.
  if (auto waiting = behind_.extract(key)) {
    for (const OpKey op : waiting.mapped()) ops_.at(op).behind.reset();
    to_ask_.merge(waiting.mapped());
  }
  Pending pending = std::move(ops_.extract(key).mapped());
  users_.remove(key, pending.op->request());
  return pending;
}

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
  if (users_.last_before(op.key(), op.request())) return true;
  const bool by_areas = may_go_through_areas(op);
  if (!pending.is_barrier() && !by_areas) return false;
  std::size_t through_areas = 0;
  for (const auto& [key, other] : ops_) {
    if (!(key < op.key())) break;
    if (other.op->complete()) continue;
    if (pending.is_barrier()) return true;
    if (other.op->through_areas() && ++through_areas >= kThroughAreasMax) return true;
  }
  return false;
}

void OperationTable::defer(Pending& pending) {
  const OpKey key = pending.key();
  stopped(pending);
  deferred_.insert(key);
  if (pending.is_barrier()) ++deferred_barriers_;
  const auto behind = users_.last_before(key, pending.op->request());
  (behind ? behind_[*behind] : to_ask_).insert(key);
  pending.behind = behind;
}

Pending* OperationTable::next_to_ask(std::optional<OpKey> key) {
  const auto next = key ? to_ask_.upper_bound(*key) : to_ask_.begin();
  return next == to_ask_.end() ? nullptr : &ops_.at(*next);
}

void OperationTable::started(Pending& pending) {
  stopped(pending);
  if (elastic_) pending.preimage_bytes = pending.op->output_bytes();
  preimage_bytes_ += pending.preimage_bytes;
}

void OperationTable::stopped(Pending& pending) {
  const OpKey key = pending.key();
  if (deferred_.erase(key) > 0 && pending.is_barrier()) --deferred_barriers_;
  to_ask_.erase(key);
  if (pending.behind) {
    const auto others = behind_.find(*pending.behind);
    others->second.erase(key);
    if (others->second.empty()) behind_.erase(others);
    pending.behind.reset();
  }
  preimage_bytes_ -= std::exchange(pending.preimage_bytes, 0);
}

}  // namespace pccl
