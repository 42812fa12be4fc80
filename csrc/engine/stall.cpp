#include "engine/stall.h"

#include <algorithm>

#include "base/limits.h"

namespace pccl {
namespace {

constexpr std::uint64_t kLateMaxMs = 1'860'000;  // the master's 30 minutes, and one more
// After a longer tick this process itself was stopped: frames that came meanwhile are not read yet.
constexpr std::uint64_t kLateTickMs = 500;
constexpr std::uint64_t kAsks = 4;  // within the limit, however short it is

}  // namespace

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

Stall::Verdict Stall::look(const Seen& seen, const std::vector<PeerId>& others,
                           std::uint64_t elapsed_ms, std::uint64_t limit_ms) {
  elapsed_ms = std::min(elapsed_ms, kLateTickMs);
  limit_ms_ = limit_ms;
  const bool moves =
      seen.epoch != seen_.epoch || seen.op != seen_.op || seen.progress != seen_.progress;
  watched_ms_ = moves ? 0 : watched_ms_ + elapsed_ms;
  const bool anything_moves = moves || (seen.elsewhere != seen_.elsewhere && !doubts());
  seen_ = seen;
  if (anything_moves) {
    answers_.clear();
    stalled_ms_ = asked_ms_ = 0;
    return Verdict::moves;
  }
  bool all_issued = true;
  bool silence = false;
  for (const PeerId peer : others) {
    Answer& answer = answers_[peer];
    answer.age_ms += elapsed_ms;
    all_issued = all_issued && (answer.issued || doubts());
    silence = silence || answer.age_ms >= limit_ms;
  }
  stalled_ms_ = all_issued ? stalled_ms_ + elapsed_ms : 0;
  asked_ms_ += elapsed_ms;
  if (stalled_ms_ >= limit_ms || silence) return Verdict::stalled;
  if (asked_ms_ < std::min(kAskMs, limit_ms / kAsks)) return Verdict::moves;
  asked_ms_ = 0;
  return Verdict::ask;
}

void Stall::told(PeerId peer, const TellIssued& said) {
  if (said.op != seen_.op) return;
  const bool past = said.op.step < said.issued.step && said.waits_at == TellIssued::kNoStep;
  answers_[peer] = {0, true, said.op < said.issued, said.waits_at, past};
}

bool Stall::late(OpKey op, PeerId peer) const {
  const auto found = answers_.find(peer);
  return op == seen_.op && found != answers_.end() && found->second.said && !found->second.issued;
}

bool Stall::past(OpKey op, PeerId peer) const {
  const auto found = answers_.find(peer);
  return op == seen_.op && found != answers_.end() && found->second.past;
}

bool Stall::owes(PeerId peer, std::uint32_t turn) const {
  const auto found = answers_.find(peer);
  if (found == answers_.end()) return false;
  const Answer& answer = found->second;
  if (answer.age_ms >= limit_ms_) return true;
  if (stalled_ms_ < limit_ms_) return false;
  if (answer.waits_at >= turn) return true;
  // If the peer waited at an earlier turn, a member would have been found at fault long ago. The
  // peer is believed only where another member, which may be the one that lies, or this process
  // waits at an earlier turn as well: the peer may wait for that one.
  if (!doubts() || seen_.waits_at < turn) return false;
  return std::all_of(answers_.begin(), answers_.end(), [&](const auto& other) {
    return other.first == peer || other.second.waits_at >= turn;
  });
}

void Stall::acted() {
  stalled_ms_ = 0;
  for (auto& [peer, answer] : answers_) answer.age_ms = 0;
}

bool Stall::doubts() const {
  const std::uint64_t more_ms = seen_.of_two ? limit_ms_ : kLateMaxMs;
  return seen_.timeout_ms > 0 && watched_ms_ >= seen_.timeout_ms + more_ms;
}

bool Stall::is_held_back(const Pending& pending) {
  return pending.is_barrier() && !pending.op->running() && !pending.op->complete() &&
         !pending.unanswered.empty();
}

}  // namespace pccl
