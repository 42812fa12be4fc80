// Which ranks are near each other: those of one host, of one data centre.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pccl {

/// The number of the site of each rank, in the order of the ring, from 0 in the order in which
/// sites come there; where no two ranks are far from each other, of its machine. Empty: not known,
/// or of no use (all at one site, or nobody beside another one).
using Sites = std::vector<std::uint32_t>;

/// More sites are of no use: what their ranks send to each other grows with their number.
inline constexpr std::uint32_t kSitesMax = 16;
/// So many times nearer than the two farthest are those of one site.
inline constexpr std::uint32_t kSiteIsNearer = 8;

/// The sites of some ranks, given by any numbers; numbered anew. Empty: as above, or too many.
[[nodiscard]] inline Sites numbered_sites(const std::vector<std::uint32_t>& given) {
  std::vector<std::uint32_t> seen;
  Sites out;
  for (const std::uint32_t site : given) {
    std::uint32_t number = 0;
    while (number < seen.size() && seen[number] != site) ++number;
    if (number == seen.size()) seen.push_back(site);
    if (seen.size() > kSitesMax) return {};
    out.push_back(number);
  }
  return seen.size() > 1 && seen.size() < out.size() ? out : Sites{};
}

/// Of each site its ranks, in the order of the ring. `sites`: numbered from 0, or empty.
[[nodiscard]] inline std::vector<std::vector<std::uint32_t>> ranks_by_site(const Sites& sites) {
  std::vector<std::vector<std::uint32_t>> ranks;
  for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
    if (sites[rank] >= ranks.size()) ranks.resize(sites[rank] + 1);
    ranks[sites[rank]].push_back(rank);
  }
  return ranks;
}

}  // namespace pccl
