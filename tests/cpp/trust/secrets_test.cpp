// Key pairs and derived secrets: values of the RFCs, and what must be refused.
#include "trust/secrets.h"

#include <gtest/gtest.h>

#include <charconv>
#include <span>
#include <string_view>

namespace pccl {
namespace {

std::array<std::uint8_t, 32> from_hex(std::string_view hex) {
  std::array<std::uint8_t, 32> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, bytes[i], 16);
  }
  return bytes;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Secrets, an_exchange_gives_the_first_iterated_value_of_rfc_7748) {
  PublicKey nine{};
  nine[0] = 9;
  const KeyPair pair = KeyPair::from(Secret(nine));
  const auto expected =
      from_hex("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079");
  EXPECT_EQ(pair.public_key(), expected);  // 9 is also the base point
  EXPECT_TRUE(pair.shared_with(nine)->same_as(Secret(expected)));
}

TEST(Secrets, two_key_pairs_share_one_secret_and_a_third_has_another) {
  const KeyPair a = KeyPair::make();
  const KeyPair b = KeyPair::make();
  const KeyPair c = KeyPair::make();
  const Secret shared = a.shared_with(b.public_key()).value();
  EXPECT_TRUE(shared.same_as(b.shared_with(a.public_key()).value()));
  EXPECT_FALSE(shared.same_as(c.shared_with(a.public_key()).value()));
  EXPECT_EQ(KeyPair::from(a.secret()).public_key(), a.public_key());
}

TEST(Secrets, points_with_which_everybody_could_compute_the_secret_are_refused) {
  const KeyPair own = KeyPair::make();
  PublicKey one{};
  one[0] = 1;
  const std::array<PublicKey, 4> small = {
      PublicKey{}, one,
      from_hex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
      from_hex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")};
  for (const PublicKey& point : small) EXPECT_FALSE(own.shared_with(point).has_value());
}

TEST(Secrets, derived_secrets_are_those_of_hkdf_and_depend_on_label_and_context) {
  const Secret from(from_hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"));
  const auto context = bytes_of("between a and b");
  // Computed with Python's hmac, by the two steps of RFC 5869.
  const Secret expected(
      from_hex("2ddfac8b91e159fcc7a1a0cd467f2d361e3c074c4524cbe27be0c982e3ee78f1"));
  EXPECT_TRUE(derive(from, "pccl lane", context).same_as(expected));
  EXPECT_FALSE(derive(from, "pccl lan", bytes_of("ebetween a and b")).same_as(expected));
  EXPECT_FALSE(derive(from, "pccl lane", {}).same_as(expected));
  EXPECT_FALSE(derive(random_secret(), "pccl lane", context).same_as(expected));
}

}  // namespace
}  // namespace pccl
