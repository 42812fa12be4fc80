// Every element type and operator against a scalar reference that is written another way: in double
// for floats, in wide integers for integers.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/assert.h"
#include "base/random.h"
#include "kernels/half.h"

namespace pccl::test {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum,  ReduceOp::product, ReduceOp::min,  ReduceOp::max,
                             ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor, ReduceOp::avg};
constexpr std::size_t kCount = 1037;  // no multiple of any vector

// -------------------------------------------------------------- reference conversions of 16-bit
// floats

double wide_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa != 0 ? std::nan("") : HUGE_VAL;
  return (bits & 0x8000) != 0 ? -value : value;
}

double wide_bf16(std::uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

/// The 16-bit float next to `value`, by search: of the two neighbours the nearer one, of two that
/// are equally near the even one. Infinity stands for the next power of two. `value` is no NaN.
template <typename Widen>
std::uint16_t nearest(double value, Widen widen, std::uint16_t infinity) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  std::uint16_t low = 0;  // the largest with widen(low) <= magnitude
  std::uint16_t high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (widen(middle) <= magnitude ? low : high) = middle;
  }
  const double below = widen(low);
  const auto before = static_cast<std::uint16_t>(low - 1);
  const double above = high == infinity ? below + (below - widen(before)) : widen(high);
  std::uint16_t best = low;
  if (magnitude - below > above - magnitude) best = high;
  if (magnitude - below == above - magnitude && low % 2 == 1) best = high;
  if (std::isinf(magnitude)) best = infinity;
  return static_cast<std::uint16_t>(best | sign);
}

constexpr std::uint16_t kF16Infinity = 0x7C00;
constexpr std::uint16_t kBf16Infinity = 0x7F80;
constexpr std::uint16_t kF16Nan = 0x7E00;
constexpr std::uint16_t kBf16Nan = 0x7FC0;

std::uint16_t narrow_f16(double v) {
  return std::isnan(v) ? kF16Nan : nearest(v, wide_f16, kF16Infinity);
}
std::uint16_t narrow_bf16(double v) {
  return std::isnan(v) ? kBf16Nan : nearest(v, wide_bf16, kBf16Infinity);
}

// ------------------------------------------------------------------------------------- conversions

TEST(Half, EveryF16WidensExactlyAndComesBack) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float wide = f16_to_float(bits);
    if (std::isnan(wide_f16(bits))) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide), kFloatNan) << i;
      ASSERT_EQ(float_to_f16(wide), kF16Nan);
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), wide_f16(bits)) << i;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << i;
    ASSERT_EQ(float_to_f16(wide), bits);
  }
}

TEST(Half, EveryBf16WidensExactlyAndComesBack) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float wide = bf16_to_float(bits);
    ASSERT_EQ(float_to_bf16(wide), std::isnan(wide) ? kBf16Nan : bits) << i;
  }
}

TEST(Half, RoundsToNearestEvenAtBetweenAndBesideEveryPairOfNeighbours) {
  const auto check = [](float value) {
    ASSERT_EQ(float_to_f16(value), narrow_f16(static_cast<double>(value))) << value;
    ASSERT_EQ(float_to_bf16(value), narrow_bf16(static_cast<double>(value))) << value;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t i = 0; i < 65535; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const auto next = static_cast<std::uint16_t>(i + 1);
    for (const auto& [a, b] :
         {std::pair{wide_f16(bits), wide_f16(next)}, std::pair{wide_bf16(bits), wide_bf16(next)}}) {
      const auto middle = static_cast<float>(a / 2 + b / 2);
      check(middle);
      check(std::nextafter(middle, kInfinity));
      check(std::nextafter(middle, -kInfinity));
      if (HasFatalFailure()) return;
    }
  }
  for (const float value : {65504.0F, 65519.0F, 65520.0F, 65536.0F, 1e30F, 1e-30F, 0.0F, -0.0F,
                            5.9604645e-8F, 2.9802322e-8F, 2.9802326e-8F, 3.3895314e38F, kInfinity,
                            -kInfinity, std::numeric_limits<float>::denorm_min(), std::nanf("")}) {
    check(value);
  }
  Random random(3);
  for (int i = 0; i < 200'000; ++i) {
    check(std::bit_cast<float>(static_cast<std::uint32_t>(random.next())));
    if (HasFatalFailure()) return;
  }
}

// ----------------------------------------------------------------------------------------
// reductions

