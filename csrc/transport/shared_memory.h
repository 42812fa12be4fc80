// Memory that two processes of one machine share: two rings (shared_ring.h), one for each
// direction. It has no name: one process makes it and passes its descriptor to the other one
// (local_socket.h). It cannot shrink, so that no process can take pages away that the other one is
// about to use. A forked child does not have it.
#pragma once

#include <cstddef>
#include <utility>

#include "base/error.h"
#include "transport/shared_ring.h"

namespace pccl {

/// Bytes of a ring: a power of two, within these limits. In the small one lie messages and small
/// segments, in the large one pieces of large segments, which stay in the caches.
inline constexpr std::size_t kRingBytesMin = 64U << 10;
inline constexpr std::size_t kRingBytesMax = 64U << 20;
inline constexpr std::size_t kSmallRingBytes = 256U << 10;
inline constexpr std::size_t kBulkRingBytes = 1U << 20;
/// Of two processes that have no other peers: larger ones are faster there, while with more ranks
/// they take room in the caches from each other.
inline constexpr std::size_t kOnlyBulkRingBytes = 2U << 20;
[[nodiscard]] bool is_ring_size(std::size_t bytes);

class SharedMemory {
 public:
  /// The side that makes the memory, and the side that gets it.
  enum class Side : std::uint8_t { maker, taker };

  SharedMemory() = default;  // no memory
  /// Errors: it is no size of a ring; the system has no such memory, or none left.
  [[nodiscard]] static Result<SharedMemory> make(std::size_t ring_bytes);
  /// Takes the memory of this descriptor, which comes from another process; the descriptor stays
  /// the caller's. Errors: it is not a sealed memory of two rings of this size, or it cannot be
  /// mapped.
  [[nodiscard]] static Result<SharedMemory> take(int descriptor, std::size_t ring_bytes);
  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    SharedMemory moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~SharedMemory();

  /// To be passed on; -1 once it is closed, and at a taker.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  void close_descriptor();
  /// In a forked child, which does not have the memory: something else may lie at its addresses.
  void forget();
  [[nodiscard]] RingWriter writer() const;
  [[nodiscard]] RingReader reader() const;

 private:
  [[nodiscard]] Error map(int descriptor, std::size_t ring_bytes, Side side);
  void swap(SharedMemory& other) noexcept;

  int descriptor_ = -1;
  Side side_ = Side::maker;
  std::size_t ring_bytes_ = 0;
  std::byte* headers_ = nullptr;
  std::byte* rings_[2] = {nullptr, nullptr};  // the maker writes the first, the taker the second
};

}  // namespace pccl
