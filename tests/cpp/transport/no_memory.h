// Want of memory, for tests: no_memory.cpp replaces `operator new` of the whole program.
#pragma once

#include <cstddef>
#include <limits>

namespace pccl::test {

/// What asks for so many bytes or more finds no memory.
extern std::size_t no_memory_from;
inline constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

/// The next requests that find memory; the one after them finds none, and all later ones do. With
/// kNoLimit all do, as after the one that did not.
extern std::size_t requests_until_none;

}  // namespace pccl::test
