// The sites at which the ranks of an operation stand (base/sites.h), as one rank sees them. Without
// sites all ranks stand at one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/assert.h"
#include "base/sites.h"
#include "collectives/builder.h"
#include "collectives/schedule.h"

namespace pccl {

struct OwnSite {
  explicit OwnSite(const CollectiveArgs& args) : sites(ranks_by_site(args.lines.sites)) {
    if (sites.empty()) {
      sites.emplace_back(args.size);
      std::iota(sites[0].begin(), sites[0].end(), 0U);
    } else {
      PCCL_ASSERT(args.lines.sites.size() == args.size, args.lines.sites.size(), args.size);
      home = args.lines.sites[args.rank];
    }
    while (mates()[place] != args.rank) ++place;
    for (const auto& ranks : sites) most = std::max(most, static_cast<std::uint32_t>(ranks.size()));
  }

  /// Ranks of the own site.
  [[nodiscard]] const std::vector<std::uint32_t>& mates() const { return sites[home]; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(mates().size()); }
  [[nodiscard]] std::uint32_t mate(std::int64_t distance) const {
    return mates()[around(place, distance, size())];
  }
  /// At the own site, by `distance` before that of this rank.
  [[nodiscard]] std::uint32_t place_before(std::uint32_t distance) const {
    return before(place, distance, size());
  }
  /// Number of sites.
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(sites.size()); }
  [[nodiscard]] std::uint32_t site_after(std::uint32_t distance) const {
    return around(home, distance, count());
  }

  std::vector<std::vector<std::uint32_t>> sites;  // their ranks, in the order of the ring
  std::uint32_t home = 0;                         // the own site
  std::uint32_t place = 0;                        // of this rank there
  std::uint32_t most = 1;                         // ranks of the largest site
};

}  // namespace pccl
