// The loops of quantise.h. A block is its parameters, then its codes:
//
//   int8_minmax      smallest value, step; a byte for each value: smallest + code * step
//   int8_zero_point  step, code of zero; a byte for each value: (code - zero) * step
//   int4_minmax      as int8_minmax, two codes in a byte, the first in its low half
//   f16, bf16        no parameters; the 16-bit floats
//   f8_*             step; a byte for each value: float8 * step
//
// Parameters and 16-bit floats are little-endian and need no alignment.
#include "kernels/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/assert.h"
#include "kernels/float_mode.h"
#include "kernels/half.h"

// Vectorised also where the rest of the program is built with -O2.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace pccl {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kLanes = 16;
constexpr float kFloatMax = 3.40282347e38F;

template <typename T>
PCCL_INLINE void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}
template <typename T>
PCCL_INLINE T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// To the nearest integer, ties to even, for 0 <= value < 2^22: adding 1.5 * 2^23 leaves no bit for
/// a fraction. Every CPU does it so, and every instruction set has it.
PCCL_INLINE float to_integer(float value) { return (value + 12582912.0F) - 12582912.0F; }

struct Limits {
  float low = 0;
  float high = 0;
  bool finite = true;
};

/// In lanes, whose number does not depend on the CPU.
PCCL_INLINE Limits limits_of(const float* x, std::size_t count) {
  float low[kLanes];
  float high[kLanes];
  std::uint32_t special[kLanes];
  for (std::size_t j = 0; j < kLanes; ++j) {
    low[j] = kFloatMax;
    high[j] = -kFloatMax;
    special[j] = 0;
  }
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const float value = x[i + j];
      low[j] = value < low[j] ? value : low[j];
      high[j] = value > high[j] ? value : high[j];
      special[j] |= static_cast<std::uint32_t>((cast_bits<std::uint32_t>(value) & 0x7F800000U) ==
                                               0x7F800000U);
    }
  }
  for (std::size_t j = 0; i + j < count; ++j) {
    const float value = x[i + j];
    low[j] = value < low[j] ? value : low[j];
    high[j] = value > high[j] ? value : high[j];
    special[j] |=
        static_cast<std::uint32_t>((cast_bits<std::uint32_t>(value) & 0x7F800000U) == 0x7F800000U);
  }
  Limits all{low[0], high[0], special[0] == 0};
  for (std::size_t j = 1; j < kLanes; ++j) {
    all.low = low[j] < all.low ? low[j] : all.low;
    all.high = high[j] > all.high ? high[j] : all.high;
    all.finite = all.finite && special[j] == 0;
  }
  return all;
}

/// `levels` steps over `range`; none where a step would be denormal.
struct Steps {
  float step = 0;
  float per_unit = 0;  // codes in 1.0
};
PCCL_INLINE Steps steps_of(float range, float levels) {
  constexpr float kSmallest = 1.17549435e-38F;
  const float step = range / levels;
  if (!(step >= kSmallest)) return {};
  return {step, levels / range};
}

// ------------------------------------------------------------------------- the kinds of blocks

template <int kLevels>
struct MinMax {
  static constexpr std::size_t kHeader = 8;
  PCCL_INLINE static void encode(std::byte* header, std::uint8_t* codes, const float* x,
                                 std::size_t count) {
    const Limits limits = limits_of(x, count);
    const float range = limits.high - limits.low;
    const bool usable = limits.finite && range <= kFloatMax;
    const Steps steps = usable ? steps_of(range, kLevels) : Steps{};
    put(header, usable ? limits.low : cast_bits<float>(kFloatNan));
    put(header + 4, steps.step);
    if (!usable) {
      std::memset(codes, 0, count);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const float code = to_integer((x[i] - limits.low) * steps.per_unit);
      codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code));
    }
  }
  PCCL_INLINE static void decode(float* values, const std::byte* header, const std::uint8_t* codes,
                                 std::size_t count) {
    const auto low = get<float>(header);
    const auto step = get<float>(header + 4);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = low + static_cast<float>(static_cast<std::int32_t>(codes[i])) * step;
    }
  }
};

