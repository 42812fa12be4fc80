// Snapshots of an engine for other threads: a group as it is now, its events, operations in flight,
// counters. A snapshot does not change after it was taken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/types.h"
#include "collectives/schedule.h"
#include "engine/request.h"

namespace pccl {

struct GroupView {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  EpochId epoch;  // the newest configured
  std::uint64_t step = 0;
  Numbering numbering = std::make_shared<const std::vector<PeerId>>();
  /// Members of the epoch, in the order in which data go round.
  std::shared_ptr<const std::vector<PeerId>> ring = numbering;
  Lines lines;  // of the members
  /// Ranks that have contributed to all operations of this step so far; none: there is none yet.
  std::shared_ptr<const std::vector<std::uint32_t>> contributors =
      std::make_shared<const std::vector<std::uint32_t>>();
  bool elastic = false;
  bool admitted = true;  // false: a newcomer before its first refresh
  bool evicted = false;
  bool left = false;
  bool without_master = false;  // no master in charge is connected
  std::string told;             // why the run waits, as the master has said since the last boundary
  Error failure;                // a fixed group that has failed, why
};

struct EngineCounters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t ops_committed = 0;
  std::uint64_t ops_replayed = 0;
  std::uint64_t ops_failed = 0;
  std::uint64_t epochs = 0;
  std::uint64_t bytes_relayed = 0;
  std::uint64_t bytes_shared = 0;
  std::uint64_t rate_held_ms = 0;
  std::array<std::uint64_t, kAlgorithms> ops_by{};  // of ops_committed, by algorithm

  /// Calls `visit(name, value)` for each.
  static void fields(auto& self, auto&& visit) {
    visit("bytes_sent", self.bytes_sent);
    visit("bytes_received", self.bytes_received);
    visit("ops_committed", self.ops_committed);
    visit("ops_replayed", self.ops_replayed);
    visit("ops_failed", self.ops_failed);
    visit("epochs", self.epochs);
    visit("bytes_relayed", self.bytes_relayed);
    visit("bytes_shared", self.bytes_shared);
    visit("rate_held_ms", self.rate_held_ms);
    for (std::size_t i = 0; i < kAlgorithms; ++i) {
      const std::string name(algorithm_name(static_cast<Algorithm>(i)));
      visit(("ops_by_" + name).c_str(), self.ops_by[i]);
    }
  }
};

/// What an operation in flight looks like from outside (the demo's killer, diagnostics).
struct OpInFlight {
  OpKey op;
  OpDescriptor descriptor;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  bool complete = false;  // this peer's part is complete; the operation is not committed yet
  Algorithm algorithm = Algorithm::none;  // none also before it has begun
};

/// Membership changes and the like, for hooks and logs; delivered on the engine's thread.
struct GroupEvent {
  enum class What : std::uint8_t { epoch, master_lost, master_back, evicted, left };
  What what = What::epoch;
  EpochId epoch;
  std::vector<PeerId> lost, joined;
  std::vector<std::string> lost_names, joined_names;  // in the same order, as logs name the peers
  std::int32_t members = 0;
  std::string text;
};

}  // namespace pccl
