// Random bytes from OpenSSL, of which keys and nonces are made. Simulations take base/random.h.
#pragma once

#include <cstdint>
#include <span>

namespace pccl {

/// Fills `out`. A failure is a broken invariant: without random bytes no key is secret.
void random_bytes(std::span<std::uint8_t> out);
[[nodiscard]] std::uint64_t random_u64();

}  // namespace pccl
