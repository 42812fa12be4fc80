#include "base/text.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace pccl {
namespace {

TEST(Text, bytes_are_read_in_units) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(999), "999 bytes");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(999'999), "999.9 kB");
  EXPECT_EQ(bytes_text(2'400'000'000), "2.4 GB");
  EXPECT_EQ(bytes_text(123'456'789'000'000), "123.4 TB");
}

TEST(Text, times_below_a_second_are_read_in_milliseconds) {
  EXPECT_EQ(seconds(0), "0 ms");
  EXPECT_EQ(seconds(80), "80 ms");
  EXPECT_EQ(seconds(999), "999 ms");
  EXPECT_EQ(seconds(1000), "1.0 s");
  EXPECT_EQ(seconds(61'590), "61.5 s");
}

TEST(Text, bytes_are_two_hexadecimal_digits_each) {
  EXPECT_EQ(hex_text({}), "");
  const std::array<std::uint8_t, 4> bytes{0x00, 0x0F, 0xA0, 0xFF};
  EXPECT_EQ(hex_text(std::as_bytes(std::span(bytes))), "000fa0ff");
}

TEST(Text, hexadecimal_digits_are_read_back_as_they_are_written) {
  std::vector<std::byte> every;
  for (int value = 0; value < 256; ++value) every.push_back(static_cast<std::byte>(value));
  EXPECT_EQ(hex_bytes(hex_text(every)), every);
  EXPECT_EQ(hex_bytes(""), std::vector<std::byte>{});
  for (const char* wrong : {"0", "0fa", "0F", "g0", "0x", " 0", "-1"}) {
    EXPECT_EQ(hex_bytes(wrong), std::nullopt) << wrong;
    EXPECT_EQ(is_hex(wrong), std::string_view(wrong) == "0" || std::string_view(wrong) == "0fa");
  }
}

TEST(Text, a_loopback_host_is_what_only_this_machine_reaches) {
  for (const char* host : {"localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host :
       {"", "127.example.org", "128.0.0.1", "::", "0.0.0.0", "node1", "::ffff:1"}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

TEST(Text, what_reaches_a_terminal_can_be_printed) {
  EXPECT_EQ(printable("node7/4711 \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"),
            "node7/4711 \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\x1b[2J\r\n\t\x7f"), "?[2J????");
  EXPECT_EQ(printable("\xc2\x9b"), "?") << "a control character of two bytes";
  EXPECT_EQ(printable("a\xff\xc3"), "a??") << "not UTF-8, or cut off";
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b\xe2\x80\x8b"
                      "c"),
            "a?b?c")
      << "turns the line round; has no width";
}

TEST(Text, a_text_is_cut_where_a_word_ends) {
  EXPECT_EQ(cut_at_word("one two", 7), "one two");
  EXPECT_EQ(cut_at_word("one two three", 12), "one two\u2026");
  EXPECT_EQ(cut_at_word("one, two", 7), "one\u2026") << "no comma before the dots";
  EXPECT_EQ(cut_at_word("one two", 6), "one\u2026") << "a word that just fits is whole";
  EXPECT_EQ(cut_at_word("onetwothree", 7), "onet\u2026");
  EXPECT_EQ(cut_at_word("a\u00e9\u00e9\u00e9", 5), "a\u2026") << "a character stays whole";
  EXPECT_EQ(cut_at_word("a " + std::string(200, 'x'), 100).size(), 100U) << "one very long word";
}

TEST(Text, words_of_others_reach_no_log_as_they_are) {
  std::string line;
  set_log_sink([&](LogLevel, std::string_view text) { line = text; });
  log_error("a\x1b[2Jb\nforged \xff\xc3\xa9");
  set_log_sink(nullptr);
  EXPECT_EQ(line, "a?[2Jb?forged ?\xc3\xa9");
}

}  // namespace
}  // namespace pccl
