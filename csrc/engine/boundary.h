// The conversation of the user's thread and the engine's thread at a boundary: questions, events,
// and the state that is offered meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/request.h"
#include "wire/messages.h"

namespace pccl {

/// A call of refresh, resume or finish.
struct BoundaryRequest {
  VoteKind kind = VoteKind::refresh;
  bool verify = false;
  std::uint64_t timeout_ms = 0;  // 0: none
  /// Set by a call of finish: the run ends at this revision of its state, if all members call
  /// finish.
  std::optional<std::uint64_t> finish = {};
};

/// A boundary, as the user's thread sees it: a conversation, because hashing and checking run on
/// the user's thread. The user's thread calls `next` until `finished` or an error.
struct BoundaryEvent {
  enum class What : std::uint8_t {
    hash,     // the boundary votes: hash the state, answer with Run::boundary_root; `contributors`
    fetch,    // this peer's state differs: pull from one of `plan.sources`, then ask boundary_adopt
    finished  // `step`, `voted`, `admitted`, `left`, `ended`, `root`, `contributors`
  };
  What what = What::finished;
  EpochId epoch;  // fetch: the epoch of the proposal
  SyncPlan plan;  // fetch
  std::uint64_t step = 0;
  bool voted = false;
  bool admitted = false;
  bool left = false;
  std::string ended = {};  // not empty: the run is finished; the text says how
  StateRoot root;
  std::vector<std::uint32_t> contributors;  // ranks of the step that has ended, ascending
};

/// The state that a member offers while it stands at a boundary: item 0 is the manifest.
struct Snapshot {
  Digest digest{};
  std::vector<Buffer> items;
  std::shared_ptr<void> keep_alive;
};

}  // namespace pccl
