// Kernels give the same bits on every CPU: a digest of what they make of the same operands, also of
// NaN, infinities and denormals, is a constant, on x86-64 and 64-bit ARM alike (scripts/arm).
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/fnv.h"
#include "base/random.h"
#include "kernels/dispatch.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"

namespace pccl::bits_test {
namespace {

constexpr std::size_t kBitsCount = 5 * kQuantisedBlock + 77;

/// Any bits: of floats some are NaN, infinite or denormal.
std::vector<std::byte> any_bytes(Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

std::uint64_t digest_of_reductions(DType dtype) {
  Fnv1a digest;
  Random random(static_cast<std::uint64_t>(dtype) + 1);
  const std::size_t bytes = kBitsCount * dtype_bytes(dtype);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max,
                            ReduceOp::band, ReduceOp::bor, ReduceOp::bxor, ReduceOp::avg}) {
    if (!reducible(dtype, op)) continue;
    const auto a = any_bytes(random, bytes);
    const auto b = any_bytes(random, bytes);
    std::vector<std::byte> to(bytes);
    reduce_into(to.data(), a.data(), b.data(), kBitsCount, dtype, op);
    if (op == ReduceOp::avg) finish_average(to.data(), kBitsCount, dtype, 3);
    digest.add(to);
  }
  return digest.value();
}

/// A block of ordinary values, one of any bits, one of denormal ones, one with a NaN, one with an
/// infinity, and a part of one of huge ones.
std::vector<float> blocks(Random& random) {
  std::vector<float> values(kBitsCount);
  for (std::size_t i = 0; i < kBitsCount; ++i) {
    const auto bits = static_cast<std::uint32_t>(random.next());
    const auto ordinary = static_cast<float>(static_cast<std::int32_t>(bits)) / 1073741824.0F;
    std::uint32_t raw = bits;
    if (i / kQuantisedBlock == 2) raw = bits & 0x807FFFFFU;
    const bool as_bits = i / kQuantisedBlock == 1 || i / kQuantisedBlock == 2;
    std::memcpy(&values[i], as_bits ? &raw : reinterpret_cast<const std::uint32_t*>(&ordinary), 4);
    if (i / kQuantisedBlock == 5) values[i] = ordinary * 1.7e38F;
  }
  const std::uint32_t nan = 0x7FC00001;
  const std::uint32_t infinity = 0xFF800000;
  std::memcpy(&values[3 * kQuantisedBlock + 9], &nan, 4);
  std::memcpy(&values[4 * kQuantisedBlock + 7], &infinity, 4);
  return values;
}

std::uint64_t digest_of_codes(Quantisation how, InstructionSet set) {
  Fnv1a digest;
  Random random(static_cast<std::uint64_t>(how) + 100);
  std::vector<float> sum(kBitsCount);
  for (int again = 0; again < 3; ++again) {
    const auto values = blocks(random);
    std::vector<std::byte> codes(quantised_bytes(kBitsCount, how));
    quantise(codes.data(), values.data(), kBitsCount, how, set);
    digest.add(codes);
    if (again == 0) {
      dequantise(sum.data(), codes.data(), kBitsCount, how, set);
    } else {
      add_dequantised(sum.data(), codes.data(), kBitsCount, how, set);
    }
    digest.add(std::as_bytes(std::span(sum)));
  }
  return digest.value();
}

struct OfType {
  DType dtype;
  std::uint64_t digest;
};
constexpr std::array<OfType, 17> kReductions = {{
    {DType::u8, 0x74B51A24BB08E810U},
    {DType::i8, 0x209FBDE507144BDEU},
    {DType::i16, 0x939C5CF0BED3E1CEU},
    {DType::u16, 0xE07AD4F6BA553356U},
    {DType::i32, 0x25976FA0DF1F2B19U},
    {DType::u32, 0xB7E16C167C382D7AU},
    {DType::i64, 0xBB05DBED0E0C73D1U},
    {DType::u64, 0x16E240F94D58B264U},
    {DType::boolean, 0x7B11210EF5CB1015U},
    {DType::f8_e4m3, 0x7E159D34E5B141E8U},
    {DType::f8_e5m2, 0x987C4029C35BB06CU},
    {DType::f16, 0xBE64B36F2D04C615U},
    {DType::bf16, 0xE3124B7893542945U},
    {DType::f32, 0x26552B8DA405AA70U},
    {DType::f64, 0x114B9C0F99325469U},
    {DType::c64, 0x586045D6E293E320U},
    {DType::c128, 0x17254A99AB263BFU},
}};

TEST(Bits, of_reductions_are_those_of_every_cpu) {
  for (const OfType& of : kReductions) {
    EXPECT_EQ(digest_of_reductions(of.dtype), of.digest)
        << dtype_name(of.dtype) << std::hex << " 0x" << digest_of_reductions(of.dtype);
  }
}

struct OfKind {
  Quantisation how;
  std::uint64_t digest;
};
constexpr std::array<OfKind, 7> kCodes = {{
    {Quantisation::int8_minmax, 0xF5B9F76D60A8AA0U},
    {Quantisation::int8_zero_point, 0x94174CFC2842B822U},
    {Quantisation::int4_minmax, 0x95901CEFC4B4B58BU},
    {Quantisation::f16, 0x5581A5E25DA3666BU},
    {Quantisation::bf16, 0x5E230546105B5181U},
    {Quantisation::f8_e4m3, 0xBD094A95D1C439DAU},
    {Quantisation::f8_e5m2, 0x6A7A24FF9CBB3531U},
}};

TEST(Bits, of_codes_and_of_sums_of_codes_are_those_of_every_cpu) {
  for (const OfKind& of : kCodes) {
    for (const InstructionSet set : instruction_sets()) {
      EXPECT_EQ(digest_of_codes(of.how, set), of.digest)
          << quantisation_name(of.how) << " " << static_cast<int>(set) << std::hex << " 0x"
          << digest_of_codes(of.how, set);
    }
  }
}

}  // namespace
}  // namespace pccl::bits_test
