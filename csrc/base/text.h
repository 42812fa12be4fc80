// Numbers as people read them, in errors and log lines.
#pragma once

#include <cstdint>
#include <string>

namespace pccl {

/// "1.5 s"
inline std::string seconds(std::uint64_t ms) {
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

}  // namespace pccl
