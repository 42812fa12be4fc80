// The kinds of process groups.
#pragma once

#include <cstdint>

namespace pccl {

enum class GroupKind : std::uint8_t {
  fixed,   // of processes that have met at a store, and need no run
  of_run,  // fixed, too; its members are members of the elastic group of this engine
  elastic  // of all members of the run in one peer group
};

}  // namespace pccl
