// Memory that runs out: while a MemoryShortage is in force, one allocation in eight of an engine's
// pool fails (buffers for segments, preimages). operator new for aligned memory is replaced for it.
// And a heap that is laid out in another way: what a walk does depends on no address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

/// While it lives, what is allocated lies in another order than else, and holds other bytes.
class OtherHeap {
 public:
  explicit OtherHeap(std::uint64_t seed);
  ~OtherHeap();
  OtherHeap(const OtherHeap&) = delete;
  OtherHeap& operator=(const OtherHeap&) = delete;

 private:
  std::vector<std::unique_ptr<std::byte[]>> between_;
};

}  // namespace pccl::sim
