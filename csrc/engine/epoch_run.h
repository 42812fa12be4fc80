// The state of one epoch of a group, which ends with the epoch: its members, the ring, segments on
// their way, segments that came early, point-to-point calls. A group has one EpochRun for the
// running epoch; an elastic group has another one for an epoch that it has accepted, because other
// members may have begun it already. A frame is first given to its epoch, so data of two epochs
// never meet. Engine's thread only.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "base/lines.h"
#include "engine/context.h"
#include "engine/early.h"
#include "engine/flow.h"
#include "engine/point_to_point.h"

namespace pccl {

struct EpochRun {
  /// `confirmed`: of PointToPoint.
  EpochRun(EngineContext& context, SegmentOwner& owner, MessageWatcher& watcher, GroupId group,
           EpochId epoch, bool confirmed)
      : id(epoch),
        flow(context, group, epoch),
        early(context, owner),
        point_to_point(context, watcher, group, epoch, confirmed) {}
  EpochRun(const EpochRun&) = delete;
  EpochRun& operator=(const EpochRun&) = delete;

  const EpochId id;
  std::vector<PeerId> members;  // in rank order, with this peer; empty before the epoch begins
  std::vector<PeerId> ring;     // the members in the order of the ring
  Lines lines;                  // of the members
  bool stopped = false;         // the epoch has ended: its frames are dropped
  Flow flow;
  Early early;
  PointToPoint point_to_point;
  std::map<MemoryToken, OpKey> running;
  /// Operations that have lost a segment, because there was no memory for it.
  std::set<OpKey> starved;
  std::size_t replays_said = 0;  // lines in the log about operations that are replayed
};

}  // namespace pccl