struct ZeroPoint {
  static constexpr std::size_t kHeader = 8;
  PCCL_INLINE static void encode(std::byte* header, std::uint8_t* codes, const float* x,
                                 std::size_t count) {
    const Limits limits = limits_of(x, count);
    const float low = limits.low < 0 ? limits.low : 0;
    const float high = limits.high > 0 ? limits.high : 0;
    const float range = high - low;
    const bool usable = limits.finite && range <= kFloatMax;
    const Steps steps = usable ? steps_of(range, 255) : Steps{};
    // An infinity times zero would be a NaN, whose sign depends on the CPU.
    const float zero = usable ? to_integer(-low * steps.per_unit) : 0;
    put(header, usable ? steps.step : cast_bits<float>(kFloatNan));
    put(header + 4, zero);
    if (!usable) {
      std::memset(codes, 0, count);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      float code = to_integer(x[i] * steps.per_unit + zero);
      code = code > 255 ? 255 : code;
      codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code));
    }
  }
  PCCL_INLINE static void decode(float* values, const std::byte* header, const std::uint8_t* codes,
                                 std::size_t count) {
    const auto step = get<float>(header);
    const auto zero = get<float>(header + 4);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = (static_cast<float>(static_cast<std::int32_t>(codes[i])) - zero) * step;
    }
  }
};

template <std::uint8_t (*kNarrow)(float), float (*kWiden)(std::uint8_t), int kLargest>
struct Float8 {
  static constexpr std::size_t kHeader = 4;
  PCCL_INLINE static void encode(std::byte* header, std::uint8_t* codes, const float* x,
                                 std::size_t count) {
    const Limits limits = limits_of(x, count);
    const float most = -limits.low > limits.high ? -limits.low : limits.high;
    const Steps steps = limits.finite ? steps_of(most, kLargest) : Steps{};
    put(header, limits.finite ? steps.step : cast_bits<float>(kFloatNan));
    for (std::size_t i = 0; i < count; ++i) codes[i] = kNarrow(x[i] * steps.per_unit);
  }
  PCCL_INLINE static void decode(float* values, const std::byte* header, const std::uint8_t* codes,
                                 std::size_t count) {
    const auto step = get<float>(header);
    for (std::size_t i = 0; i < count; ++i) values[i] = kWiden(codes[i]) * step;
  }
};

/// Bytes of the codes of a block.
template <typename Kind>
PCCL_INLINE constexpr std::size_t code_bytes(std::size_t count) {
  return std::is_same_v<Kind, MinMax<15>> ? (count + 1) / 2 : count;
}

PCCL_INLINE void pack(std::byte* to, const std::uint8_t* codes, std::size_t count) {
  for (std::size_t i = 0; i < (count + 1) / 2; ++i) {
    to[i] = static_cast<std::byte>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
}
PCCL_INLINE void unpack(std::uint8_t* codes, const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < (count + 1) / 2; ++i) {
    const auto both = static_cast<std::uint8_t>(from[i]);
    codes[2 * i] = both & 15U;
    codes[2 * i + 1] = static_cast<std::uint8_t>(both >> 4);
  }
}

// ------------------------------------------------------------------------- over all blocks

PCCL_INLINE std::size_t block_at(std::size_t i, std::size_t count) {
  return count - i < kQuantisedBlock ? count - i : kQuantisedBlock;
}

template <typename Kind>
struct Encode {
  PCCL_INLINE static void loop(std::byte* to, const float* from, std::size_t count) {
    std::uint8_t codes[kQuantisedBlock];
    for (std::size_t i = 0; i < count; i += kQuantisedBlock) {
      const std::size_t n = block_at(i, count);
      if (n % 2 == 1) codes[n] = 0;
      Kind::encode(to, codes, from + i, n);
      to += Kind::kHeader;
      if constexpr (std::is_same_v<Kind, MinMax<15>>) {
        pack(to, codes, n);
      } else {
        std::memcpy(to, codes, n);
      }
      to += code_bytes<Kind>(n);
    }
  }
};

/// Which NaN an addition gives depends on the CPU and on the compiler's order of operands.
PCCL_INLINE float sum_of(float a, float b) {
  const float sum = a + b;
  return sum == sum ? sum : cast_bits<float>(kFloatNan);
}

template <bool kAdd>
PCCL_INLINE void deliver(float* to, const float* values, std::size_t count) {
  if constexpr (kAdd) {
    for (std::size_t i = 0; i < count; ++i) to[i] = sum_of(to[i], values[i]);
  } else {
    std::memcpy(to, values, count * sizeof(float));
  }
}

template <typename Kind, bool kAdd>
struct Decode {
  PCCL_INLINE static void loop(float* to, const std::byte* from, std::size_t count) {
    std::uint8_t codes[kQuantisedBlock];
    float values[kQuantisedBlock];
    for (std::size_t i = 0; i < count; i += kQuantisedBlock) {
      const std::size_t n = block_at(i, count);
      const std::byte* header = from;
      from += Kind::kHeader;
      if constexpr (std::is_same_v<Kind, MinMax<15>>) {
        unpack(codes, from, n);
      } else {
        std::memcpy(codes, from, n);
      }
      from += code_bytes<Kind>(n);
      Kind::decode(values, header, codes, n);
      deliver<kAdd>(to + i, values, n);
    }
  }
};

