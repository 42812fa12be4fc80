// Names a process for the other processes of its machine, which can see whether it has ended
// (transport/process.h). Says nothing to those of another machine.
#pragma once

#include <cstdint>

namespace pccl {

/// Names a process for other processes of its machine. `started` is there because ids are used
/// again; `machine`, because id and start are unique only within one boot of a kernel and its
/// namespaces.
struct ProcessName {
  // Of the kernel's boot and the namespaces of `id`, `started`; 0: not known.
  std::uint64_t machine = 0;
  std::uint64_t id = 0;
  std::uint64_t started = 0;  // ticks of the kernel's clock since its boot
  bool operator==(const ProcessName&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("machine", self.machine);
    visit("id", self.id);
    visit("started", self.started);
  }
};

}  // namespace pccl
