// The run that this process takes part in: the elastic group of an engine, at most one. Its
// operations are posted to the engine, as those of any group (engine.h).
//
// Thread-safety: as Engine. Where there is no elastic group, because this process has not joined a
// run or has closed the group, a call does nothing, and a ticket says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/ids.h"
#include "engine/boundary.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/ticket.h"
#include "engine/view.h"
#include "wire/messages.h"

namespace pccl {

class Calls;
class EngineCore;

/// The number of the elastic group in frames; fixed groups draw theirs at random.
inline constexpr GroupId kElasticGroup{1};

class Run {
 public:
  /// For engine.cpp. Of `core`, to which `calls` go; both outlive it.
  [[nodiscard]] static std::unique_ptr<Run> of(Calls& calls, EngineCore& core);
  virtual ~Run() = default;

  /// Done when the run is founded.
  [[nodiscard]] virtual std::shared_ptr<Ticket> join(const JoinOptions& options) = 0;
  virtual void on_event(std::function<void(const GroupEvent&)> function) = 0;
  /// A wish: takes effect at the next boundary, or before it, if nobody has issued anything.
  virtual void leave(bool at_once) = 0;
  [[nodiscard]] virtual std::shared_ptr<Ticket> store(StoreRequest request) = 0;
  /// The caller's wait for this operation has returned: where a run has no boundaries, rank and
  /// size may change here.
  virtual void returned(OpKey op) = 0;

  // Boundaries. One at a time.
  [[nodiscard]] virtual Error boundary_begin(const BoundaryRequest& request) = 0;
  /// Blocks up to timeout_ms; nullopt: nothing yet.
  [[nodiscard]] virtual std::optional<Result<BoundaryEvent>> boundary_next(
      std::uint64_t timeout_ms) = 0;
  virtual void boundary_root(const StateRoot& root, Snapshot snapshot) = 0;
  /// The state with this root lies beside the own one, whole and checked: may it replace the own
  /// one? Ticket::amount is 1: yes, and boundary_fetched follows, whatever becomes of it; 0: the
  /// run has moved on, and the next event says to what.
  [[nodiscard]] virtual std::shared_ptr<Ticket> boundary_adopt(const StateRoot& root) = 0;
  /// The state that this peer holds from now on.
  virtual void boundary_fetched(const StateRoot& root, Snapshot snapshot) = 0;
  /// Fetches item `item` of the snapshot with `digest` from `source` into `to` (its size must fit),
  /// or into Ticket::bytes if to.data is null. A source that is too slow fails it (kPullIdleMs,
  /// kPullBytesPerSecondMin).
  [[nodiscard]] virtual std::shared_ptr<Ticket> pull(PeerId source, const Digest& digest,
                                                     std::uint32_t item, Buffer to) = 0;
  /// Ends a pull: when its ticket is done, nothing writes to its memory any more.
  virtual void cancel_pull(std::shared_ptr<Ticket> ticket) = 0;
};

}  // namespace pccl
