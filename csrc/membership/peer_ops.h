// A peer's operations: issue, completion, commit, failure, verdict. Internal to the peer's core
// (peer.cpp has the events); pure.
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

/// Those of `peers` that are in this peer's peer group.
[[nodiscard]] std::vector<PeerId> own_group(const State& s, const std::vector<PeerId>& peers);

void issue(State& s, const Issued& e, Actions& out);

/// Notes that this peer's part of an operation is complete. False: the operation is unknown, or was
/// complete or failed already; nothing has changed then.
[[nodiscard]] bool complete(State& s, OpKey key);

/// The master has committed an operation that this peer has completed. Does nothing if the
/// operation has its outcome already.
void commit(State& s, OpKey key, Actions& out);

/// Notes a failure of the step: of several the first one in program order counts, and its error is
/// the error of all operations that fail after it.
void set_failure(State& s, Failure failure);

/// Fails the operation `failure.from` and every later one of the step that is not committed.
void fail_from(State& s, const Failure& failure, Actions& out);

/// Fails all pending operations: this peer takes no further part in the run.
void fail_all(State& s, const Error& error, Actions& out);

/// Applies the verdict of a Start to all operations in flight. `before`: the epoch that ran before
/// `s.started`.
void decide_all(State& s, const Verdict& verdict, const std::optional<Epoch>& before, Actions& out);

/// wait() of this operation, which was completed in epoch `in`, has returned. In a program without
/// boundaries rank and size may change here, to those of an epoch no newer than `in`: all members
/// know that one when they return, so they change at the same place.
void returned(State& s, OpKey key, EpochId in, Actions& out);

}  // namespace pccl::peer
