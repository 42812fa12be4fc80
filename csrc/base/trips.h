// Round trips between the ranks of a group, as far as they decide how data go.
#pragma once

#include <cstdint>

namespace pccl {

/// In microseconds; 0: short, or not known.
struct Trips {
  std::uint32_t farthest_us = 0;   // between the two that are the farthest from each other
  std::uint32_t neighbour_us = 0;  // between two neighbours in the ring, in the mean
  bool operator==(const Trips&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("farthest_us", self.farthest_us);
    visit("neighbour_us", self.neighbour_us);
  }
};

}  // namespace pccl
