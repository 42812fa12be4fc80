#include "pool_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
std::atomic<std::size_t> used_bytes = 0;
std::atomic<std::size_t> used_bytes_max = kNoLimit;

}  // namespace

pccl::testing::PoolMemoryLimit::PoolMemoryLimit(std::size_t more_bytes) {
  used_bytes_max = used_bytes + more_bytes;
}
pccl::testing::PoolMemoryLimit::~PoolMemoryLimit() { used_bytes_max = kNoLimit; }

// Not inline: else the compiler sees `new` beside `free`.
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  if (used_bytes_max != kNoLimit && used_bytes + bytes > used_bytes_max) throw std::bad_alloc();
  void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (memory == nullptr) throw std::bad_alloc();
  used_bytes += malloc_usable_size(memory);
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  used_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t,
                                       std::align_val_t alignment) noexcept {
  operator delete(memory, alignment);
}