template <typename T>
T apply_wide(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
      if (a != a || b != b) return a + b;
      return b < a ? b : a;
    case ReduceOp::max:
      if (a != a || b != b) return a + b;
      return a < b ? b : a;
    default:
      return a;
  }
}

template <typename T>
T reference_integer(ReduceOp op, T a, T b) {
  using Wide = unsigned __int128;
  switch (op) {
    case ReduceOp::band:
      return static_cast<T>(a & b);
    case ReduceOp::bor:
      return static_cast<T>(a | b);
    case ReduceOp::bxor:
      return static_cast<T>(a ^ b);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    default:
      return static_cast<T>(apply_wide(op, static_cast<Wide>(a), static_cast<Wide>(b)));
  }
}

/// Calls `reduce_into` in each way in which `to` may be an operand, at an odd place in memory.
template <typename T, typename Equal>
void check_reduction(DType dtype, ReduceOp op, const std::vector<T>& a, const std::vector<T>& b,
                     const std::vector<T>& wanted, Equal equal) {
  const std::size_t n = wanted.size();
  for (const int where : {0, 1, 2}) {
    for (const std::size_t shift : {0U, 1U, 3U}) {
      std::vector<T> x(a);
      std::vector<T> y(b);
      std::vector<T> z(n);
      std::vector<T>& to = where == 0 ? z : where == 1 ? x : y;
      const std::size_t count = n - shift;
      reduce_into(to.data() + shift, x.data() + shift, y.data() + shift, count, dtype, op);
      for (std::size_t i = shift; i < n; ++i) {
        ASSERT_TRUE(equal(to[i], wanted[i]))
            << dtype_name(dtype) << " " << reduce_name(op) << " at " << i << " where " << where
            << " shift " << shift;
      }
    }
  }
}

template <typename T>
void check_integers(DType dtype) {
  Random random(7);
  std::vector<T> a(kCount), b(kCount), wanted(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<T>(random.next());
    b[i] = static_cast<T>(random.next());
  }
  a[0] = std::numeric_limits<T>::max();
  b[0] = std::numeric_limits<T>::max();
  a[1] = std::numeric_limits<T>::min();
  b[1] = static_cast<T>(-1);
  for (const ReduceOp op : kOps) {
    ASSERT_TRUE(reducible(dtype, op));
    for (std::size_t i = 0; i < kCount; ++i) wanted[i] = reference_integer(op, a[i], b[i]);
    check_reduction(dtype, op, a, b, wanted, std::equal_to<T>());
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Reduce, IntegersAreExactAndWrap) {
  check_integers<std::uint8_t>(DType::u8);
  check_integers<std::int8_t>(DType::i8);
  check_integers<std::int16_t>(DType::i16);
  check_integers<std::uint16_t>(DType::u16);
  check_integers<std::int32_t>(DType::i32);
  check_integers<std::uint32_t>(DType::u32);
  check_integers<std::int64_t>(DType::i64);
  check_integers<std::uint64_t>(DType::u64);
}

/// Values that break reductions, in all pairs, then random bits.
template <typename T, typename Bits>
void fill_floats(std::vector<T>& a, std::vector<T>& b) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T{0},
                       -T{0},
                       T{1},
                       T{-1},
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::quiet_NaN(),
                       -Limits::quiet_NaN(),
                       Limits::signaling_NaN(),
                       Limits::denorm_min(),
                       -Limits::denorm_min(),
                       Limits::min(),
                       Limits::max(),
                       Limits::lowest(),
                       Limits::epsilon(),
                       std::bit_cast<T>(static_cast<Bits>(~Bits{0} >> 1))};
  for (const T x : special) {
    for (const T y : special) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  Random random(11);
  while (a.size() < kCount) {
    a.push_back(std::bit_cast<T>(static_cast<Bits>(random.next())));
    b.push_back(std::bit_cast<T>(static_cast<Bits>(random.next())));
  }
}

template <typename T, typename Bits>
void check_floats(DType dtype, Bits nan) {
  std::vector<T> a, b, wanted(kCount);
  fill_floats<T, Bits>(a, b);
  const auto same_bits = [](T x, T y) { return std::bit_cast<Bits>(x) == std::bit_cast<Bits>(y); };
  for (const ReduceOp op :
       {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::avg}) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const volatile T x = a[i];  // computed at run time, one by one
      const volatile T y = b[i];
      const T r = apply_wide<T>(op, x, y);
      wanted[i] = r != r ? std::bit_cast<T>(nan) : r;
    }
    check_reduction(dtype, op, a, b, wanted, same_bits);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Reduce, FloatsAreRoundedOnceAndEveryNanIsTheSameNan) {
  check_floats<float, std::uint32_t>(DType::f32, 0x7FC00000U);
  check_floats<double, std::uint64_t>(DType::f64, 0x7FF8000000000000ULL);
}

