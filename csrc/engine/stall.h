// Does the oldest operation of an elastic group move? A member that has not issued it is late, and
// nothing is held against it; when all have, and for long enough no segment moves, whoever owes
// data without waiting for older data itself is at fault. So is who does not even answer. Pure:
// told what is seen, says what to do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "wire/messages.h"

namespace pccl {

class Stall {
 public:
  enum class Verdict : std::uint8_t {
    moves,   // or it is too early to tell
    ask,     // all others, what they have issued and wait for
    stalled  // some are at fault: `owes`
  };

  /// Once a tick. `progress`: of the operation; `others`: its contributors without this one.
  Verdict look(EpochId epoch, OpKey op, std::uint64_t progress, const std::vector<PeerId>& others,
               std::uint64_t elapsed_ms, std::uint64_t limit_ms) {
    elapsed_ms = std::min(elapsed_ms, kLateTickMs);
    limit_ms_ = limit_ms;
    if (epoch != epoch_ || op != op_ || progress != progress_) {
      epoch_ = epoch;
      op_ = op;
      progress_ = progress;
      answers_.clear();
      stalled_ms_ = asked_ms_ = 0;
      return Verdict::moves;
    }
    bool all_issued = true;
    bool silence = false;
    for (const PeerId peer : others) {
      Answer& answer = answers_[peer];
      answer.age_ms += elapsed_ms;
      all_issued = all_issued && answer.issued;
      silence = silence || answer.age_ms >= limit_ms;
    }
    stalled_ms_ = all_issued ? stalled_ms_ + elapsed_ms : 0;
    asked_ms_ += elapsed_ms;
    if (stalled_ms_ >= limit_ms || silence) return Verdict::stalled;
    if (asked_ms_ < std::min(kAskMs, limit_ms / kAsks)) return Verdict::moves;
    asked_ms_ = 0;
    return Verdict::ask;
  }
  void told(PeerId peer, const TellIssued& said) {
    if (said.op == op_) answers_[peer] = {0, true, op_ < said.issued, said.waits_at};
  }
  /// It has said that it has not issued `op` yet.
  [[nodiscard]] bool late(OpKey op, PeerId peer) const {
    const auto found = answers_.find(peer);
    return op == op_ && found != answers_.end() && found->second.said && !found->second.issued;
  }
  /// At fault: it is silent, or does not wait for something older than we do at step `waits_at`.
  [[nodiscard]] bool owes(PeerId peer, std::uint32_t waits_at) const {
    const auto found = answers_.find(peer);
    if (found == answers_.end()) return false;
    const Answer& answer = found->second;
    return answer.age_ms >= limit_ms_ || (stalled_ms_ >= limit_ms_ && answer.waits_at >= waits_at);
  }
  /// Has this peer been found at fault since an operation succeeded? From now on, yes.
  [[nodiscard]] bool first_time(PeerId peer) { return found_.insert(peer).second; }
  /// What was found has been acted upon: the time begins anew.
  void acted() {
    stalled_ms_ = 0;
    for (auto& [peer, answer] : answers_) answer.age_ms = 0;
  }
  /// An operation has succeeded.
  void forget() { found_.clear(); }

 private:
  // A tick that comes later was our own stop: what has arrived meanwhile has not been read yet.
  static constexpr std::uint64_t kLateTickMs = 500;
  static constexpr std::uint64_t kAsks = 4;  // within the limit, however short it is

  struct Answer {
    std::uint64_t age_ms = 0;  // since it came, or since nothing moves
    bool said = false;         // something about it
    bool issued = false;
    std::uint32_t waits_at = 0;
  };
  EpochId epoch_;
  OpKey op_;
  std::uint64_t progress_ = 0;
  std::uint64_t limit_ms_ = 0;
  std::uint64_t stalled_ms_ = 0;  // since all have issued it
  std::uint64_t asked_ms_ = 0;
  std::map<PeerId, Answer> answers_;
  std::set<PeerId> found_;
};

}  // namespace pccl
