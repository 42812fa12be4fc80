// Memory that runs out: while a MemoryShortage is in force, one allocation in eight of an engine's
// pool fails (buffers for segments, preimages). operator new for aligned memory is replaced for it.
// Memory with fences, for what a program gives to its engine. And a heap that is laid out in
// another way: what a walk does depends on no address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
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

/// Memory between two fences. A fence that is not whole any more when the memory is given back
/// means that something was written beyond a tensor.
template <typename T>
struct Fenced {
  using value_type = T;
  static constexpr std::size_t kFence = 64;

  Fenced() = default;
  template <typename Other>
  Fenced(const Fenced<Other>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    auto* at = static_cast<unsigned char*>(::operator new(bytes + 2 * kFence));
    std::memset(at, kPost, kFence);
    std::memset(at + kFence + bytes, kPost, kFence);
    return reinterpret_cast<T*>(at + kFence);
  }
  void deallocate(T* memory, std::size_t count) {
    auto* at = reinterpret_cast<unsigned char*>(memory);
    const std::size_t bytes = count * sizeof(T);
    for (std::size_t i = 0; i < kFence; ++i) {
      if ((at - kFence)[i] == kPost && at[bytes + i] == kPost) continue;
      std::fprintf(stderr, "something was written beyond a tensor of %zu bytes\n", bytes);
      std::abort();
    }
    ::operator delete(at - kFence);
  }
  template <typename Other>
  bool operator==(const Fenced<Other>&) const {
    return true;
  }

 private:
  static constexpr unsigned char kPost = 0xA5;
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
