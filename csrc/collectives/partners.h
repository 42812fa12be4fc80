// Which ranks at other sites a rank exchanges data with, where parts may differ in size by rank
// (two_level_all_gather.cpp, two_level_reduce_scatter.cpp).
//
// A rank at another site has a partner here: the rank whose place at this site is its own one
// there, modulo the number of ranks here. So a rank has one partner at each other site, and is the
// partner of some ranks there, or of none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/builder.h"
#include "collectives/own_site.h"

namespace pccl {

/// The ranks whose parts come to `place` of a site, or whose sums are made there: the rank there,
/// then those of other sites.
class Partners {
 public:
  explicit Partners(const OwnSite& own) : of_place_(own.size()) {
    for (std::uint32_t place = 0; place < own.size(); ++place) {
      of_place_[place].push_back(own.mates()[place]);
    }
    for (std::uint32_t d = 1; d < own.count(); ++d) {
      const auto& there = own.sites[own.site_after(d)];
      for (std::size_t i = 0; i < there.size(); ++i) of_place_[i % own.size()].push_back(there[i]);
    }
  }

  [[nodiscard]] const std::vector<std::uint32_t>& of(std::uint32_t place) const {
    return of_place_[place];
  }

 private:
  std::vector<std::vector<std::uint32_t>> of_place_;
};

/// The partner of this rank at a site.
inline std::uint32_t partner(const OwnSite& own, std::uint32_t site) {
  const auto& there = own.sites[site];
  return there[own.place % there.size()];
}

}  // namespace pccl
