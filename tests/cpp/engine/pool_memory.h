// Want of pool memory, for tests: pool_memory.cpp replaces the aligned `operator new` of the whole
// program, from which a BufferPool has its memory.
#pragma once

#include <cstddef>

namespace pccl::testing {

/// While it lives all pools together find no more memory than this beside what they have.
class PoolMemoryLimit {
 public:
  explicit PoolMemoryLimit(std::size_t more_bytes);
  ~PoolMemoryLimit();
  PoolMemoryLimit(const PoolMemoryLimit&) = delete;
  PoolMemoryLimit& operator=(const PoolMemoryLimit&) = delete;
};

}  // namespace pccl::testing
