// The loops of reduce.h: one template per element type and operator, compiled twice on x86-64 (for
// every CPU, and for those with AVX2 and F16C; memory limits both, so there is none for AVX-512).
//
// Every NaN result is the same quiet NaN: which operand's payload an addition passes on, and the
// sign of inf - inf, depend on the CPU and on the order of operands that the compiler chose, and
// recursive doubling computes the same element at all ranks.
#include "kernels/reduce.h"

#include <limits>
#include <type_traits>

#include "base/assert.h"
#include "kernels/dispatch.h"
#include "kernels/float_mode.h"
#include "kernels/half.h"

#ifdef PCCL_X86
#include <immintrin.h>
#endif

// Vectorised also where the rest of the program is built with -O2.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

// Memory is either the same for `to` and an operand or does not overlap: iterations are
// independent.
#if defined(__clang__)
#define PCCL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define PCCL_INDEPENDENT _Pragma("GCC ivdep")
#else
#define PCCL_INDEPENDENT
#endif

namespace pccl {
namespace {

// ------------------------------------------------------------------------- elements, as they are
// stored

struct F16 {
  using Value = float;
  std::uint16_t bits;
};
struct Bf16 {
  using Value = float;
  std::uint16_t bits;
};
struct F8E4m3 {
  using Value = float;
  std::uint8_t bits;
};
struct F8E5m2 {
  using Value = float;
  std::uint8_t bits;
};
struct Boolean {
  using Value = bool;
  std::uint8_t bits;
};
template <typename T>
struct Plain {
  using Value = T;
  T value;
};

template <typename T>
PCCL_INLINE T load(Plain<T> e) {
  return e.value;
}
PCCL_INLINE float load(F16 e) { return f16_to_float(e.bits); }
PCCL_INLINE float load(Bf16 e) { return bf16_to_float(e.bits); }
PCCL_INLINE float load(F8E4m3 e) { return e4m3_to_float(e.bits); }
PCCL_INLINE float load(F8E5m2 e) { return e5m2_to_float(e.bits); }
PCCL_INLINE bool load(Boolean e) { return e.bits != 0; }

template <typename T>
PCCL_INLINE void store(Plain<T>& e, T value) {
  e.value = value;
}
PCCL_INLINE void store(F16& e, float value) { e.bits = float_to_f16(value); }
PCCL_INLINE void store(Bf16& e, float value) { e.bits = float_to_bf16(value); }
PCCL_INLINE void store(F8E4m3& e, float value) { e.bits = float_to_e4m3(value); }
PCCL_INLINE void store(F8E5m2& e, float value) { e.bits = float_to_e5m2(value); }
PCCL_INLINE void store(Boolean& e, bool value) { e.bits = value ? 1 : 0; }

// --------------------------------------------------------------------------------------- operators

/// An unsigned type in which +, * and conversion back wrap: small ones would become a signed int.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

template <typename T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

template <typename T>
PCCL_INLINE T one_nan(T value) {
  return value == value ? value : kNan<T>;
}

struct Sum {
  template <typename T>
  static PCCL_INLINE T apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a | b;
    } else if constexpr (std::is_floating_point_v<T>) {
      return one_nan(a + b);
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    }
  }
};
struct Product {
  template <typename T>
  static PCCL_INLINE T apply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a & b;
    } else if constexpr (std::is_floating_point_v<T>) {
      return one_nan(a * b);
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    }
  }
};
/// The first operand where both are equal (+0 and -0).
struct Min {
  template <typename T>
  static PCCL_INLINE T apply(T a, T b) {
    const T least = b < a ? b : a;
    if constexpr (std::is_floating_point_v<T>) {
      const bool nan = (a != a) | (b != b);
      return nan ? kNan<T> : least;
    } else {
      return least;
    }
  }
};
struct Max {
  template <typename T>
  static PCCL_INLINE T apply(T a, T b) {
    const T most = a < b ? b : a;
    if constexpr (std::is_floating_point_v<T>) {
      const bool nan = (a != a) | (b != b);
      return nan ? kNan<T> : most;
    } else {
      return most;
    }
  }
};
struct BitAnd {
  template <typename T>
  static PCCL_INLINE T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <typename T>
  static PCCL_INLINE T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <typename T>
  static PCCL_INLINE T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// ------------------------------------------------------------------------------------------- loops

template <typename Element, typename Op>
struct Reduce {
  static PCCL_INLINE void loop(void* to, const void* a, const void* b, std::size_t count) {
    auto* out = static_cast<Element*>(to);
    const auto* x = static_cast<const Element*>(a);
    const auto* y = static_cast<const Element*>(b);
    PCCL_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      store(out[i], Op::template apply<typename Element::Value>(load(x[i]), load(y[i])));
    }
  }
};

