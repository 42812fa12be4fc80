#include "transport/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace pccl {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reversed

using Table = std::array<std::uint32_t, 256>;
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kTables = make_tables();

#if defined(__x86_64__)
// A register that many zero bytes later: the matrix that advances a CRC by kLane bytes, as four
// tables of 256 (one per byte of the register). Three independent streams hide the latency of the
// instruction; they are joined by advancing the earlier ones (M. Adler's method for crc32c in
// hardware).
constexpr std::size_t kLane = 1024;

constexpr std::array<Table, 4> make_advance() {
  std::array<std::uint32_t, 32> columns{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t crc = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < kLane; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xFF];
    columns[bit] = crc;
  }
  std::array<Table, 4> tables{};
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((i >> bit & 1) != 0) tables[t][i] ^= columns[8 * t + bit];
      }
    }
  }
  return tables;
}
const std::array<Table, 4> kAdvance = make_advance();

std::uint32_t advance(std::uint32_t crc) {
  return kAdvance[0][crc & 0xFF] ^ kAdvance[1][crc >> 8 & 0xFF] ^ kAdvance[2][crc >> 16 & 0xFF] ^
         kAdvance[3][crc >> 24];
}

std::uint64_t load(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::uint32_t crc,
                                                             std::span<const std::byte> data) {
  const std::byte* at = data.data();
  std::size_t left = data.size();
  std::uint64_t a = ~crc;
  while (left >= 3 * kLane) {
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, load(at + i));
      b = _mm_crc32_u64(b, load(at + kLane + i));
      c = _mm_crc32_u64(c, load(at + 2 * kLane + i));
    }
    a = advance(static_cast<std::uint32_t>(a)) ^ b;
    a = advance(static_cast<std::uint32_t>(a)) ^ c;
    at += 3 * kLane;
    left -= 3 * kLane;
  }
  for (; left >= 8; at += 8, left -= 8) a = _mm_crc32_u64(a, load(at));
  auto rest = static_cast<std::uint32_t>(a);
  for (; left > 0; ++at, --left) rest = _mm_crc32_u8(rest, static_cast<std::uint8_t>(*at));
  return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_table(std::uint32_t crc, std::span<const std::byte> data) {
  crc = ~crc;
  std::size_t i = 0;
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(data[at]); };
  for (; i + 8 <= data.size(); i += 8) {
    crc ^= byte(i) | byte(i + 1) << 8 | byte(i + 2) << 16 | byte(i + 3) << 24;
    crc = kTables[7][crc & 0xFF] ^ kTables[6][crc >> 8 & 0xFF] ^ kTables[5][crc >> 16 & 0xFF] ^
          kTables[4][crc >> 24] ^ kTables[3][byte(i + 4)] ^ kTables[2][byte(i + 5)] ^
          kTables[1][byte(i + 6)] ^ kTables[0][byte(i + 7)];
  }
  for (; i < data.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ byte(i)) & 0xFF];
  return ~crc;
}

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> data) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_sse42(crc, data);
#endif
  return crc32c_table(crc, data);
}

}  // namespace pccl