TEST(Reduce, SixteenBitFloatsAreReducedInFloat32AndRoundedOnce) {
  Random random(5);
  std::vector<std::uint16_t> a, b;
  const std::uint16_t special[] = {0,      0x8000, 1,      0x8001, 0x3FF,  0x400,  0x3C00,
                                   0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0xFE00, 0x7F80,
                                   0xFF80, 0x7F81, 0x7F7F, 0x0080, 0x3F80};
  for (const std::uint16_t x : special) {
    for (const std::uint16_t y : special) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  while (a.size() < 40'037) {
    a.push_back(static_cast<std::uint16_t>(random.next()));
    b.push_back(static_cast<std::uint16_t>(random.next()));
  }
  std::vector<std::uint16_t> wanted(a.size());
  for (const bool f16 : {true, false}) {
    const auto wide = f16 ? wide_f16 : wide_bf16;
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::avg}) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        const float r =
            apply_wide(op, static_cast<float>(wide(a[i])), static_cast<float>(wide(b[i])));
        wanted[i] = f16 ? narrow_f16(static_cast<double>(r)) : narrow_bf16(static_cast<double>(r));
      }
      check_reduction(f16 ? DType::f16 : DType::bf16, op, a, b, wanted,
                      std::equal_to<std::uint16_t>());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Reduce, TheTailOfASpanGivesTheSameBitsAsItsMiddle) {
  // Vectors take the middle, scalar code the tail: an element may fall to either.
  Random random(9);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const std::size_t width = dtype_bytes(dtype);
    std::vector<std::uint8_t> a(100 * width), b(a.size()), all(a.size()), single(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<std::uint8_t>(random.next());
      b[i] = static_cast<std::uint8_t>(random.next());
    }
    std::memset(a.data(), 0xFF, 20 * width);  // NaN
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      reduce_into(all.data(), a.data(), b.data(), 100, dtype, op);
      for (std::size_t i = 0; i < 100; ++i) {
        reduce_into(single.data() + i * width, a.data() + i * width, b.data() + i * width, 1, dtype,
                    op);
      }
      EXPECT_EQ(all, single) << dtype_name(dtype) << " " << reduce_name(op);
    }
  }
}

TEST(Reduce, BoolIsLogicalAndGivesZeroOrOne) {
  std::vector<std::uint8_t> a, b, wanted;
  for (const int x : {0, 1, 2, 255}) {
    for (const int y : {0, 1, 2, 128}) {
      a.push_back(static_cast<std::uint8_t>(x));
      b.push_back(static_cast<std::uint8_t>(y));
    }
  }
  for (const ReduceOp op : kOps) {
    if (op == ReduceOp::avg) continue;
    wanted.clear();
    for (std::size_t i = 0; i < a.size(); ++i) {
      const bool x = a[i] != 0;
      const bool y = b[i] != 0;
      const bool both = op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::band;
      wanted.push_back(op == ReduceOp::bxor ? x != y : both ? x && y : x || y);
    }
    check_reduction(DType::boolean, op, a, b, wanted, std::equal_to<std::uint8_t>());
  }
}

TEST(Reduce, ComplexNumbersAreAddedAndMultiplied) {
  const std::vector<float> a{1, 2, 3, -4, 0.5F, 0};
  const std::vector<float> b{5, -6, 7, 8, 0, 2};
  std::vector<float> to(6);
  reduce_into(to.data(), a.data(), b.data(), 3, DType::c64, ReduceOp::sum);
  EXPECT_EQ(to, (std::vector<float>{6, -4, 10, 4, 0.5F, 2}));
  reduce_into(to.data(), a.data(), b.data(), 3, DType::c64, ReduceOp::product);
  EXPECT_EQ(to, (std::vector<float>{17, 4, 53, -4, 0, 1}));
  const std::vector<double> c{1, 2};
  std::vector<double> twice(2);
  reduce_into(twice.data(), c.data(), c.data(), 1, DType::c128, ReduceOp::product);
  EXPECT_EQ(twice, (std::vector<double>{-3, 4}));
  finish_average(twice.data(), 1, DType::c128, 2);
  EXPECT_EQ(twice, (std::vector<double>{-1.5, 2}));
}

