// SHA-256, and the digest of large memory: the hash over the hashes of its chunks, so that chunks
// can be hashed on many cores and, later, be fetched one by one. Pure: to hash in parallel a caller
// gives each core a range of chunks. OpenSSL appears in sha256.cpp only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pccl {

using Digest = std::array<std::uint8_t, 32>;  // the same as in wire/messages.h

inline constexpr std::size_t kStateChunkBytes = 4U << 20;

[[nodiscard]] Digest sha256(std::span<const std::byte> bytes);

/// Number of chunks of `bytes` bytes; 1 for 0 bytes, so that every item has a digest.
[[nodiscard]] std::size_t chunk_count(std::size_t bytes);

/// Digests of the chunks [first, last) of `bytes`; last <= chunk_count(bytes.size()).
[[nodiscard]] std::vector<Digest> chunk_digests(std::span<const std::byte> bytes, std::size_t first,
                                                std::size_t last);

/// The digest of an item from the digests of all its chunks, in order.
[[nodiscard]] Digest combine(std::span<const Digest> chunks);

}  // namespace pccl
