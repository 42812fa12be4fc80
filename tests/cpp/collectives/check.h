// The rules of schedule.h as a function: for tests, and for whoever writes a new algorithm.
//
// Looks at the schedules of all ranks of one operation at once. What it accepts pairs up, stays
// inside the buffers, comes to an end in any order of arrival, and touches no byte that another
// step may still need: of two steps of a rank that use the same memory, one writing, the second
// always comes after the first.
#pragma once

#include <vector>

#include "base/error.h"
#include "collectives/schedule.h"

namespace pccl {

/// `schedules[r]` belongs to `args[r]`. `in_place`: input and output are the same memory where the
/// kind allows it. The error (`invalid`) names the first rank and step that break a rule, and the
/// rule.
[[nodiscard]] Error check_schedules(const std::vector<Schedule>& schedules,
                                    const std::vector<CollectiveArgs>& args, bool in_place);

/// The index of the output that is the same memory as the input of that index, where an operation
/// of this kind runs in place at this rank.
struct Aliased {
  bool any = false;
  std::uint32_t input = 0;
  std::uint32_t output = 0;
};
[[nodiscard]] Aliased aliased_in_place(const CollectiveArgs& args);

}  // namespace pccl