TEST(Reduce, NothingIsTouchedWhereThereIsNothing) {
  const std::vector<std::uint8_t> before(64, 0xA5);
  for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::c128}) {
    std::vector<std::uint8_t> to = before;
    std::vector<std::uint8_t> from(64, 0x11);
    reduce_into(to.data(), from.data(), from.data(), 0, dtype, ReduceOp::sum);
    finish_average(to.data(), 0, dtype, 3);
    EXPECT_EQ(to, before) << dtype_name(dtype);
    reduce_into(nullptr, nullptr, nullptr, 0, dtype, ReduceOp::sum);  // nor is it read
    finish_average(nullptr, 0, dtype, 3);
  }
}

TEST(Reduce, WhatHasNoMeaningIsNotReducible) {
  for (const ReduceOp op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
    for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2, DType::f16, DType::bf16, DType::f32,
                              DType::f64, DType::c64, DType::c128}) {
      EXPECT_FALSE(reducible(dtype, op));
    }
  }
  for (const ReduceOp op : kOps) EXPECT_FALSE(reducible(DType::bytes, op));
  EXPECT_FALSE(reducible(DType::boolean, ReduceOp::avg));
  EXPECT_FALSE(reducible(DType::c64, ReduceOp::max));
  EXPECT_TRUE(reducible(DType::c64, ReduceOp::product));
  EXPECT_FALSE(reducible(DType::f32, ReduceOp::none));
  float x = 1;
  EXPECT_THROW(reduce_into(&x, &x, &x, 1, DType::f32, ReduceOp::band), BrokenInvariant);
}

// -------------------------------------------------------------------------------------------
// averages

template <typename T>
void check_average_of_integers(DType dtype) {
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{300}}) {
    std::vector<T> values{0,
                          1,
                          7,
                          100,
                          std::numeric_limits<T>::max(),
                          std::numeric_limits<T>::min(),
                          static_cast<T>(-7)};
    std::vector<T> wanted;
    for (const T v : values) {
      wanted.push_back(static_cast<T>(static_cast<__int128>(v) / static_cast<__int128>(n)));
    }
    finish_average(values.data(), values.size(), dtype, n);
    EXPECT_EQ(values, wanted) << dtype_name(dtype) << " by " << n;
  }
}

TEST(FinishAverage, IntegersTruncateTowardZero) {
  check_average_of_integers<std::uint8_t>(DType::u8);
  check_average_of_integers<std::int8_t>(DType::i8);
  check_average_of_integers<std::int16_t>(DType::i16);
  check_average_of_integers<std::uint16_t>(DType::u16);
  check_average_of_integers<std::int32_t>(DType::i32);
  check_average_of_integers<std::uint32_t>(DType::u32);
  check_average_of_integers<std::int64_t>(DType::i64);
  check_average_of_integers<std::uint64_t>(DType::u64);
}

TEST(FinishAverage, FloatsAreDividedInTheirOwnPrecision) {
  std::vector<float> f{1, 2, -10, 0.1F};
  finish_average(f.data(), f.size(), DType::f32, 3);
  EXPECT_EQ(f, (std::vector<float>{1 / 3.0F, 2 / 3.0F, -10 / 3.0F, 0.1F / 3}));
  std::vector<double> d{1, -10};
  finish_average(d.data(), d.size(), DType::f64, 3);
  EXPECT_EQ(d, (std::vector<double>{1 / 3.0, -10 / 3.0}));
}

TEST(FinishAverage, SixteenBitFloatsAreDividedInFloat32) {
  for (const bool f16 : {true, false}) {
    const auto wide = f16 ? wide_f16 : wide_bf16;
    std::vector<std::uint16_t> values, wanted;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      values.push_back(static_cast<std::uint16_t>(i));
      const float r = static_cast<float>(wide(values.back())) / 3.0F;
      wanted.push_back(f16 ? narrow_f16(static_cast<double>(r))
                           : narrow_bf16(static_cast<double>(r)));
    }
    finish_average(values.data(), values.size(), f16 ? DType::f16 : DType::bf16, 3);
    EXPECT_EQ(values, wanted);
  }
}

TEST(FinishAverage, OfBoolThereIsNone) {
  std::uint8_t value = 1;
  EXPECT_THROW(finish_average(&value, 1, DType::boolean, 2), BrokenInvariant);
}

}  // namespace
}  // namespace pccl::test
