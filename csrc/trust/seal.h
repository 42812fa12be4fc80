// The seal of a handle that a rank of a fixed group puts into a store: ranks that hold a common
// token see that one of them has written the handle, whoever else writes into the store. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "trust/token.h"

namespace pccl {

/// Where a handle stands: the `turn`-th group that is made under this key, and the rank in it.
struct SealedPlace {
  std::uint64_t turn = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
};

/// The value for the store: a byte (0: not sealed, 1: sealed), a seal of 32 bytes or none, the
/// handle. The first of the tokens seals; without tokens the handle is not sealed.
[[nodiscard]] std::vector<std::uint8_t> seal(const Tokens* tokens, const SealedPlace& place,
                                             std::span<const std::byte> handle);
/// The handle in such a value. An error, which names the rank, if its seal is of none of the
/// tokens, or if one of the two processes has tokens and the other one has none.
[[nodiscard]] Result<std::span<const std::byte>> unseal(const Tokens* tokens,
                                                        const SealedPlace& place,
                                                        std::span<const std::byte> value);

}  // namespace pccl
