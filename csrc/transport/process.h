// Which process this is, and whether one of this machine has ended. Linux only: elsewhere the
// machine of a process has no name, and no process is seen to end.
#pragma once

#include "base/process_name.h"

namespace pccl {

/// The name of this process; `machine` is 0 where it cannot be known.
[[nodiscard]] ProcessName this_process();
/// True: the process ran on this machine, and has ended; its id may be another process's by now.
/// False: the process runs, or nothing is known of it: it is of another machine, of another boot of
/// this one, or of other namespaces.
[[nodiscard]] bool has_ended(const ProcessName& process);

}  // namespace pccl
