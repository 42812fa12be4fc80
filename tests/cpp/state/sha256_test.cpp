#include "state/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/random.h"
#include "base/text.h"
#include "hash_item.h"

namespace pccl::test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string in_hex(const Digest& digest) { return hex_text(std::as_bytes(std::span(digest))); }

TEST(Sha256, GivesThePublishedValues) {
  // FIPS 180-4 examples.
  EXPECT_EQ(in_hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(in_hex(sha256(bytes_of("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, AnItemIsHashedOverTheHashesOfItsChunks) {
  std::string text(2 * kStateChunkBytes + 12'345, 'x');
  Random random(1);
  for (char& c : text) c = static_cast<char>(random.next());
  const auto bytes = bytes_of(text);
  EXPECT_EQ(chunk_count(bytes.size()), 3U);
  std::vector<Digest> by_hand;
  for (std::size_t at = 0; at < bytes.size(); at += kStateChunkBytes) {
    by_hand.push_back(sha256(bytes.subspan(at, std::min(kStateChunkBytes, bytes.size() - at))));
  }
  EXPECT_EQ(hash_item(bytes), sha256(std::as_bytes(std::span(by_hand))));
}

TEST(Sha256, ChunksHashedInPartsGiveTheSame) {
  const std::string text(5 * kStateChunkBytes, 'y');
  const auto bytes = bytes_of(text);
  std::vector<Digest> chunks = chunk_digests(bytes, 0, 2);
  for (const Digest& d : chunk_digests(bytes, 2, 5)) chunks.push_back(d);
  EXPECT_EQ(combine(chunks), hash_item(bytes));
  EXPECT_TRUE(chunk_digests(bytes, 3, 3).empty());
}

TEST(Sha256, SmallAndEmptyItemsAreOneChunk) {
  EXPECT_EQ(chunk_count(0), 1U);
  EXPECT_EQ(chunk_count(1), 1U);
  EXPECT_EQ(chunk_count(kStateChunkBytes), 1U);
  EXPECT_EQ(chunk_count(kStateChunkBytes + 1), 2U);
  EXPECT_EQ(hash_item({}), combine(std::vector<Digest>{sha256({})}));
}

TEST(Sha256, ChunksThatAreNotThereBreakAnInvariant) {
  EXPECT_THROW((void)chunk_digests({}, 0, 2), BrokenInvariant);
  EXPECT_THROW((void)chunk_digests({}, 1, 0), BrokenInvariant);
}

}  // namespace
}  // namespace pccl::test
