// The digest of an item, on one thread.
#pragma once

#include "state/sha256.h"

namespace pccl {

inline Digest hash_item(std::span<const std::byte> bytes) {
  return combine(chunk_digests(bytes, 0, chunk_count(bytes.size())));
}

}  // namespace pccl
