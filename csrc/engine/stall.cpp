#include "engine/stall.h"

namespace pccl {

Stall::Findings Stall::watch(const OperationTable& operations, const Now& now) {
  const auto oldest = std::find_if(operations.begin(), operations.end(), [](const auto& entry) {
    return entry.second.op->running() && !entry.second.op->complete();
  });
  if (oldest == operations.end()) return {};
  const Pending& pending = oldest->second;
  const Operation& op = *pending.op;
  if (op.waits_for_inputs() || pending.contributors.size() == 1) return {};
  std::vector<PeerId> others = pending.contributors;
  std::erase(others, now.self);
  Findings found;
  found.operation = &pending;
  const Seen seen{now.epoch, op.key(), op.progress(), now.received_bytes, op.request().timeout_ms,
                  now.of_two};
  switch (look(seen, others, now.elapsed_ms, now.limit_ms)) {
    case Verdict::moves:
      return {};
    case Verdict::ask:
      found.ask = std::move(others);
      return found;
    case Verdict::stalled:
      break;
  }
  for (const std::uint32_t c : op.waiting_for()) {
    const PeerId peer = pending.contributors[c];
    if (owes(peer, op.waits_at())) found.faults.push_back({peer, !first_time(peer)});
  }
  acted();
  return found;
}

}  // namespace pccl
