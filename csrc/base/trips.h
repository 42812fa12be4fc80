// Round trips of the links of one member of a group.
#pragma once

#include <cstdint>

namespace pccl {

/// In microseconds; 0: short, or not known.
struct Trips {
  std::uint32_t farthest_us = 0;   // to the member that is the farthest from it
  std::uint32_t neighbour_us = 0;  // to the next one in the ring
  bool local = false;              // all of them stay on one machine, and need no network
  bool operator==(const Trips&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("farthest_us", self.farthest_us);
    visit("neighbour_us", self.neighbour_us);
    visit("local", self.local);
  }
};

}  // namespace pccl
