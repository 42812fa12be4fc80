#include "trust/random_bytes.h"

#include <openssl/rand.h>

#include <array>
#include <cstring>

#include "base/assert.h"

namespace pccl {

void random_bytes(std::span<std::uint8_t> out) {
  PCCL_ASSERT(RAND_bytes(out.data(), static_cast<int>(out.size())) == 1, "no random bytes");
}

std::uint64_t random_u64() {
  std::array<std::uint8_t, 8> bytes{};
  random_bytes(bytes);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace pccl
