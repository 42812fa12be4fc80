// SHA-256 by OpenSSL's EVP, which takes the CPU's SHA instructions where there are some.
//
// A digest context is made per call: it is cheap against a chunk, and calls share nothing.
#include "state/sha256.h"

#include <openssl/evp.h>

#include <algorithm>

#include "base/assert.h"

namespace pccl {

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest{};
  unsigned int length = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  PCCL_ASSERT(ok == 1, "SHA-256 is not available in this OpenSSL");
  PCCL_ASSERT(length == digest.size(), length);
  return digest;
}

std::size_t chunk_count(std::size_t bytes) {
  return bytes == 0 ? 1 : (bytes - 1) / kStateChunkBytes + 1;
}

std::vector<Digest> chunk_digests(std::span<const std::byte> bytes, std::size_t first,
                                  std::size_t last) {
  PCCL_ASSERT(first <= last, first, last);
  PCCL_ASSERT(last <= chunk_count(bytes.size()), last, bytes.size());
  std::vector<Digest> digests;
  digests.reserve(last - first);
  for (std::size_t i = first; i < last; ++i) {
    const std::size_t offset = i * kStateChunkBytes;
    digests.push_back(
        sha256(bytes.subspan(offset, std::min(kStateChunkBytes, bytes.size() - offset))));
  }
  return digests;
}

Digest combine(std::span<const Digest> chunks) { return sha256(std::as_bytes(chunks)); }

}  // namespace pccl
