// Numbers and lists as people read them, in errors and log lines; hosts as people write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pccl {

/// "1.5 s"; below a second "80 ms"
inline std::string seconds(std::uint64_t ms) {
  if (ms < 1000) return std::to_string(ms) + " ms";
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

/// "950 bytes", "2.4 GB"
inline std::string bytes_text(std::uint64_t bytes) {
  const char* units[] = {" kB", " MB", " GB", " TB"};
  if (bytes < 1000) return std::to_string(bytes) + " bytes";
  std::uint64_t tenths = bytes / 100;
  std::size_t unit = 0;
  for (; tenths >= 10000 && unit < 3; ++unit) tenths /= 1000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + units[unit];
}

/// "00ff": two digits for each byte.
[[nodiscard]] std::string hex_text(std::span<const std::byte> bytes);
/// The bytes for which hex_text makes this text; nothing: for none.
[[nodiscard]] std::optional<std::vector<std::byte>> hex_bytes(std::string_view text);
/// Are all characters digits of hex_text?
[[nodiscard]] bool is_hex(std::string_view text);

/// "a", then "a, b"
inline void add_to_list(std::string& text, std::string_view item, std::string_view between = ", ") {
  if (!text.empty()) text += between;
  text += item;
}

/// Length of the character of UTF-8 that starts `text`, which is not empty; 0 if none does.
[[nodiscard]] std::size_t utf8_character(std::string_view text);

/// The text if it has at most `bytes_max` bytes, which are at least 4; else its first words and
/// "…". Cuts inside a word only where the text has no space near that place, and never inside a
/// character.
[[nodiscard]] std::string cut_at_word(std::string_view text, std::size_t bytes_max);

/// Makes a text of another process safe for a terminal or a log: a '?' replaces each control
/// character, each character that is invisible or turns the direction of a line, and each byte that
/// is not UTF-8.
[[nodiscard]] std::string printable(std::string_view text);

/// Does only this machine reach the host? "localhost", "::1" (also in brackets), an IPv4 address
/// that begins with 127. A name that merely begins so may be any machine's.
[[nodiscard]] bool is_loopback_host(std::string_view host);

}  // namespace pccl
