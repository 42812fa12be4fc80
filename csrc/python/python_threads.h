// The threads on which the engine calls Python: functions that a program has set, and releases of
// what Python has lent. Knows no torch.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace pccl {

/// A Python object that any thread may hold and release. Called with the GIL.
[[nodiscard]] std::shared_ptr<void> held(pybind11::object object);

/// One after the other, with the GIL, and never on the calling thread; an exception of the function
/// is reported as unraisable. `arguments` makes a tuple for the call, with the GIL.
using Arguments = std::function<pybind11::tuple()>;
void call_event_function(const std::shared_ptr<void>& function, Arguments arguments);
void call_log_function(const std::shared_ptr<void>& function, Arguments arguments);

/// Waits for what has been queued so far, 5 s for each thread at most. Without the GIL.
void drain_python_threads();
/// The interpreter is about to end: none of these threads enters it any more.
void end_python_threads();

}  // namespace pccl
