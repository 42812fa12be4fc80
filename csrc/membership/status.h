// The status of a run: its members, what each member does and how late each member is. The master
// answers StatusRequest with this status. Pure: a function of the master's state and of what the
// master's connections have seen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "membership/master.h"
#include "membership/seen.h"

namespace pccl::master {

/// How far a member's program has come: one past its newest operation; at a boundary, behind all
/// operations of the step.
[[nodiscard]] OpKey came_to(const Report& report);

/// The members or the event that a run of a master in charge waits for, for people; empty while it
/// runs. `remote_of`: the address of a connected peer; empty: it is not connected.
[[nodiscard]] std::string whom_a_run_waits_for(const State& s,
                                               const std::function<std::string(PeerId)>& remote_of);

/// All but what the server adds: package, up_ms, waits_for, events.
[[nodiscard]] Status status_of(const State& s, const std::map<PeerId, Seen>& seen);

}  // namespace pccl::master
