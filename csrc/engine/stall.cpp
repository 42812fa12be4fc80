#include "engine/stall.h"

namespace pccl {

Stall::Findings Stall::watch(const OperationTable& operations, const Now& now) {
  const auto oldest = std::find_if(operations.begin(), operations.end(), [](const auto& entry) {
    return (entry.second.op->running() && !entry.second.op->complete()) ||
           is_held_back(entry.second);
  });
  if (oldest == operations.end()) return {};
  const Pending& pending = oldest->second;
  if (is_held_back(pending)) return watch_held_back(pending, now);
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

bool Stall::is_held_back(const Pending& pending) {
  return pending.is_barrier() && !pending.op->running() && !pending.op->complete() &&
         !pending.unanswered.empty();
}

/// The answer of a member waits for messages, which have time-outs of their own. One that has not
/// come long after that of the barrier does not come.
Stall::Findings Stall::watch_held_back(const Pending& barrier, const Now& now) {
  const std::vector<PeerId> others(barrier.unanswered.begin(), barrier.unanswered.end());
  Findings found;
  found.operation = &barrier;
  const Operation& op = *barrier.op;
  const Seen seen{now.epoch, op.key(), others.size(), now.received_bytes, op.request().timeout_ms,
                  now.of_two};
  switch (look(seen, others, now.elapsed_ms, now.limit_ms)) {
    case Verdict::moves:
      return {};
    case Verdict::ask:
      found.ask = others;
      return found;
    case Verdict::stalled:
      break;
  }
  for (const PeerId peer : others) {
    if (doubts() || answers_[peer].age_ms >= limit_ms_) {
      found.faults.push_back({peer, !first_time(peer)});
    }
  }
  acted();
  return found;
}

}  // namespace pccl
