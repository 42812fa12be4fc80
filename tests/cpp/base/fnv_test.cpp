#include "base/fnv.h"

#include <gtest/gtest.h>

#include <string_view>

namespace pccl {
namespace {

std::uint64_t hash_of(std::string_view text) {
  Fnv1a hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.value();
}

TEST(Fnv1a, gives_the_published_values) {
  EXPECT_EQ(hash_of(""), 0xCBF29CE484222325U);
  EXPECT_EQ(hash_of("a"), 0xAF63DC4C8601EC8CU);
  EXPECT_EQ(hash_of("foobar"), 0x85944171F73967E8U);
}

TEST(Fnv1a, takes_a_number_in_one_step) {
  Fnv1a byte;
  byte.add(std::uint64_t{'a'});
  EXPECT_EQ(byte.value(), hash_of("a"));
  Fnv1a number;
  number.add(std::uint64_t{0x6161});
  EXPECT_NE(number.value(), hash_of("aa"));
}

}  // namespace
}  // namespace pccl
