// The lines between the ranks of a group, as far as they decide how data go.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "base/sites.h"

namespace pccl {

/// From this round trip on of the two farthest ranks lines decide how data go.
inline constexpr std::uint32_t kFarUs = 2000;

/// Faster ones are told as this one.
inline constexpr std::uint32_t kMbitMost = 100'000;

/// 0: short, or not known.
struct Lines {
  std::uint32_t farthest_us = 0;   // there and back between the two that are the farthest apart
  std::uint32_t neighbour_us = 0;  // between two neighbours in the ring, in the mean
  std::uint32_t mbit_per_s = 0;    // of the slowest link between two
  Sites sites = {};                // in the order of the ring; machines, where all ranks are near
  std::uint32_t near_us = 0;       // between two neighbours of one site, in the mean
  bool local = false;              // all links stay on one machine, and need no network
  bool operator==(const Lines&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("farthest_us", self.farthest_us);
    visit("neighbour_us", self.neighbour_us);
    visit("mbit_per_s", self.mbit_per_s);
    visit("sites", self.sites, kMembersMax);
    visit("near_us", self.near_us);
    visit("local", self.local);
  }
};

}  // namespace pccl
