// The undo log of one operation: the values of its outputs before they were first written, kept
// until the outcome is known. Each range is copied just before it is overwritten, when it is in the
// cache anyway, with stores that bypass the cache.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/buffer_pool.h"
#include "engine/request.h"

namespace pccl {

class Preimage {
 public:
  /// `outputs` outlives this.
  Preimage(BufferPool& pool, const std::vector<Buffer>& outputs) : pool_(pool), outputs_(outputs) {}

  /// Bytes [offset, offset + bytes) of output `index` are about to be written.
  void save(std::uint32_t index, std::uint64_t offset, std::uint64_t bytes);
  /// Writes the saved values back, and forgets them.
  void restore();

 private:
  struct Log {
    PoolBuffer memory;                             // as large as the output, same offsets
    std::map<std::uint64_t, std::uint64_t> saved;  // begin -> end, disjoint, not adjacent
  };
  void save_gap(Log& log, std::uint32_t index, std::uint64_t begin, std::uint64_t end);

  BufferPool& pool_;
  const std::vector<Buffer>& outputs_;
  std::map<std::uint32_t, Log> logs_;
};

}  // namespace pccl
