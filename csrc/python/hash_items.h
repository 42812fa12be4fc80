// SHA-256 of many pieces of memory on all cores. state/sha256.h is pure and knows no threads; the
// threads are here, and the user's thread waits for them without the GIL.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "state/sha256.h"

namespace pccl {

/// The digest of each item, over those of its chunks. The memory must not be written meanwhile.
[[nodiscard]] std::vector<Digest> hash_items(std::span<const std::span<const std::byte>> items);

}  // namespace pccl
