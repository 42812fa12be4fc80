// Memory that is used again, because fresh pages cost more than a reduction
// (docs/architecture/costs.md, measurements). Owned and used by the engine's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pccl {

class BufferPool;

/// A piece of pool memory; goes back to its pool when destroyed. Contents are undefined.
class PoolBuffer {
 public:
  PoolBuffer() = default;
  PoolBuffer(BufferPool* pool, std::byte* data, std::size_t capacity)
      : pool_(pool), data_(data), capacity_(capacity) {}
  PoolBuffer(PoolBuffer&& other) noexcept { *this = std::move(other); }
  PoolBuffer& operator=(PoolBuffer&& other) noexcept;
  PoolBuffer(const PoolBuffer&) = delete;
  PoolBuffer& operator=(const PoolBuffer&) = delete;
  ~PoolBuffer() { release(); }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }
  void release();

 private:
  BufferPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

/// Buffers in sizes of powers of two. Outlives its buffers.
class BufferPool {
 public:
  /// Keeps at most `kept_bytes_max` of free memory; more goes back to the system.
  explicit BufferPool(std::size_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Throws std::bad_alloc.
  [[nodiscard]] PoolBuffer take(std::size_t bytes);
  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }

 private:
  friend class PoolBuffer;
  void give(std::byte* data, std::size_t capacity);

  static constexpr std::size_t kClasses = 48;
  std::size_t kept_bytes_max_;
  std::size_t kept_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::vector<std::byte*> free_[kClasses];
};

}  // namespace pccl
