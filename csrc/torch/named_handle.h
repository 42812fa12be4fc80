// The text by which a program names one group of one process when it calls reconfigure.
#pragma once

#include <cstdint>
#include <string>

#include "base/handle.h"

namespace pccl {

/// "pccl1:", the handle in hexadecimal, ":", the number of the group in its process.
struct NamedHandle {
  std::string text;
  Handle handle;
};

[[nodiscard]] NamedHandle name_handle(const Handle& handle, std::uint64_t instance);
/// Throws, as for a wrong argument, if the text is none of `name_handle`.
[[nodiscard]] NamedHandle parse_named_handle(const std::string& text);

}  // namespace pccl
