// What one member of a group says of its links.
#pragma once

#include <cstdint>

namespace pccl {

/// Round trips in microseconds; 0: short, or not known.
struct Trips {
  std::uint32_t farthest_us = 0;   // to the member that is the farthest from it
  std::uint32_t neighbour_us = 0;  // to the next one in the ring
  bool local = false;              // all of them stay on one machine, and need no network
  std::uint32_t host = 0;          // place in the ring of the first member of its machine
  bool operator==(const Trips&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("farthest_us", self.farthest_us);
    visit("neighbour_us", self.neighbour_us);
    visit("local", self.local);
    visit("host", self.host);
  }
};

}  // namespace pccl
