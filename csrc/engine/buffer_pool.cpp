#include "engine/buffer_pool.h"

#include <bit>
#include <new>
#include <utility>

namespace pccl {
namespace {

constexpr std::size_t kBytesMin = 4096;
constexpr std::align_val_t kAlignment{4096};

std::size_t class_of(std::size_t capacity) {
  return static_cast<std::size_t>(std::countr_zero(capacity));
}

}  // namespace

PoolBuffer& PoolBuffer::operator=(PoolBuffer&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    capacity_ = std::exchange(other.capacity_, 0);
  }
  return *this;
}

void PoolBuffer::release() {
  if (data_ != nullptr) pool_->give(data_, capacity_);
  pool_ = nullptr;
  data_ = nullptr;
  capacity_ = 0;
}

BufferPool::~BufferPool() {
  for (auto& list : free_) {
    for (std::byte* data : list) ::operator delete(data, kAlignment);
  }
}

PoolBuffer BufferPool::take(std::size_t bytes) {
  const std::size_t capacity = std::bit_ceil(bytes < kBytesMin ? kBytesMin : bytes);
  auto& list = free_[class_of(capacity)];
  std::byte* data = nullptr;
  if (list.empty()) {
    data = static_cast<std::byte*>(::operator new(capacity, kAlignment));
  } else {
    data = list.back();
    list.pop_back();
    kept_bytes_ -= capacity;
  }
  used_bytes_ += capacity;
  return PoolBuffer(this, data, capacity);
}

void BufferPool::give(std::byte* data, std::size_t capacity) {
  used_bytes_ -= capacity;
  if (kept_bytes_ + capacity > kept_bytes_max_) {
    ::operator delete(data, kAlignment);
    return;
  }
  kept_bytes_ += capacity;
  free_[class_of(capacity)].push_back(data);
}

}  // namespace pccl
