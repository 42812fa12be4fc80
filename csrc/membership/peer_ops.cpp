// See peer_ops.h. One outcome for each operation; RestoreOp comes latest first, before any RunOp.
#include "membership/peer_ops.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "membership/members.h"

namespace pccl::peer {
namespace {

/// Takes the decided operations off the front: from there on everything is committed. (A failed one
/// leaves a gap, and the front stays there until the next voted boundary.)
void take_off_front(State& s, const std::optional<Epoch>& before) {
  while (!s.ops.empty()) {
    const auto front = s.ops.begin();
    if (front->first != s.committed_below || front->second.phase != Phase::committed) return;
    // Without boundaries rank and size change when the first operation that was completed in a
    // newer epoch returns. The first one is the first in the order of issue. This order, and the
    // epoch in which an operation was completed, are the same at all members.
    const EpochId in = front->second.completed_in;
    if (!s.has_boundaries && in > s.numbered_in) {
      s.numbered_in = in;
      const Epoch* epoch = s.started->id == in            ? &*s.started
                           : (before && before->id == in) ? &*before
                                                          : nullptr;
      const auto& newest = s.renumber.empty() ? s.pinned : s.renumber.rbegin()->second.pinned;
      if (epoch != nullptr && epoch->members.size() != newest.size()) {
        s.renumber[front->first] = {in, ids_of(epoch->members)};
      }
    }
    s.ops.erase(front);
    ++s.committed_below.index;
  }
}

void set_committed(State& s, OpKey key, Op& op, Actions& out) {
  op.phase = Phase::committed;
  --s.pending;
  out.push_back(CommitOp{key, op.completed_in});
}

/// The lost members without which the operation makes no sense. The result follows from kind,
/// numbering and members, which are the same at all members, so it is recorded nowhere.
std::vector<PeerId> missing(const State& s, const Op& op) {
  std::vector<PeerId> lost;
  if (op.loss == LossClass::needs_root && !s.here.contains(op.root)) lost.push_back(op.root);
  if (op.loss == LossClass::needs_all) {
    for (const PeerId peer : op.numbering) {
      if (!s.here.contains(peer)) lost.push_back(peer);
    }
  }
  return lost;
}

std::string text_of_loss(const State& s, const Op& op, const std::vector<PeerId>& lost) {
  const std::vector<PeerId> group = own_group(s, op.numbering);
  std::string text = "lost:";
  for (const PeerId peer : lost) {
    const auto at = std::find(group.begin(), group.end(), peer);
    text += at == group.end() ? " a member of another peer group"
                              : " rank " + std::to_string(at - group.begin());
    const auto name = s.names.find(peer);
    text += " (" + (name == s.names.end() ? to_string(peer) : name->second) + ")";
  }
  return cut_text(std::move(text));
}

void check_sense(State& s, OpKey key, const Op& op) {
  if (op.loss == LossClass::replay) return;
  const std::vector<PeerId> lost = missing(s, op);
  if (lost.empty()) return;
  set_failure(s, Failure{key, Error{ErrorCode::peer_lost, text_of_loss(s, op, lost)}});
}

bool fails(const State& s, OpKey key) { return s.failure && key >= s.failure->from; }

/// Fails these operations, given in program order. First their tensors are restored, latest
/// operation first.
void fail_these(State& s, const std::vector<OpKey>& keys, const Error& error, Actions& out) {
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) out.push_back(RestoreOp{*key});
  for (const OpKey key : keys) {
    out.push_back(FailOp{key, error});
    s.ops.erase(key);
    --s.pending;
  }
}

}  // namespace

Report report_of(const State& s) {
  Report r;
  if (s.started) {
    r.started = s.started->id;
    r.started_members = ids_of(s.started->members);
  }
  if (s.accepted) r.accepted = s.accepted->id;
  r.step = s.step;
  r.vote = s.vote;
  if (s.root_known) r.root = s.root;
  r.passed = s.passed;
  r.pinned = s.pinned;
  r.committed.below = s.committed_below;
  for (const auto& [key, op] : s.ops) {
    if (op.phase == Phase::committed) r.committed.also.push_back(key);
    if (op.phase == Phase::done) r.done.push_back(key);
  }
  r.failure = s.failure;
  for (const auto& [step, votes] : s.flags) {
    if (r.flags.size() == kReportFlagsMax) break;  // another peer group is that far ahead
    r.flags.push_back(StepFlag{step, votes});
  }
  r.issued = next_key(s);
  r.calm = s.next == 0 && !(s.rigid_step && *s.rigid_step + 1 >= s.step);
  r.leaving = s.leaving;
  r.at_once = s.at_once;
  r.finish = s.finish;
  return r;
}

std::vector<PeerId> own_group(const State& s, const std::vector<PeerId>& peers) {
  std::vector<PeerId> mates;
  for (const PeerId peer : peers) {
    const auto group = s.group_of.find(peer);
    if (group != s.group_of.end() && group->second == s.self.place.rank) mates.push_back(peer);
  }
  return mates;
}

