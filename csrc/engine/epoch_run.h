// What belongs to one epoch of a group and ends with it: its members, the ring, what is on its way,
// what came early, point-to-point calls. A group has one in force, and an elastic group one more
// for the epoch that it has accepted, whose other members may be ahead. What arrives finds its
// epoch first, so nothing of one epoch can meet anything of another. Engine's thread only.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "engine/context.h"
#include "engine/early.h"
#include "engine/flow.h"
#include "engine/point_to_point.h"

namespace pccl {

struct EpochRun {
  EpochRun(EngineContext& context, SegmentOwner& owner, MessageWatcher& watcher, GroupId group,
           EpochId epoch, bool elastic)
      : id(epoch),
        flow(context, group, epoch),
        early(context, owner),
        point_to_point(context, watcher, group, epoch, elastic) {}
  EpochRun(const EpochRun&) = delete;
  EpochRun& operator=(const EpochRun&) = delete;

  const EpochId id;
  std::vector<PeerId> members;  // in rank order, with self; none before it is in force
  std::vector<PeerId> ring;     // the same, in the order in which data go round
  bool stopped = false;         // it has ended: nothing of it is taken any more
  Flow flow;
  Early early;
  PointToPoint point_to_point;
  std::map<MemoryToken, OpKey> running;
  /// Operations of which a segment is lost, because there was no memory for it.
  std::set<OpKey> starved;
};

}  // namespace pccl
