#include "membership/trips.h"

#include <algorithm>

#include "membership/members.h"

namespace pccl {

Trips own_trips(PeerId self, const std::vector<PeerId>& ring,
                const std::function<Trip(PeerId)>& trip_to) {
  Trips own;
  const auto at = std::find(ring.begin(), ring.end(), self);
  if (at == ring.end()) return own;
  const PeerId next = at + 1 == ring.end() ? ring.front() : *(at + 1);
  own.local = ring.size() > 1;
  own.host = static_cast<std::uint32_t>(at - ring.begin());
  for (std::uint32_t place = 0; place < ring.size(); ++place) {
    const PeerId peer = ring[place];
    if (peer == self) continue;
    const Trip trip = trip_to(peer);
    own.local = own.local && trip.local;
    if (trip.local) own.host = std::min(own.host, place);
    const auto us = static_cast<std::uint32_t>(std::min<std::uint64_t>(trip.us, kTripUsMax));
    own.farthest_us = std::max(own.farthest_us, us);
    if (peer == next) own.neighbour_us = us;
  }
  return own;
}

namespace {

/// From this trip on two neighbours are of two sites.
std::uint32_t border_us(std::uint32_t farthest_us) {
  return std::max(kFarUs, farthest_us / kSiteIsNearer);
}

Sites sites_of(const std::vector<Trips>& said, std::uint32_t farthest_us) {
  std::vector<std::uint32_t> sites;
  if (farthest_us < kFarUs) {
    for (const Trips& trips : said) sites.push_back(trips.host);
    return numbered_sites(sites);
  }
  std::uint32_t site = 0;
  for (const Trips& trips : said) {
    sites.push_back(site);
    site += trips.neighbour_us >= border_us(farthest_us) ? 1 : 0;
  }
  // The ring is closed: what comes after its last border belongs to its begin.
  for (std::uint32_t& last : sites) last = last == site ? 0 : last;
  return numbered_sites(sites);
}

}  // namespace

Lines lines_of_all(const std::vector<Trips>& said, std::uint32_t mbit) {
  if (said.size() < 2) return {};
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  for (const Trips& trips : said) {
    second = std::max(second, std::min(first, trips.farthest_us));
    first = std::max(first, trips.farthest_us);
  }
  const std::uint32_t farthest_us = std::min(second, kTripUsMax);
  std::uint64_t sum_us = 0;
  std::uint64_t near_sum_us = 0;
  std::uint64_t near = 0;
  for (const Trips& trips : said) {
    sum_us += std::min(trips.neighbour_us, farthest_us);
    if (trips.neighbour_us >= border_us(farthest_us)) continue;
    near_sum_us += trips.neighbour_us;
    ++near;
  }
  Lines lines{farthest_us, static_cast<std::uint32_t>(sum_us / said.size()), mbit,
              sites_of(said, farthest_us)};
  if (!lines.sites.empty() && farthest_us >= kFarUs && near > 0) {
    lines.near_us = static_cast<std::uint32_t>(near_sum_us / near);
  }
  lines.local = std::ranges::all_of(said, &Trips::local);
  return lines;
}

std::string sites_text(const Sites& sites, const std::vector<std::uint32_t>& ranks) {
  const auto places = ranks_by_site(sites);
  std::string text = std::to_string(places.size()) + " sites: ranks ";
  for (std::size_t site = 0; site < places.size(); ++site) {
    if (site > 0) text += " | ";
    for (const std::uint32_t place : places[site]) {
      if (place != places[site].front()) text += ", ";
      text += std::to_string(ranks.at(place));
    }
  }
  return cut_text(text);
}

}  // namespace pccl
