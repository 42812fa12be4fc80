// Every kind of quantisation: its error, its special values, and the same bits from every
// instruction set of this CPU.
#include "kernels/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"

namespace pccl::quantise_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr std::size_t kQuantisedCount = 3 * kQuantisedBlock + 77;  // no multiple of any vector

struct Kind {
  Quantisation how;
  const char* name;
};
constexpr Kind kKinds[] = {{Quantisation::int8_minmax, "int8_minmax"},
                           {Quantisation::int8_zero_point, "int8_zero_point"},
                           {Quantisation::int4_minmax, "int4_minmax"},
                           {Quantisation::f16, "f16"},
                           {Quantisation::bf16, "bf16"},
                           {Quantisation::f8_e4m3, "f8_e4m3"},
                           {Quantisation::f8_e5m2, "f8_e5m2"}};

double uniform(Random& random) {
  return static_cast<double>(random.next() >> 11) / 9007199254740992.0;
}

/// Normal values of that deviation, or heavy-tailed ones: a few are thousands of deviations away.
std::vector<float> values(Random& random, double deviation, bool heavy,
                          std::size_t count = kQuantisedCount) {
  std::vector<float> out(count);
  for (float& value : out) {
    const double normal = std::sqrt(-2 * std::log(1 - uniform(random))) *
                          std::cos(2 * 3.14159265358979 * uniform(random));
    const double tail = heavy ? std::pow(1 - uniform(random), -0.7) : 1;
    value = static_cast<float>(deviation * normal * tail);
  }
  return out;
}

std::vector<std::byte> packed(const std::vector<float>& x, Quantisation how,
                              InstructionSet set = InstructionSet::plain) {
  // What lies behind the last byte stays as it is.
  const std::size_t bytes = quantised_bytes(x.size(), how);
  std::vector<std::byte> out(bytes + 1, std::byte{0xA5});
  quantise(out.data(), x.data(), x.size(), how, set);
  EXPECT_EQ(out.back(), std::byte{0xA5});
  out.resize(bytes);
  return out;
}

std::vector<float> back(const std::vector<float>& x, Quantisation how) {
  std::vector<float> out(x.size() + 1, 7);
  dequantise(out.data(), packed(x, how).data(), x.size(), how);
  EXPECT_EQ(out.back(), 7);
  out.resize(x.size());
  return out;
}

/// The bound that quantise.h names, for the value `i` of `x`.
double bound(const std::vector<float>& x, std::size_t i, Quantisation how) {
  const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i - i % kQuantisedBlock);
  const auto rest = std::min<std::ptrdiff_t>(kQuantisedBlock, x.end() - begin);
  const auto [low, high] = std::minmax_element(begin, begin + rest);
  const double range = static_cast<double>(*high) - static_cast<double>(*low);
  const double to_zero =
      std::max(0.0, static_cast<double>(*high)) - std::min(0.0, static_cast<double>(*low));
  const double most =
      std::max(std::abs(static_cast<double>(*high)), std::abs(static_cast<double>(*low)));
  const double magnitude = std::abs(static_cast<double>(x[i]));
  const double rounding = most * 1e-6;
  switch (how) {
    case Quantisation::none:
      break;
    case Quantisation::int8_minmax:
      return range / 510 + rounding;
    case Quantisation::int8_zero_point:
      return to_zero / 255 + rounding;
    case Quantisation::int4_minmax:
      return range / 30 + rounding;
    case Quantisation::f16:
      return std::max(magnitude / 2048, std::ldexp(1.0, -25));
    case Quantisation::bf16:
      return magnitude / 256;
    case Quantisation::f8_e4m3:
      return std::max(magnitude / 16, most / 262144) + rounding / 1000;
    case Quantisation::f8_e5m2:
      return std::max(magnitude / 8, most / 4294967296.0) + magnitude * 1e-6;
  }
  return 0;
}

class Quantise : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Of, Quantise, testing::ValuesIn(kKinds),
                         [](const auto& made) { return std::string(made.param.name); });

TEST_P(Quantise, no_value_is_further_off_than_the_bound) {
  const Quantisation how = GetParam().how;
  Random random(7);
  for (const double deviation : {1e-3, 1.0, 50.0}) {
    for (const bool heavy : {false, true}) {
      const std::vector<float> x = values(random, deviation, heavy);
      const std::vector<float> y = back(x, how);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double off = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
        ASSERT_LE(off, bound(x, i, how)) << x[i] << " became " << y[i];
      }
    }
  }
}

