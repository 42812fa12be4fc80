// Kernels give the same bits whatever floating-point mode the calling thread has, and leave it as
// it was.
#include "kernels/float_mode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "quantisations.h"

#if defined(__SSE2__) || defined(__aarch64__)

namespace pccl::float_mode_test {
namespace {

/// Changes the mode of this thread while it lives.
class OtherMode {
 public:
#if defined(__SSE2__)
  explicit OtherMode(std::uint32_t mode) { _mm_setcsr(mode); }
  ~OtherMode() { _mm_setcsr(before_); }
  [[nodiscard]] static std::uint32_t now() { return _mm_getcsr() & 0xFFC0; }
#elif defined(__aarch64__)
  explicit OtherMode(std::uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
  ~OtherMode() { asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0})); }
  [[nodiscard]] static std::uint64_t now() {
    std::uint64_t mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
#endif
  OtherMode(const OtherMode&) = delete;
  OtherMode& operator=(const OtherMode&) = delete;

 private:
#if defined(__SSE2__)
  std::uint32_t before_ = _mm_getcsr();
#endif
};

#if defined(__SSE2__)
constexpr std::uint32_t kFlushes = 0x9FC0;  // FTZ and DAZ, as torch.set_flush_denormal sets them
constexpr std::uint32_t kTowardsZero = 0x7F80;
#elif defined(__aarch64__)
constexpr std::uint64_t kFlushes = 1U << 24;
constexpr std::uint64_t kTowardsZero = 3U << 22;
#endif

constexpr std::size_t kModesCount = 2 * kQuantisedBlock + 3;

/// Denormal ones, and ones that have to be rounded.
template <typename T>
std::vector<T> values(int seed) {
  std::vector<T> out(kModesCount);
  for (std::size_t i = 0; i < kModesCount; ++i) {
    const auto n = static_cast<T>(static_cast<int>(i) % 97 + seed);
    out[i] = i % 2 == 0 ? n * std::numeric_limits<T>::denorm_min() : n / T{7};
  }
  return out;
}

template <typename T>
void add_bytes(std::string& to, const std::vector<T>& of) {
  to.append(reinterpret_cast<const char*>(of.data()), of.size() * sizeof(T));
}

template <typename T>
void add_sum(std::string& to, const std::vector<T>& a, const std::vector<T>& b, DType dtype) {
  std::vector<T> sum(kModesCount);
  reduce_into(sum.data(), a.data(), b.data(), kModesCount, dtype, ReduceOp::sum);
  add_bytes(to, sum);
  finish_average(sum.data(), kModesCount, dtype, 3);
  add_bytes(to, sum);
}

/// The bits of what every kernel that computes with floats makes of the same values.
std::string results(const std::vector<float>& a, const std::vector<float>& b,
                    const std::vector<double>& c, const std::vector<double>& d) {
  std::string all;
  add_sum(all, a, b, DType::f32);
  add_sum(all, c, d, DType::f64);
  std::vector<std::uint16_t> low(kModesCount), high(kModesCount);
  for (std::size_t i = 0; i < kModesCount; ++i) {
    low[i] = static_cast<std::uint16_t>(i);  // denormal as bfloat16 and as float16
    high[i] = static_cast<std::uint16_t>(0x3C00 + i);
  }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    add_sum(all, low, low, dtype);
    add_sum(all, high, low, dtype);
  }
  for (const Quantisation how : kQuantisations) {
    std::vector<std::byte> codes(quantised_bytes(kModesCount, how));
    quantise(codes.data(), a.data(), kModesCount, how);
    add_bytes(all, codes);
    std::vector<float> sum(kModesCount);
    dequantise(sum.data(), codes.data(), kModesCount, how);
    add_bytes(all, sum);
    add_dequantised(sum.data(), codes.data(), kModesCount, how);
    add_bytes(all, sum);
  }
  return all;
}

TEST(FloatMode, of_the_calling_thread_changes_no_bit_and_stays) {
  const auto a = values<float>(1);
  const auto b = values<float>(2);
  const auto c = values<double>(1);
  const auto d = values<double>(2);
  const std::string expected = results(a, b, c, d);
  for (const auto mode : {kFlushes, kTowardsZero}) {
    std::string got;
    {
      const OtherMode other(mode);
      got = results(a, b, c, d);
      EXPECT_EQ(OtherMode::now(), mode);
    }
    EXPECT_TRUE(got == expected) << mode;
  }
}

TEST(FloatMode, lasts_as_long_as_the_object) {
  volatile float least = std::numeric_limits<float>::denorm_min();
  const OtherMode other(kFlushes);
  volatile float flushed = least * 2;
  volatile float kept = 0;
  {
    const DefaultFloatMode mode;
    kept = least * 2;
  }
  std::uint32_t bits = 0;
  const float out = kept;
  std::memcpy(&bits, &out, sizeof bits);
  EXPECT_EQ(bits, 2U);
  const float none = flushed;
  std::memcpy(&bits, &none, sizeof bits);
  EXPECT_EQ(bits, 0U) << "the mode of this test is none";
}

}  // namespace
}  // namespace pccl::float_mode_test

#endif
