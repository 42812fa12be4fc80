// What becomes of a peer's operations: issue, completion, commit, failure, verdict. Internal to the
// peer's core (peer.cpp has the events); pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "membership/peer.h"

namespace pccl::peer {

[[nodiscard]] inline bool is_pending(const Op& op) {
  return op.phase == Phase::issued || op.phase == Phase::done;
}

/// All that a peer tells a master, in Hello and again in Ready.
[[nodiscard]] Report report_of(const State& s);

/// Those of `peers` that are in the own peer group.
[[nodiscard]] std::vector<PeerId> own_group(const State& s, const std::vector<PeerId>& peers);

void issue(State& s, const Issued& e, Actions& out);

/// False: it was not to be completed.
[[nodiscard]] bool complete(State& s, OpKey key);

/// The master says so, of an operation that this peer has completed. Nothing happens if it has its
/// outcome already.
void commit(State& s, OpKey key, Actions& out);

/// The first failure of a step is one number, and its error is the error of all that follow.
void set_failure(State& s, Failure failure);

/// `failure.from` and all that follows and is not committed fails.
void fail_from(State& s, const Failure& failure, Actions& out);

/// Everything that is pending fails: this peer goes no further.
void fail_all(State& s, const Error& error, Actions& out);

/// Start: the verdict on everything in flight. `before`: the epoch that ran before `s.started`.
void decide_all(State& s, const Verdict& verdict, const std::optional<Epoch>& before, Actions& out);

/// wait() has returned: where a program has no boundaries, rank and size may change here.
void returned(State& s, OpKey key, Actions& out);

}  // namespace pccl::peer
