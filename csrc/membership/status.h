// Who is in the run, what each member does and how late it is: what the master answers to
// StatusRequest. Pure: a function of the master's state and of what its connections have seen.
#pragma once

#include <cstdint>
#include <map>

#include "membership/master.h"
#include "membership/seen.h"

namespace pccl::master {

/// How far a member's program has come: one past its newest operation; at a boundary, behind all
/// operations of the step.
[[nodiscard]] OpKey came_to(const Report& report);

/// All but what the server adds: package, up_ms, waits_for, events.
[[nodiscard]] Status status_of(const State& s, const std::map<PeerId, Seen>& seen);

}  // namespace pccl::master