template <std::uint16_t (*kNarrow)(float)>
struct Encode16 {
  PCCL_INLINE static void loop(std::byte* to, const float* from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) put(to + 2 * i, kNarrow(from[i]));
  }
};

template <float (*kWiden)(std::uint16_t), bool kAdd>
struct Decode16 {
  PCCL_INLINE static void loop(float* to, const std::byte* from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = kWiden(get<std::uint16_t>(from + 2 * i));
      to[i] = kAdd ? sum_of(to[i], value) : value;
    }
  }
};

using E4m3 = Float8<float_to_e4m3, e4m3_to_float, 448>;
using E5m2 = Float8<float_to_e5m2, e5m2_to_float, 57344>;

static_assert(MinMax<255>::kHeader == quantised_header_bytes(Quantisation::int8_minmax));
static_assert(ZeroPoint::kHeader == quantised_header_bytes(Quantisation::int8_zero_point));
static_assert(MinMax<15>::kHeader == quantised_header_bytes(Quantisation::int4_minmax));
static_assert(E4m3::kHeader == quantised_header_bytes(Quantisation::f8_e4m3));
static_assert(E5m2::kHeader == quantised_header_bytes(Quantisation::f8_e5m2));

template <bool kAdd>
void decode(float* to, const std::byte* from, std::size_t count, Quantisation how,
            InstructionSet set) {
  const DefaultFloatMode mode;
  switch (how) {
    case Quantisation::none:
      break;
    case Quantisation::int8_minmax:
      return run_loop<Decode<MinMax<255>, kAdd>>(set, to, from, count);
    case Quantisation::int8_zero_point:
      return run_loop<Decode<ZeroPoint, kAdd>>(set, to, from, count);
    case Quantisation::int4_minmax:
      return run_loop<Decode<MinMax<15>, kAdd>>(set, to, from, count);
    case Quantisation::f16:
      return run_loop<Decode16<f16_to_float, kAdd>>(set, to, from, count);
    case Quantisation::bf16:
      return run_loop<Decode16<bf16_to_float, kAdd>>(set, to, from, count);
    case Quantisation::f8_e4m3:
      return run_loop<Decode<E4m3, kAdd>>(set, to, from, count);
    case Quantisation::f8_e5m2:
      return run_loop<Decode<E5m2, kAdd>>(set, to, from, count);
  }
  PCCL_ASSERT(false, "no way to quantise:", static_cast<int>(how));
}

}  // namespace

void quantise(std::byte* to, const float* from, std::size_t count, Quantisation how,
              InstructionSet set) {
  const DefaultFloatMode mode;
  switch (how) {
    case Quantisation::none:
      break;
    case Quantisation::int8_minmax:
      return run_loop<Encode<MinMax<255>>>(set, to, from, count);
    case Quantisation::int8_zero_point:
      return run_loop<Encode<ZeroPoint>>(set, to, from, count);
    case Quantisation::int4_minmax:
      return run_loop<Encode<MinMax<15>>>(set, to, from, count);
    case Quantisation::f16:
      return run_loop<Encode16<float_to_f16>>(set, to, from, count);
    case Quantisation::bf16:
      return run_loop<Encode16<float_to_bf16>>(set, to, from, count);
    case Quantisation::f8_e4m3:
      return run_loop<Encode<E4m3>>(set, to, from, count);
    case Quantisation::f8_e5m2:
      return run_loop<Encode<E5m2>>(set, to, from, count);
  }
  PCCL_ASSERT(false, "no way to quantise:", static_cast<int>(how));
}

void dequantise(float* to, const std::byte* from, std::size_t count, Quantisation how,
                InstructionSet set) {
  decode<false>(to, from, count, how, set);
}

void add_dequantised(float* to, const std::byte* from, std::size_t count, Quantisation how,
                     InstructionSet set) {
  decode<true>(to, from, count, how, set);
}

void add_error(float* to, const float* from, const std::byte* codes, std::size_t count,
               Quantisation how) {
  std::array<float, kQuantisedBlock> decoded;
  for (std::size_t begin = 0; begin < count; begin += kQuantisedBlock) {
    const std::size_t size = std::min(kQuantisedBlock, count - begin);
    dequantise(decoded.data(), codes + quantised_bytes(begin, how), size, how);
    for (std::size_t i = 0; i < size; ++i) to[begin + i] += from[begin + i] - decoded[i];
  }
}

}  // namespace pccl
