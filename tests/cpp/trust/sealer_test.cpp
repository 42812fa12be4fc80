// What is sealed opens once it is the same message, with the same number, under the same key.
#include "trust/sealer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.h"

namespace pccl {
namespace {

std::vector<std::byte> plain_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> hex_bytes(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    std::uint8_t value = 0;
    std::from_chars(hex.data() + i, hex.data() + i + 2, value, 16);
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

Secret counted() {
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  return Secret(bytes);
}

struct Letter {
  std::uint64_t number = 0;
  std::vector<std::byte> beside = plain_bytes("head");
  std::vector<std::byte> text;
  SealTag tag{};
};

Letter seal(Sealer& sealer, const std::string& plain) {
  Letter letter;
  letter.number = sealer.next();
  letter.text = plain_bytes(plain);
  const SealPart part{letter.text.data(), letter.text.data(), letter.text.size()};
  letter.tag = sealer.seal(letter.beside, {&part, 1});
  return letter;
}

/// The text, or "" if it does not open.
std::string open(Opener& opener, Letter letter) {
  const SealPart part{letter.text.data(), letter.text.data(), letter.text.size()};
  if (!opener.open(letter.number, letter.beside, {&part, 1}, letter.tag)) return "";
  return {reinterpret_cast<const char*>(letter.text.data()), letter.text.size()};
}

constexpr std::array kCiphers = {Cipher::aes_128_gcm, Cipher::chacha20_poly1305};

TEST(Sealer, seals_as_the_ciphers_of_the_rfcs_do) {
  // Computed with Python: hmac for the key (HKDF of RFC 5869), then AESGCM and ChaCha20Poly1305 of
  // the package cryptography, with the number 1 as nonce.
  const std::array<std::string_view, 2> expected = {
      "a095ffcddb2118b230cc4da5f333a67c501bb3319b34a1756c",
      "53be1aba25bced3d67f1f2c62ed572a1ad38a30d943c8026a7"};
  for (std::size_t i = 0; i < kCiphers.size(); ++i) {
    Sealer sealer(kCiphers[i], counted());
    (void)seal(sealer, "first");
    const Letter letter = seal(sealer, "some text");
    EXPECT_EQ(letter.number, 1U);
    std::vector<std::byte> sealed = letter.text;
    sealed.insert(sealed.end(), letter.tag.begin(), letter.tag.end());
    EXPECT_EQ(sealed, hex_bytes(expected[i]));
  }
}

TEST(Sealer, what_was_sealed_opens_and_says_nothing_before) {
  for (const Cipher cipher : kCiphers) {
    Sealer sealer(cipher, counted());
    Opener opener(cipher, counted());
    for (const std::string& text : {std::string("one"), std::string(100000, 'x'), std::string()}) {
      const Letter letter = seal(sealer, text);
      EXPECT_TRUE(text.empty() || letter.text != plain_bytes(text));
      EXPECT_EQ(open(opener, letter), text);
    }
  }
}

TEST(Sealer, parts_are_one_message_wherever_they_lie) {
  Sealer sealer(Cipher::aes_128_gcm, counted());
  Opener opener(Cipher::aes_128_gcm, counted());
  const auto front = plain_bytes("0123456789");
  const auto back = plain_bytes("abcdefg");
  std::vector<std::byte> sealed(front.size() + back.size());
  const std::array<SealPart, 3> parts = {
      SealPart{front.data(), sealed.data(), front.size()}, SealPart{},
      SealPart{back.data(), sealed.data() + front.size(), back.size()}};
  const SealTag tag = sealer.seal({}, parts);
  const SealPart whole{sealed.data(), sealed.data(), sealed.size()};
  ASSERT_TRUE(opener.open(0, {}, {&whole, 1}, tag));
  EXPECT_EQ(sealed, plain_bytes("0123456789abcdefg"));
}

TEST(Sealer, a_change_of_any_bit_is_seen) {
  for (const Cipher cipher : kCiphers) {
    Sealer sealer(cipher, counted());
    Opener opener(cipher, counted());
    const Letter letter = seal(sealer, "text");
    const auto changed = [&](const std::function<void(Letter&)>& change) {
      Letter other = letter;
      change(other);
      return open(opener, other).empty();
    };
    for (std::size_t bit = 0; bit < 8 * letter.text.size(); ++bit) {
      const auto flip = static_cast<std::byte>(1U << bit % 8);
      EXPECT_TRUE(changed([&](Letter& other) { other.text[bit / 8] ^= flip; }));
      EXPECT_TRUE(changed([&](Letter& other) { other.beside[bit / 8] ^= flip; }));
    }
    for (std::size_t bit = 0; bit < 8 * kSealTagBytes; ++bit) {
      EXPECT_TRUE(changed(
          [&](Letter& other) { other.tag[bit / 8] ^= static_cast<std::byte>(1U << bit % 8); }));
    }
    EXPECT_TRUE(changed([](Letter& other) { other.text.pop_back(); }));
    EXPECT_TRUE(changed([](Letter& other) { other.beside.pop_back(); }));
    EXPECT_TRUE(changed([](Letter& other) { ++other.number; }));
    EXPECT_TRUE(changed([](Letter& other) { other.number += 1ULL << 60; }));
    Opener another(cipher, derive(counted(), "another", {}));
    EXPECT_EQ(open(another, letter), "");
    EXPECT_EQ(open(opener, letter), "text") << "and nothing of that disturbs";
  }
}

TEST(Sealer, a_key_gives_way_to_the_next_one_and_late_messages_open_for_one_key_more) {
  Sealer sealer(Cipher::aes_128_gcm, counted());
  Opener opener(Cipher::aes_128_gcm, counted());
  std::vector<Letter> letters;  // of each key its first and its last
  while (sealer.next() <= 2 * kSealsOfOneKey) {
    Letter letter = seal(sealer, "text " + std::to_string(sealer.next()));
    const std::uint64_t place = letter.number % kSealsOfOneKey;
    if (place == 0 || place == kSealsOfOneKey - 1) letters.push_back(std::move(letter));
  }
  ASSERT_EQ(letters.size(), 5U);
  EXPECT_EQ(open(opener, letters[4]), "") << "no key is left out";
  EXPECT_EQ(open(opener, letters[0]), "text 0");
  EXPECT_EQ(open(opener, letters[2]), "text 65536");
  EXPECT_EQ(open(opener, letters[1]), "text 65535") << "of the key before";
  EXPECT_EQ(open(opener, letters[4]), "text 131072");
  EXPECT_EQ(open(opener, letters[3]), "text 131071");
  EXPECT_EQ(open(opener, letters[1]), "") << "its key is gone";
  Letter moved = letters[4];
  moved.number -= kSealsOfOneKey;
  EXPECT_EQ(open(opener, moved), "");
}

}  // namespace
}  // namespace pccl
