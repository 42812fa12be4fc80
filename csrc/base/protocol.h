// The version of the protocol: in the opening of every connection and in PROTOCOL.md. Raised when a
// message or frame changes such that an older peer cannot ignore it, or when ranks choose another
// algorithm for a collective; it is not the package version.
#pragma once

#include <cstdint>

namespace pccl {

inline constexpr std::uint32_t kProtocolVersion = 13;

}  // namespace pccl
