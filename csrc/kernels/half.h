// Conversions between float32 and the 16-bit and 8-bit floating types, as bits, in plain C++:
// rounding is to nearest even, every NaN becomes the one quiet NaN (positive, no payload), so that
// every CPU gives the same bits. Without branches, so that a loop over them is vectorised.
//
// Denormal float16 are handled without denormal float32 in between: where those are flushed to
// zero, the result is the same.
#pragma once

#include <cstdint>
#include <cstring>

namespace pccl {

// The bodies are inlined into loops that are compiled for several instruction sets.
#if defined(__GNUC__)
#define PCCL_INLINE inline __attribute__((always_inline))
#else
#define PCCL_INLINE inline
#endif

/// std::bit_cast, but inlined also where the optimisation options of a loop are not those of the
/// file.
template <typename To, typename From>
PCCL_INLINE To cast_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

inline constexpr std::uint32_t kFloatNan = 0x7FC00000;

PCCL_INLINE float bf16_to_float(std::uint16_t bits) {
  return cast_bits<float>(static_cast<std::uint32_t>(bits) << 16);
}

PCCL_INLINE std::uint16_t float_to_bf16(float value) {
  const auto bits = cast_bits<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<std::uint16_t>(nan ? kFloatNan >> 16 : rounded);
}

PCCL_INLINE float f16_to_float(std::uint16_t bits) {
  constexpr std::uint32_t kRebias = (127U - 15U) << 23;
  constexpr std::uint32_t kSmallest = 113U << 23;  // 2^-14, the smallest normal float16
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7FFF) << 13;
  // A denormal m * 2^-24 is (1 + m * 2^-10) * 2^-14 - 2^-14, exactly.
  const float denormal = cast_bits<float>(magnitude + kSmallest) - cast_bits<float>(kSmallest);
  const std::uint32_t normal = magnitude + kRebias;
  const std::uint32_t special = magnitude > 0x0F800000 ? kFloatNan : 0x7F800000;
  std::uint32_t result = magnitude < 0x00800000 ? cast_bits<std::uint32_t>(denormal) : normal;
  result = magnitude >= 0x0F800000 ? special : result;
  const std::uint32_t signs = magnitude > 0x0F800000 ? 0 : sign;
  return cast_bits<float>(result | signs);
}

PCCL_INLINE std::uint16_t float_to_f16(float value) {
  constexpr std::uint32_t kSmallest = 113U << 23;  // 2^-14, the smallest normal float16
  constexpr std::uint32_t kTooLarge = 143U << 23;  // 2^16
  constexpr std::uint32_t kAlign = 126U << 23;     // 0.5: its last bit is worth 2^-24
  const auto bits = cast_bits<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000;
  const std::uint32_t magnitude = bits ^ sign;
  // The addition rounds to a multiple of 2^-24, the spacing of denormals.
  const std::uint32_t denormal =
      cast_bits<std::uint32_t>(cast_bits<float>(magnitude) + cast_bits<float>(kAlign)) - kAlign;
  const std::uint32_t normal =
      (magnitude - ((127U - 15U) << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  std::uint32_t result = magnitude < kSmallest ? denormal : normal;
  result = magnitude >= kTooLarge ? 0x7C00 : result;
  result |= sign >> 16;
  return static_cast<std::uint16_t>(magnitude > 0x7F800000 ? 0x7E00 : result);
}

/// An 8-bit floating type (arXiv:2209.05433): from `kTooLarge` on the result is `kLarge`.
template <int kMantissaBits, std::uint32_t kBias, std::uint32_t kTooLarge, std::uint32_t kLarge>
PCCL_INLINE std::uint8_t float_to_f8(float value) {
  constexpr int kShift = 23 - kMantissaBits;
  constexpr std::uint32_t kSmallest = (128U - kBias) << 23;        // the smallest normal number
  constexpr std::uint32_t kAlign = (128U - kBias + kShift) << 23;  // last bit: the smallest of all
  const auto bits = cast_bits<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000;
  const std::uint32_t magnitude = bits ^ sign;
  const std::uint32_t denormal =
      cast_bits<std::uint32_t>(cast_bits<float>(magnitude) + cast_bits<float>(kAlign)) - kAlign;
  const std::uint32_t half = (1U << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1);
  const std::uint32_t normal = (magnitude - ((127U - kBias) << 23) + half) >> kShift;
  std::uint32_t result = magnitude < kSmallest ? denormal : normal;
  result = magnitude >= kTooLarge ? kLarge : result;
  result |= sign >> 24;
  return static_cast<std::uint8_t>(magnitude > 0x7F800000 ? 0x7F : result);
}

/// float8_e5m2: sign, 5 bits of exponent, 2 of mantissa; the upper half of a float16.
PCCL_INLINE float e5m2_to_float(std::uint8_t bits) {
  return f16_to_float(static_cast<std::uint16_t>(bits << 8));
}
PCCL_INLINE std::uint8_t float_to_e5m2(float value) {
  return float_to_f8<2, 15, 143U << 23, 0x7C>(value);  // from 2^16 on
}

/// float8_e4m3fn: 4 bits of exponent, 3 of mantissa. There is no infinity: what is larger than
/// 448, the largest number, becomes 448, as GPUs and torch do it.
PCCL_INLINE float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & 0x7FU;
  // A denormal m * 2^-9 is (1 + m / 8) * 2^-6 - 2^-6, exactly.
  constexpr std::uint32_t kSmallest = 121U << 23;
  const float denormal =
      cast_bits<float>((magnitude << 20) + kSmallest) - cast_bits<float>(kSmallest);
  std::uint32_t result = (magnitude << 20) + (120U << 23);
  result = magnitude < 8 ? cast_bits<std::uint32_t>(denormal) : result;
  result |= (bits & 0x80U) << 24;
  return cast_bits<float>(magnitude == 0x7F ? kFloatNan : result);
}
PCCL_INLINE std::uint8_t float_to_e4m3(float value) {
  return float_to_f8<3, 7, 0x43E80000, 0x7E>(value);  // from 464 on
}

}  // namespace pccl