TEST_P(Quantise, every_instruction_set_gives_the_same_bits) {
  const Quantisation how = GetParam().how;
  Random random(8);
  std::vector<std::vector<float>> inputs = {values(random, 1, true), values(random, 1e-30, false),
                                            values(random, 1e36, true)};
  inputs.push_back(values(random, 1, false));
  for (const std::size_t at : {3U, 300U, 301U}) inputs.back()[at] = at == 3 ? kInf : -kNan;
  std::vector<float> bits(kQuantisedCount);
  for (float& value : bits) {
    const auto any = static_cast<std::uint32_t>(random.next());
    std::memcpy(&value, &any, sizeof value);
  }
  inputs.push_back(bits);
  for (const std::vector<float>& x : inputs) {
    const std::vector<std::byte> code = packed(x, how);
    std::vector<float> sum = values(random, 1, false);
    const std::vector<float> before = sum;
    add_dequantised(sum.data(), code.data(), x.size(), how, InstructionSet::plain);
    for (const InstructionSet set : instruction_sets()) {
      EXPECT_EQ(packed(x, how, set), code);
      std::vector<float> other = before;
      add_dequantised(other.data(), code.data(), x.size(), how, set);
      EXPECT_EQ(std::memcmp(other.data(), sum.data(), sum.size() * sizeof(float)), 0);
    }
  }
}

TEST_P(Quantise, values_that_are_all_the_same_stay_what_they_are) {
  const Quantisation how = GetParam().how;
  for (const float value : {0.0F, 1.0F, -2.5F}) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{2}, std::size_t{255}, kQuantisedCount}) {
      for (const float y : back(std::vector<float>(count, value), how)) {
        EXPECT_NEAR(y, value, 1e-6);
      }
    }
  }
}

TEST_P(Quantise, what_is_added_is_what_is_dequantised) {
  const Quantisation how = GetParam().how;
  Random random(9);
  const std::vector<float> x = values(random, 1, true);
  const std::vector<float> y = back(x, how);
  std::vector<float> sum = values(random, 3, false);
  std::vector<float> expected = sum;
  for (std::size_t i = 0; i < sum.size(); ++i) expected[i] += y[i];
  add_dequantised(sum.data(), packed(x, how).data(), x.size(), how);
  EXPECT_EQ(sum, expected);
}

TEST_P(Quantise, the_error_that_is_added_is_what_codes_take) {
  const Quantisation how = GetParam().how;
  Random random(11);
  const std::vector<float> x = values(random, 1, true);
  const std::vector<float> y = back(x, how);
  std::vector<float> error = values(random, 3, false);
  std::vector<float> expected = error;
  for (std::size_t i = 0; i < x.size(); ++i) expected[i] += x[i] - y[i];
  add_error(error.data(), x.data(), packed(x, how).data(), x.size(), how);
  EXPECT_EQ(error, expected);
}

TEST_P(Quantise, a_value_that_is_no_number_shows_and_spoils_its_block_at_most) {
  const Quantisation how = GetParam().how;
  Random random(10);
  for (const float bad : {kNan, kInf, -kInf}) {
    std::vector<float> x = values(random, 1, false);
    x[kQuantisedBlock + 5] = bad;
    const std::vector<float> y = back(x, how);
    EXPECT_FALSE(std::isfinite(y[kQuantisedBlock + 5]));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(std::isfinite(y[i]) || i / kQuantisedBlock == 1) << i;
    }
  }
}

TEST_P(Quantise, one_huge_value_leaves_the_other_blocks_alone) {
  const Quantisation how = GetParam().how;
  Random random(11);
  std::vector<float> x = values(random, 1, false);
  const std::vector<float> without = back(x, how);
  x[kQuantisedBlock + 5] = 1e38F;
  const std::vector<float> y = back(x, how);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(y[i] == without[i] || i / kQuantisedBlock == 1) << i;
  }
}

TEST(QuantiseInts, values_too_far_apart_become_nan_and_not_something_else) {
  for (const Quantisation how :
       {Quantisation::int8_minmax, Quantisation::int8_zero_point, Quantisation::int4_minmax}) {
    for (const float y : back({-kMax, 1, kMax}, how)) EXPECT_TRUE(std::isnan(y));
  }
}

TEST(QuantiseInts, zero_stays_zero_with_a_zero_point) {
  Random random(12);
  for (const double shift : {0.0, 5.0, -5.0}) {
    std::vector<float> x = values(random, 1, true);
    for (float& value : x) value += static_cast<float>(shift);
    for (std::size_t i = 0; i < x.size(); i += 3) x[i] = 0;
    const std::vector<float> y = back(x, Quantisation::int8_zero_point);
    for (std::size_t i = 0; i < x.size(); i += 3) EXPECT_EQ(y[i], 0);
  }
}

TEST(QuantiseInts, bytes_are_a_quarter_and_an_eighth_and_three_hundredths_more) {
  constexpr std::size_t kMany = std::size_t{1} << 20;
  EXPECT_EQ(quantised_bytes(kMany, Quantisation::int8_minmax), kMany + kMany / 32);
  EXPECT_EQ(quantised_bytes(kMany, Quantisation::int4_minmax), kMany / 2 + kMany / 32);
  EXPECT_EQ(quantised_bytes(kMany, Quantisation::f8_e4m3), kMany + kMany / 64);
  EXPECT_EQ(quantised_bytes(kMany, Quantisation::bf16), 2 * kMany);
  EXPECT_EQ(quantised_bytes(3, Quantisation::int4_minmax), 10U);
  EXPECT_EQ(quantised_bytes(0, Quantisation::int8_minmax), 0U);
}

}  // namespace
}  // namespace pccl::quantise_test
