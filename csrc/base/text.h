// Numbers and lists as people read them, in errors and log lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pccl {

/// "1.5 s"
inline std::string seconds(std::uint64_t ms) {
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

/// "a", then "a, b"
inline void add_to_list(std::string& text, std::string_view item, std::string_view between = ", ") {
  if (!text.empty()) text += between;
  text += item;
}

}  // namespace pccl
