// What the user's thread and the engine's say to each other at a boundary: questions, events, and
// the state that is offered meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "engine/request.h"
#include "wire/messages.h"

namespace pccl {

/// refresh and resume.
struct BoundaryRequest {
  VoteKind kind = VoteKind::refresh;
  bool verify = false;
  std::uint64_t timeout_ms = 0;  // 0: none
};

/// One collective meeting at a boundary, as the user's thread sees it: a conversation, because
/// hashing and checking run on the user's thread. `next` until `finished` or an error.
struct BoundaryEvent {
  enum class What : std::uint8_t {
    hash,     // it votes: hash the state, answer with Run::boundary_root; `contributors`
    fetch,    // own state differs: pull from one of `plan.sources`, then ask boundary_adopt
    finished  // `step`, `voted`, `admitted`, `left`, `root`, `contributors`
  };
  What what = What::finished;
  EpochId epoch;  // fetch: names the proposal
  SyncPlan plan;  // fetch
  std::uint64_t step = 0;
  bool voted = false;
  bool admitted = false;
  bool left = false;
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
