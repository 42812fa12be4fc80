// CRC32C (Castagnoli polynomial, as in iSCSI, RFC 3720): guards frames on links that leave this
// machine. The processor's instruction where it has one, else a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pccl {

/// Continues `crc` (0 at the start) over `data`: crc32c(crc32c(0, a), b) == crc32c(0, a + b).
[[nodiscard]] std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> data);
/// The same by table, whatever the processor has: what the tests compare with.
[[nodiscard]] std::uint32_t crc32c_table(std::uint32_t crc, std::span<const std::byte> data);

}  // namespace pccl
