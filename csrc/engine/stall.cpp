#include "engine/stall.h"

namespace pccl {

Stall::Findings Stall::watch(const OperationTable& operations, const Now& now) {
  const auto oldest = std::find_if(operations.begin(), operations.end(), [](const auto& entry) {
    return (entry.second.op->running() && !entry.second.op->complete()) ||
           is_held_back(entry.second);
  });
  if (oldest == operations.end()) return {};
  const Pending& pending = oldest->second;
  const Operation& op = *pending.op;
  const bool held_back = is_held_back(pending);
  std::vector<PeerId> others(pending.unanswered.begin(), pending.unanswered.end());
  if (!held_back) {
    if (op.waits_for_inputs() || pending.contributors.size() == 1) return {};
    others = pending.contributors;
    std::erase(others, now.self);
  }
  Findings found;
  found.operation = &pending;
  const Seen seen{now.epoch,
                  op.key(),
                  held_back ? others.size() : op.progress(),
                  now.received_bytes,
                  op.request().timeout_ms,
                  now.of_two,
                  op.waits_at()};
  switch (look(seen, others, now.elapsed_ms, now.limit_ms)) {
    case Verdict::moves:
      return {};
    case Verdict::ask:
      found.ask = std::move(others);
      return found;
    case Verdict::stalled:
      break;
  }
  const auto blame = [&](PeerId peer) { found.faults.push_back({peer, !first_time(peer)}); };
  if (held_back) {
    // The answer of a member waits for messages, which have time-outs of their own. One that has
    // not come long after that of the barrier does not come.
    for (const PeerId peer : others) {
      if (doubts() || answers_[peer].age_ms >= limit_ms_) blame(peer);
    }
  } else {
    for (const std::uint32_t c : op.waiting_for()) {
      const PeerId peer = pending.contributors[c];
      if (owes(peer, op.waits_at(c))) blame(peer);
    }
  }
  acted();
  return found;
}

bool Stall::is_held_back(const Pending& pending) {
  return pending.is_barrier() && !pending.op->running() && !pending.op->complete() &&
         !pending.unanswered.empty();
}

}  // namespace pccl
