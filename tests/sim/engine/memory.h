// Memory that runs out: while a MemoryShortage is in force, one allocation in eight of an engine's
// pool fails (buffers for segments, preimages). operator new for aligned memory is replaced for it.
#pragma once

#include "base/random.h"

namespace pccl::sim {

class MemoryShortage {
 public:
  /// null: there is none.
  explicit MemoryShortage(Random* chance);
  ~MemoryShortage();
  MemoryShortage(const MemoryShortage&) = delete;
  MemoryShortage& operator=(const MemoryShortage&) = delete;

 private:
  Random* before_;
};

}  // namespace pccl::sim