void issue(State& s, const Issued& e, Actions& out) {
  const OpKey key = next_key(s);
  ++s.next;
  if (s.over || !s.started) {
    const ErrorCode code = s.over ? ErrorCode::closed : ErrorCode::not_admitted;
    out.push_back(FailOp{key, Error{code, s.over ? "this peer has left the run"
                                                 : "call refresh first: it admits this peer"}});
    return;
  }
  Op op{e.loss, e.root, Phase::issued, {}, {}};
  if (e.loss != LossClass::replay) {
    op.numbering = s.pinned;
    s.rigid_step = s.step;
  }
  check_sense(s, key, op);
  if (fails(s, key)) {
    out.push_back(FailOp{key, s.failure->error});
    return;
  }
  s.ops.emplace_hint(s.ops.end(), key, std::move(op));
  ++s.pending;
  if (!s.stopped) out.push_back(RunOp{key});
}

bool complete(State& s, OpKey key) {
  const auto found = s.ops.find(key);
  if (found == s.ops.end() || found->second.phase != Phase::issued) return false;
  found->second.phase = Phase::done;
  found->second.completed_in = s.started->id;
  return true;
}

void commit(State& s, OpKey key, Actions& out) {
  const auto found = s.ops.find(key);
  if (found == s.ops.end() || !is_pending(found->second)) return;
  PCCL_ASSERT(found->second.phase == Phase::done, "committed, but not complete here",
              to_string(key));
  set_committed(s, key, found->second, out);
  take_off_front(s, std::nullopt);
}

void set_failure(State& s, Failure failure) {
  if (!s.failure || failure.from < s.failure->from) s.failure = std::move(failure);
}

void fail_from(State& s, const Failure& failure, Actions& out) {
  set_failure(s, failure);
  std::vector<OpKey> keys;
  for (auto it = s.ops.lower_bound(s.failure->from); it != s.ops.end(); ++it) {
    if (is_pending(it->second)) keys.push_back(it->first);
  }
  fail_these(s, keys, s.failure->error, out);
}

void fail_all(State& s, const Error& error, Actions& out) {
  std::vector<OpKey> keys;
  for (const auto& [key, op] : s.ops) {
    if (is_pending(op)) keys.push_back(key);
  }
  fail_these(s, keys, error, out);
}

void decide_all(State& s, const Verdict& verdict, const std::optional<Epoch>& before,
                Actions& out) {
  enum class Fate { committed, failed, unknown_here, again };
  std::vector<std::pair<OpKey, Fate>> fates;
  for (auto& [key, op] : s.ops) {
    if (!is_pending(op)) continue;
    if (contains(verdict.committed, key)) {
      fates.emplace_back(key, op.phase == Phase::done ? Fate::committed : Fate::unknown_here);
      continue;
    }
    check_sense(s, key, op);  // also operations issued after Ready, which no verdict knows
    fates.emplace_back(key, fails(s, key) ? Fate::failed : Fate::again);
  }
  for (auto it = fates.rbegin(); it != fates.rend(); ++it) {
    if (it->second == Fate::committed) continue;
    out.push_back(RestoreOp{it->first});
  }
  for (const auto& [key, fate] : fates) {
    const auto op = s.ops.find(key);
    switch (fate) {
      case Fate::committed:
        set_committed(s, key, op->second, out);
        break;
      case Fate::failed:
        out.push_back(FailOp{key, s.failure->error});
        s.ops.erase(op);
        --s.pending;
        break;
      case Fate::unknown_here:
        // A mate has left this step without the operation, so the programs differ.
        out.push_back(FailOp{
            key, Error{ErrorCode::mismatch, "other members ended step " + std::to_string(key.step) +
                                                " without operation " + to_string(key) +
                                                " of it: the programs differ"}});
        s.ops.erase(op);
        --s.pending;
        break;
      case Fate::again:
        op->second.phase = Phase::issued;
        op->second.completed_in = EpochId{};
        break;
    }
  }
  take_off_front(s, before);
  for (const auto& [key, fate] : fates) {
    if (fate == Fate::again) out.push_back(RunOp{key});
  }
}

void returned(State& s, OpKey key, EpochId in, Actions& out) {
  if (key == kNoOp) return;  // a call that the group has refused
  // Which numberings there are up to here is known when all calls up to here have their outcomes.
  if (!s.ops.empty() && s.ops.begin()->first <= key) return;
  // A program need not wait for every operation: what an earlier one would have brought counts too.
  auto later = s.renumber.upper_bound(key);
  while (later != s.renumber.begin() && in < std::prev(later)->second.in) --later;
  if (later == s.renumber.begin()) return;
  s.pinned_in = std::prev(later)->second.in;
  s.pinned = std::move(std::prev(later)->second.pinned);
  s.renumber.erase(s.renumber.begin(), later);
  out.push_back(Renumber{own_group(s, s.pinned)});
}

}  // namespace pccl::peer
