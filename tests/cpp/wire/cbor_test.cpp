#include "wire/cbor.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/random.h"

namespace pccl {
namespace {

std::vector<std::uint8_t> head_of(cbor::Major major, std::uint64_t number) {
  std::vector<std::byte> out;
  cbor::Writer(out).head(major, number);
  std::vector<std::uint8_t> bytes;
  for (const std::byte byte : out) bytes.push_back(static_cast<std::uint8_t>(byte));
  return bytes;
}

TEST(Cbor, heads_are_the_shortest_and_come_back) {
  // RFC 8949, appendix A.
  EXPECT_EQ(head_of(cbor::Major::number, 23), (std::vector<std::uint8_t>{0x17}));
  EXPECT_EQ(head_of(cbor::Major::number, 24), (std::vector<std::uint8_t>{0x18, 0x18}));
  EXPECT_EQ(head_of(cbor::Major::number, 1000), (std::vector<std::uint8_t>{0x19, 0x03, 0xe8}));
  EXPECT_EQ(head_of(cbor::Major::number, 1000000),
            (std::vector<std::uint8_t>{0x1a, 0x00, 0x0f, 0x42, 0x40}));
  EXPECT_EQ(head_of(cbor::Major::number, 1000000000000),
            (std::vector<std::uint8_t>{0x1b, 0, 0, 0, 0xe8, 0xd4, 0xa5, 0x10, 0}));
  for (unsigned shift = 0; shift < 64; ++shift) {
    for (const std::int64_t off : {-1, 0, 1}) {
      const std::uint64_t number = (std::uint64_t{1} << shift) + static_cast<std::uint64_t>(off);
      EXPECT_EQ(head_of(cbor::Major::number, number), nlohmann::json::to_cbor(number));
      std::vector<std::byte> out;
      cbor::Writer(out).head(cbor::Major::map, number);
      cbor::Reader reader(out);
      EXPECT_EQ(reader.head(cbor::Major::map, "a map"), number);
      EXPECT_TRUE(reader.ok());
      EXPECT_TRUE(reader.at_end());
    }
  }
}

TEST(Cbor, after_the_first_error_nothing_more_is_read_and_the_error_stays) {
  std::vector<std::byte> out;
  cbor::Writer writer(out);
  writer.put(std::uint64_t{5});
  writer.put(true);
  cbor::Reader reader(out);
  bool wrong = false;
  reader.get(wrong);
  EXPECT_EQ(reader.error(), "not a boolean at byte 0 of 2");
  std::uint64_t number = 9;
  reader.get(number);
  EXPECT_EQ(reader.error(), "not a boolean at byte 0 of 2");
}

TEST(Cbor, utf8_is_told_from_other_bytes_as_the_unicode_standard_says) {
  for (const char* good : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf",
                           "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(cbor::valid_utf8(good));
  }
  // Overlong forms, surrogates, beyond U+10FFFF, cut characters, stray continuations.
  for (const char* bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\x80", "a\xff"}) {
    EXPECT_FALSE(cbor::valid_utf8(bad));
  }
}

TEST(Cbor, a_cut_text_ends_between_characters) {
  const std::string text = "aé€😀";  // 1, 2, 3 and 4 bytes
  const std::vector<std::size_t> kept = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (std::size_t max = 0; max < kept.size(); ++max) {
    EXPECT_EQ(cbor::cut_utf8(text, max).size(), kept[max]) << max;
  }
}

TEST(Cbor, a_struct_that_is_no_message_comes_back) {
  Failure failure{{3, 4}, {ErrorCode::peer_lost, "rank 2"}};
  const auto bytes = cbor::encode_struct(failure);
  const auto back = cbor::decode_struct<Failure>(bytes, "failure");
  ASSERT_TRUE(back.ok()) << back.error().text;
  EXPECT_EQ(back.value(), failure);
  const auto cut = cbor::decode_struct<Failure>(std::span(bytes).first(5), "failure");
  ASSERT_FALSE(cut.ok());
  EXPECT_TRUE(cut.error().text.starts_with("failure: ")) << cut.error().text;
}

}  // namespace
}  // namespace pccl
