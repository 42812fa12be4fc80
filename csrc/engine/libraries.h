// From which file the C functions come that the engine uses: libtorch_cpu exports a libuv of its
// own, and ours must win. Only their addresses are taken: the headers of these libraries stay in
// transport and state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pccl {

/// Path of the library that has `symbol`, empty if unknown; nullopt: not a symbol that is looked
/// after.
[[nodiscard]] std::optional<std::string> library_of(std::string_view symbol);

}  // namespace pccl