/// Complex numbers are pairs. (a + bi)(c + di) as the textbook has it, without a rule for
/// infinities.
template <typename T>
struct ComplexProduct {
  static PCCL_INLINE void loop(void* to, const void* a, const void* b, std::size_t count) {
    auto* out = static_cast<T*>(to);
    const auto* x = static_cast<const T*>(a);
    const auto* y = static_cast<const T*>(b);
    PCCL_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const T re = x[2 * i] * y[2 * i] - x[2 * i + 1] * y[2 * i + 1];
      const T im = x[2 * i] * y[2 * i + 1] + x[2 * i + 1] * y[2 * i];
      out[2 * i] = one_nan(re);
      out[2 * i + 1] = one_nan(im);
    }
  }
};

template <typename Element>
struct Divide {
  static PCCL_INLINE void loop(void* data, std::size_t count, std::uint64_t by) {
    auto* values = static_cast<Element*>(data);
    using Value = typename Element::Value;
    if constexpr (std::is_floating_point_v<Value>) {
      const auto divisor = static_cast<Value>(by);
      PCCL_INDEPENDENT
      for (std::size_t i = 0; i < count; ++i) store(values[i], one_nan(load(values[i]) / divisor));
    } else if constexpr (std::is_signed_v<Value>) {
      const auto divisor = static_cast<std::int64_t>(by);
      for (std::size_t i = 0; i < count; ++i) {
        store(values[i], static_cast<Value>(load(values[i]) / divisor));
      }
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        store(values[i], static_cast<Value>(load(values[i]) / by));
      }
    }
  }
};

#ifdef PCCL_X86

bool has_avx2() { return instruction_sets().back() >= InstructionSet::avx2; }

/// Does the same as the loop over F16, with the CPU's conversions, block by block.
constexpr std::size_t kBlock = 256;

PCCL_FOR_AVX2 inline void widen(float* to, const F16* from, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
  }
  for (; i < count; ++i) to[i] = load(from[i]);
}

PCCL_FOR_AVX2 inline void narrow(F16* to, const float* from, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 wide = _mm256_loadu_ps(from + i);
    const __m128i half = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  for (; i < count; ++i) store(to[i], from[i]);
}

template <typename Op>
PCCL_FOR_AVX2 void reduce_f16(void* to, const void* a, const void* b, std::size_t count) {
  auto* out = static_cast<F16*>(to);
  const auto* x = static_cast<const F16*>(a);
  const auto* y = static_cast<const F16*>(b);
  alignas(32) float wide_x[kBlock];
  alignas(32) float wide_y[kBlock];
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t n = count - i < kBlock ? count - i : kBlock;
    widen(wide_x, x + i, n);
    widen(wide_y, y + i, n);
    for (std::size_t j = 0; j < n; ++j) wide_x[j] = Op::template apply<float>(wide_x[j], wide_y[j]);
    narrow(out + i, wide_x, n);
  }
}

PCCL_FOR_AVX2 inline void divide_f16(void* data, std::size_t count, std::uint64_t by) {
  auto* values = static_cast<F16*>(data);
  const auto divisor = static_cast<float>(by);
  alignas(32) float wide[kBlock];
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t n = count - i < kBlock ? count - i : kBlock;
    widen(wide, values + i, n);
    for (std::size_t j = 0; j < n; ++j) wide[j] = one_nan(wide[j] / divisor);
    narrow(values + i, wide, n);
  }
}

#endif

template <typename Loop, typename... Args>
void run(Args... args) {
#ifdef PCCL_X86
  if (has_avx2()) {
    run_avx2<Loop>(args...);
    return;
  }
#endif
  Loop::loop(args...);
}

template <typename Element, typename Op>
void reduce(void* to, const void* a, const void* b, std::size_t count) {
#ifdef PCCL_X86
  if constexpr (std::is_same_v<Element, F16>) {
    if (has_avx2()) {
      reduce_f16<Op>(to, a, b, count);
      return;
    }
  }
#endif
  run<Reduce<Element, Op>>(to, a, b, count);
}

// ---------------------------------------------------------------------------------------- dispatch

template <typename Element>
void reduce_arithmetic(void* to, const void* a, const void* b, std::size_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return reduce<Element, Sum>(to, a, b, count);
    case ReduceOp::product:
      return reduce<Element, Product>(to, a, b, count);
    case ReduceOp::min:
      return reduce<Element, Min>(to, a, b, count);
    case ReduceOp::max:
      return reduce<Element, Max>(to, a, b, count);
    case ReduceOp::none:
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      break;
  }
  PCCL_ASSERT(false, reduce_name(op));
}

template <typename Element>
void reduce_any(void* to, const void* a, const void* b, std::size_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::band:
      return reduce<Element, BitAnd>(to, a, b, count);
    case ReduceOp::bor:
      return reduce<Element, BitOr>(to, a, b, count);
    case ReduceOp::bxor:
      return reduce<Element, BitXor>(to, a, b, count);
    case ReduceOp::none:
    case ReduceOp::sum:
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::max:
    case ReduceOp::avg:
      return reduce_arithmetic<Element>(to, a, b, count, op);
  }
}

