// Memory without a name that processes of one machine share (memfd_create), as far as rings
// (shared_memory.h) and areas (area.h) have it in common: sealed, so that no process can take pages
// away that another one is about to use.
#pragma once

#include <fcntl.h>

#include <cstddef>

#include "base/error.h"

namespace pccl {

inline constexpr int kMemorySeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Is the descriptor of a memory of so many bytes that has these seals?
[[nodiscard]] bool is_sealed_memory(int descriptor, std::size_t bytes);
/// Gives this range of a memory its pages, and makes the memory as long as that: a machine without
/// memory says so here, in errno, and does not end the process at the first write.
[[nodiscard]] bool allocate_memory(int descriptor, std::size_t offset, std::size_t bytes);
/// `what`, and what errno says (unreachable).
[[nodiscard]] Error memory_error(const char* what);

}  // namespace pccl
