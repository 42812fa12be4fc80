#include "base/text.h"

namespace pccl {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

struct Characters {
  unsigned first;
  unsigned last;
};
// Characters that are invisible in a line, or change the order in which the line is shown.
constexpr Characters kUnseen[] = {{0x00, 0x1F},     {0x7F, 0x9F},      {0xAD, 0xAD},
                                  {0x61C, 0x61C},   {0x200B, 0x200F},  {0x2028, 0x202E},
                                  {0x2060, 0x206F}, {0xFE00, 0xFE0F},  {0xFEFF, 0xFEFF},
                                  {0xFFF0, 0xFFFB}, {0xE0000, 0xE0FFF}};

/// Of one whole character.
unsigned code_point(std::string_view character) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return at(0);
  unsigned code = at(0) & (0xFFU >> (character.size() + 1));
  for (std::size_t i = 1; i < character.size(); ++i) code = code << 6 | (at(i) & 0x3FU);
  return code;
}

bool is_seen(std::string_view character) {
  const unsigned code = code_point(character);
  for (const Characters& unseen : kUnseen) {
    if (code >= unseen.first && code <= unseen.last) return false;
  }
  return true;
}

}  // namespace

std::string hex_text(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kHexDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kHexDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::optional<std::vector<std::byte>> hex_bytes(std::string_view text) {
  if (text.size() % 2 != 0 || !is_hex(text)) return std::nullopt;
  const auto digit = [&](std::size_t at) { return kHexDigits.find(text[at]); };
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(digit(i) * 16 + digit(i + 1)));
  }
  return bytes;
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of(kHexDigits) == std::string_view::npos;
}

// Table 3-7 of the Unicode standard.
std::size_t utf8_character(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && at(i) >= low && at(i) <= high;
  };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

std::string cut_at_word(std::string_view text, std::size_t bytes_max) {
  constexpr std::string_view kMore = "\u2026";
  constexpr std::size_t kWordBytesMax = 64;  // a longer word is cut
  if (text.size() <= bytes_max) return std::string(text);
  const std::size_t room = bytes_max - kMore.size();
  std::size_t end = text.rfind(' ', room);
  if (end == std::string_view::npos || end == 0 || room - end > kWordBytesMax) {
    end = room;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;
  }
  while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == ',' || text[end - 1] == ';')) --end;
  return std::string(text.substr(0, end)) + std::string(kMore);
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length > 0 && is_seen(character)) {
      out += character;
    } else {
      out += '?';
    }
    text.remove_prefix(character.size());
  }
  return out;
}

bool is_loopback_host(std::string_view host) {
  const bool numeric = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (numeric && host.starts_with("127."));
}

}  // namespace pccl
