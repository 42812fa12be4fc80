// See device_calls.h.
#include "torch/device_calls.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>
#include <set>

namespace pccl {
namespace {

// Of cuda_runtime_api.h, and the same in HIP.
using CreateStream = int (*)(void** stream, unsigned flags, int priority);
using ExchangeCaptureMode = int (*)(int* mode);
constexpr unsigned kNonBlocking = 1;  // does not wait for the default stream
constexpr int kNormalPriority = 0;
constexpr int kRelaxedCaptures = 2;

template <typename Function>
Function find(c10::DeviceType type, const std::string& name) {
  const std::string prefix = c10::DeviceTypeName(type, /*lower_case=*/true);
  void* found = dlsym(RTLD_DEFAULT, (prefix + name).c_str());
  if (found == nullptr && type == c10::DeviceType::CUDA) {
    found = dlsym(RTLD_DEFAULT, ("hip" + name).c_str());
  }
  return reinterpret_cast<Function>(found);  // NOLINT
}

/// c10 has the question from some version on.
template <typename Guard>
bool asks_capture(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

}  // namespace

std::optional<c10::Stream> new_stream(c10::Device device) {
  const auto create = find<CreateStream>(device.type(), "StreamCreateWithPriority");
  if (create == nullptr) return std::nullopt;
  const c10::DeviceGuard guard(device);
  void* made = nullptr;
  if (create(&made, kNonBlocking, kNormalPriority) != 0 || made == nullptr) return std::nullopt;
  // torch's number of a stream that is not its own: the pointer, which is even.
  const auto id = static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(made));  // NOLINT
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

void allow_during_captures(c10::DeviceType type) {
  static thread_local std::set<c10::DeviceType> allowed;
  if (!allowed.insert(type).second) return;
  const auto exchange = find<ExchangeCaptureMode>(type, "ThreadExchangeStreamCaptureMode");
  if (exchange == nullptr) return;
  int mode = kRelaxedCaptures;
  exchange(&mode);  // if it fails, queries may fail: they are repeated
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

bool is_capturing(c10::Device device) {
  const c10::DeviceGuard there(device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  return asks_capture(guard, guard.getStream(device));
}

std::string one_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

}  // namespace pccl
