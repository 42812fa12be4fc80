// The ways in which an all-reduce may send float32 values as fewer bits, and the bytes that such
// values take. The numbers are on the wire (in every segment header), so they are never reused. The
// loops are in kernels/quantise.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pccl {

/// What a value becomes, and how far it may be off, with `range` for the largest less the smallest
/// value of its block and `most` for the largest magnitude there (rounding of float32 beside it):
enum class Quantisation : std::uint8_t {
  none = 0,
  int8_minmax = 1,      // 0..255 between smallest and largest: range / 510
  int8_zero_point = 2,  // 0..255, and zero stays zero; range reaches to zero: range / 255
  int4_minmax = 3,      // 0..15: range / 30
  f16 = 4,              // its magnitude / 2048 (from 2^-14 on); from 65520 on: infinity
  bf16 = 5,             // its magnitude / 256
  f8_e4m3 = 6,          // its magnitude / 16, or most / 2^18 where that is more
  f8_e5m2 = 7,          // its magnitude / 8, or most / 2^32 where that is more
};

inline constexpr Quantisation kQuantisationLast = Quantisation::f8_e5m2;

/// The names by which programs ask for them.
constexpr std::string_view quantisation_name(Quantisation how) {
  switch (how) {
    case Quantisation::none:
      return "none";
    case Quantisation::int8_minmax:
      return "int8";
    case Quantisation::int8_zero_point:
      return "int8_zero_point";
    case Quantisation::int4_minmax:
      return "int4";
    case Quantisation::f16:
      return "float16";
    case Quantisation::bf16:
      return "bfloat16";
    case Quantisation::f8_e4m3:
      return "float8_e4m3";
    case Quantisation::f8_e5m2:
      return "float8_e5m2";
  }
  return "unknown";
}

/// Values in a block; the last one of a sequence may have fewer.
inline constexpr std::size_t kQuantisedBlock = 256;

/// Bytes of the parameters of a block.
constexpr std::size_t quantised_header_bytes(Quantisation how) {
  switch (how) {
    case Quantisation::int8_minmax:
    case Quantisation::int8_zero_point:
    case Quantisation::int4_minmax:
      return 8;
    case Quantisation::f8_e4m3:
    case Quantisation::f8_e5m2:
      return 4;
    case Quantisation::none:
    case Quantisation::f16:
    case Quantisation::bf16:
      break;
  }
  return 0;
}

/// Bytes that `count` values take.
constexpr std::size_t quantised_bytes(std::size_t count, Quantisation how) {
  const std::size_t blocks = (count + kQuantisedBlock - 1) / kQuantisedBlock;
  const std::size_t headers = blocks * quantised_header_bytes(how);
  switch (how) {
    case Quantisation::none:
      return 4 * count;
    case Quantisation::int8_minmax:
    case Quantisation::int8_zero_point:
    case Quantisation::f8_e4m3:
    case Quantisation::f8_e5m2:
      return headers + count;
    case Quantisation::int4_minmax:
      return headers + (count + 1) / 2;  // blocks but the last one are even
    case Quantisation::f16:
    case Quantisation::bf16:
      return 2 * count;
  }
  return 0;
}

}  // namespace pccl
