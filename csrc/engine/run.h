// The run that this process takes part in: the elastic group of an engine, at most one. Its
// operations are posted to the engine, as those of any group (engine.h).
//
// Thread-safety: as Engine. Without an elastic group (this process has not joined a run, or has
// closed the group) a call does nothing, and its ticket has an error that says so.
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
  /// For engine.cpp. `calls` run on `core`; both outlive this object.
  [[nodiscard]] static std::unique_ptr<Run> of(Calls& calls, EngineCore& core);
  virtual ~Run() = default;

  /// The ticket is complete when the run is founded.
  [[nodiscard]] virtual std::shared_ptr<Ticket> join(const JoinOptions& options) = 0;
  virtual void on_event(std::function<void(const GroupEvent&)> function) = 0;
  /// Asks to leave: at the next boundary, or before it if no member has issued an operation.
  virtual void leave(bool at_once) = 0;
  [[nodiscard]] virtual std::shared_ptr<Ticket> store(StoreRequest request) = 0;
  /// The caller's wait for this operation returns: in a run without boundaries rank and size may
  /// change here. The ticket is complete when they have changed: when all calls before this one
  /// have their outcomes, so that they change at one place of the program at all members. Null:
  /// they do not change here.
  [[nodiscard]] virtual std::shared_ptr<Ticket> returned(const Ticket& operation) = 0;

  // Boundaries, one at a time.
  [[nodiscard]] virtual Error boundary_begin(const BoundaryRequest& request) = 0;
  /// The next event of the boundary. Blocks up to timeout_ms; nullopt: no event yet.
  [[nodiscard]] virtual std::optional<Result<BoundaryEvent>> boundary_next(
      std::uint64_t timeout_ms) = 0;
  virtual void boundary_root(const StateRoot& root, Snapshot snapshot) = 0;
  /// The state with this root lies beside this peer's own state, whole and checked: may it replace
  /// the own state? If it is `adopted` (AdoptionResult), boundary_fetched has to follow, even if
  /// the replacement fails; else the run has moved on to another state, which the next event names.
  [[nodiscard]] virtual std::shared_ptr<Ticket> boundary_adopt(const StateRoot& root) = 0;
  /// The state that this peer holds from now on.
  virtual void boundary_fetched(const StateRoot& root, Snapshot snapshot) = 0;
  /// Fetches item `item` of the snapshot with `digest` from `source` into `to` (whose size must
  /// fit), or into the bytes of its PullResult if to.data is null. The pull fails if the source is
  /// too slow (kPullIdleMs, kPullBytesPerSecondMin).
  [[nodiscard]] virtual std::shared_ptr<Ticket> pull(PeerId source, const Digest& digest,
                                                     std::uint32_t item, Buffer to) = 0;
  /// Ends a pull: when its ticket is done, its memory is not written any more.
  virtual void cancel_pull(std::shared_ptr<Ticket> ticket) = 0;
};

}  // namespace pccl
