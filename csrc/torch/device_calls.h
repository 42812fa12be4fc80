// What the runtime of a device offers beyond c10's interface. The functions are looked up by name
// in the process (CUDA's, or HIP's; of another device those with its name in front), so one build
// serves machines with and without a GPU. Where a function is missing, the answer says so.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <exception>
#include <optional>
#include <string>

namespace pccl {

/// A stream that no program gets: torch hands out those of its pools again and again. Never
/// destroyed. Empty where the runtime cannot be asked for one.
[[nodiscard]] std::optional<c10::Stream> new_stream(c10::Device device);

/// For the current device. From now on, calls of this thread are allowed while another thread
/// captures a graph, and do not spoil the capture. Does nothing where the runtime does not know
/// such a mode.
void allow_during_captures(c10::DeviceType type);

[[nodiscard]] c10::Stream current_stream(c10::Device device);

/// Is the caller's current stream being captured into a graph?
[[nodiscard]] bool is_capturing(c10::Device device);

/// The first line of an error's text, without torch's backtrace.
[[nodiscard]] std::string one_line(const std::exception& error);

}  // namespace pccl
