// A handle in a store is taken from who holds a common token, for its place alone.
#include "trust/seal.h"

#include <gtest/gtest.h>

#include <string>

namespace pccl {
namespace {

const SealedPlace kPlace{3, 1, 4};

Tokens tokens_of(const std::string& names) {
  std::vector<Token> tokens;
  for (const char name : names) {
    std::array<std::uint8_t, 32> bytes{};
    bytes.fill(static_cast<std::uint8_t>(name));
    tokens.push_back({std::string(1, name), Secret(bytes), std::string(64, 'a'), {}});
  }
  return {std::move(tokens), "FILE"};
}

std::vector<std::byte> handle_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// "" or the error.
std::string read(const Tokens* tokens, const SealedPlace& place,
                 const std::vector<std::uint8_t>& value, const std::string& handle = "handle") {
  const auto got = unseal(tokens, place, std::as_bytes(std::span(value)));
  if (!got) return got.error().text;
  const auto expected = handle_of(handle);
  EXPECT_TRUE(std::equal(got.value().begin(), got.value().end(), expected.begin(), expected.end()));
  return "";
}

TEST(Seal, the_first_token_seals_and_any_of_the_reader_opens_it) {
  const Tokens ab = tokens_of("ab");
  const Tokens b = tokens_of("b");
  const Tokens c = tokens_of("c");
  const auto handle = handle_of("handle");
  EXPECT_EQ(read(nullptr, kPlace, seal(nullptr, kPlace, handle)), "");
  EXPECT_EQ(read(&ab, kPlace, seal(&ab, kPlace, handle)), "");
  EXPECT_EQ(read(&ab, kPlace, seal(&b, kPlace, handle)), "");
  EXPECT_NE(read(&b, kPlace, seal(&ab, kPlace, handle)), "") << "the first one seals";
  EXPECT_NE(read(&c, kPlace, seal(&ab, kPlace, handle)).find("lacks the first line"),
            std::string::npos);
}

TEST(Seal, a_rank_with_tokens_and_one_without_do_not_make_a_group) {
  const Tokens a = tokens_of("a");
  const auto handle = handle_of("handle");
  EXPECT_NE(read(nullptr, kPlace, seal(&a, kPlace, handle)).find("rank 1 has a token"),
            std::string::npos);
  EXPECT_NE(read(&a, kPlace, seal(nullptr, kPlace, handle)).find("rank 1 has no token"),
            std::string::npos);
}

TEST(Seal, no_bit_of_the_value_and_no_number_of_the_place_can_be_changed) {
  const Tokens a = tokens_of("a");
  const auto value = seal(&a, kPlace, handle_of("handle"));
  for (std::size_t bit = 0; bit < 8 * value.size(); ++bit) {
    auto wrong = value;
    wrong[bit / 8] = static_cast<std::uint8_t>(wrong[bit / 8] ^ (1U << (bit % 8)));
    EXPECT_NE(read(&a, kPlace, wrong), "") << bit;
  }
  for (const SealedPlace& other : {SealedPlace{4, 1, 4}, {3, 2, 4}, {3, 1, 5}}) {
    EXPECT_NE(read(&a, other, value), "");
  }
  for (std::size_t size = 0; size < value.size(); ++size) {
    const std::vector<std::uint8_t> half(value.begin(),
                                         value.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(read(&a, kPlace, half), "") << size;
  }
  EXPECT_NE(read(nullptr, kPlace, {}), "");
  EXPECT_NE(read(nullptr, kPlace, {7, 1, 2}), "");
}

}  // namespace
}  // namespace pccl
