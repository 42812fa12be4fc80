// Calls of a device's runtime that c10's interface does not have. The functions are looked up by
// name in the process (CUDA's or HIP's; of another device those with its name as prefix), so one
// build serves machines with and without a GPU. If a function is missing, the returned value says
// so.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <exception>
#include <optional>
#include <string>

namespace pccl {

/// Makes a stream that no program gets (torch hands out the streams of its pools again and again).
/// Never destroyed. Empty if the runtime cannot make one.
[[nodiscard]] std::optional<c10::Stream> new_stream(c10::Device device);

/// Sets a mode of the current device: calls of this thread are allowed while another thread
/// captures a graph, and do not spoil the capture. Does nothing if the runtime has no such mode.
void allow_during_captures(c10::DeviceType type);

[[nodiscard]] c10::Stream current_stream(c10::Device device);

/// Is the caller's current stream being captured into a graph?
[[nodiscard]] bool is_capturing(c10::Device device);

/// The first line of an error's text, without torch's backtrace.
[[nodiscard]] std::string one_line(const std::exception& error);

}  // namespace pccl