template <typename T>
void reduce_complex(void* to, const void* a, const void* b, std::size_t count, ReduceOp op) {
  if (op == ReduceOp::product) return run<ComplexProduct<T>>(to, a, b, count);
  reduce<Plain<T>, Sum>(to, a, b, 2 * count);
}

template <typename Element>
void divide(void* data, std::size_t count, std::uint64_t by) {
#ifdef PCCL_X86
  if constexpr (std::is_same_v<Element, F16>) {
    if (has_avx2()) return divide_f16(data, count, by);
  }
#endif
  run<Divide<Element>>(data, count, by);
}

}  // namespace

bool reducible(DType dtype, ReduceOp op) {
  if (op == ReduceOp::none) return false;
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::i16:
    case DType::u16:
    case DType::i32:
    case DType::u32:
    case DType::i64:
    case DType::u64:
      return true;
    case DType::boolean:
      return op != ReduceOp::avg;
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
      return !bitwise;
    case DType::c64:
    case DType::c128:
      return op == ReduceOp::sum || op == ReduceOp::product || op == ReduceOp::avg;
    case DType::bytes:
      break;
  }
  return false;
}

void reduce_into(void* to, const void* a, const void* b, std::size_t count, DType dtype,
                 ReduceOp op) {
  PCCL_ASSERT(reducible(dtype, op), dtype_name(dtype), reduce_name(op));
  const DefaultFloatMode mode;
  switch (dtype) {
    case DType::u8:
      return reduce_any<Plain<std::uint8_t>>(to, a, b, count, op);
    case DType::i8:
      return reduce_any<Plain<std::int8_t>>(to, a, b, count, op);
    case DType::i16:
      return reduce_any<Plain<std::int16_t>>(to, a, b, count, op);
    case DType::u16:
      return reduce_any<Plain<std::uint16_t>>(to, a, b, count, op);
    case DType::i32:
      return reduce_any<Plain<std::int32_t>>(to, a, b, count, op);
    case DType::u32:
      return reduce_any<Plain<std::uint32_t>>(to, a, b, count, op);
    case DType::i64:
      return reduce_any<Plain<std::int64_t>>(to, a, b, count, op);
    case DType::u64:
      return reduce_any<Plain<std::uint64_t>>(to, a, b, count, op);
    case DType::boolean:
      return reduce_any<Boolean>(to, a, b, count, op);
    case DType::f16:
      return reduce_arithmetic<F16>(to, a, b, count, op);
    case DType::bf16:
      return reduce_arithmetic<Bf16>(to, a, b, count, op);
    case DType::f32:
      return reduce_arithmetic<Plain<float>>(to, a, b, count, op);
    case DType::f64:
      return reduce_arithmetic<Plain<double>>(to, a, b, count, op);
    case DType::c64:
      return reduce_complex<float>(to, a, b, count, op);
    case DType::c128:
      return reduce_complex<double>(to, a, b, count, op);
    case DType::f8_e4m3:
      return reduce_arithmetic<F8E4m3>(to, a, b, count, op);
    case DType::f8_e5m2:
      return reduce_arithmetic<F8E5m2>(to, a, b, count, op);
    case DType::bytes:
      break;
  }
}

void finish_average(void* data, std::size_t count, DType dtype, std::uint64_t contributors) {
  PCCL_ASSERT(reducible(dtype, ReduceOp::avg), dtype_name(dtype));
  PCCL_ASSERT(contributors > 0);
  const DefaultFloatMode mode;
  switch (dtype) {
    case DType::u8:
      return divide<Plain<std::uint8_t>>(data, count, contributors);
    case DType::i8:
      return divide<Plain<std::int8_t>>(data, count, contributors);
    case DType::i16:
      return divide<Plain<std::int16_t>>(data, count, contributors);
    case DType::u16:
      return divide<Plain<std::uint16_t>>(data, count, contributors);
    case DType::i32:
      return divide<Plain<std::int32_t>>(data, count, contributors);
    case DType::u32:
      return divide<Plain<std::uint32_t>>(data, count, contributors);
    case DType::i64:
      return divide<Plain<std::int64_t>>(data, count, contributors);
    case DType::u64:
      return divide<Plain<std::uint64_t>>(data, count, contributors);
    case DType::f16:
      return divide<F16>(data, count, contributors);
    case DType::bf16:
      return divide<Bf16>(data, count, contributors);
    case DType::f32:
      return divide<Plain<float>>(data, count, contributors);
    case DType::f64:
      return divide<Plain<double>>(data, count, contributors);
    case DType::c64:
      return divide<Plain<float>>(data, 2 * count, contributors);
    case DType::c128:
      return divide<Plain<double>>(data, 2 * count, contributors);
    case DType::f8_e4m3:
      return divide<F8E4m3>(data, count, contributors);
    case DType::f8_e5m2:
      return divide<F8E5m2>(data, count, contributors);
    case DType::boolean:
    case DType::bytes:
      break;
  }
}

}  // namespace pccl
