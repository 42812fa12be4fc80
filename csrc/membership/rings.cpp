// The orders in which data go round, as the master knows them: what is measured (topology.h)
// becomes the ring of the next epoch. All members get it in the proposal, so all have the same.
#include <algorithm>
#include <utility>

#include "membership/master_rules.h"
#include "membership/trips.h"

namespace pccl::master {

void begin_rings(State& s) {
  if (own(s) == nullptr) return;
  const Epoch& epoch = *own(s);
  std::map<std::uint32_t, std::vector<PeerId>> rings;
  for (const auto& [group, mates] : s.groups) rings[group] = ring_of(epoch, group);
  std::set<Topology::Pair> apart;
  for (const Relay& relay : epoch.relays) apart.insert({relay.a, relay.b});
  s.topology.begin(std::move(rings), std::move(apart), s.now_s);
}

void ask_to_measure(State& s, Actions& out) {
  if (!s.config.measure_links || !s.running || s.proposal) return;
  for (const auto& [from, to, known] : s.topology.next(s.now_s)) {
    send(s, from, Measure{to, known}, out);
  }
}

void hear_of_rate(State& s, PeerId p, const Measured& m) {
  s.topology.measured(p, m.peer, m.rate, m.trip_us, s.now_s);
}

std::vector<std::uint32_t> rings(const State& s, const std::vector<Member>& members) {
  if (!s.config.measure_links) return {};
  std::map<PeerId, std::uint32_t> places;
  for (const Member& m : members) {
    const auto place = static_cast<std::uint32_t>(places.size());
    places.emplace(m.peer(), place);
  }
  std::vector<std::uint32_t> ring;
  bool in_rank_order = true;
  for (const auto& [group, mates] : by_group(members)) {
    const std::vector<PeerId> order = s.topology.ring(group, mates);
    in_rank_order = in_rank_order && order == mates;
    for (const PeerId p : order) ring.push_back(places.at(p));
  }
  return in_rank_order ? std::vector<std::uint32_t>{} : ring;
}

Lines lines(const State& s, std::uint32_t group) {
  const std::vector<PeerId> ring = ring_of(*own(s), group);
  // Those of two that reach each other over a third are not known, and its line carries all of
  // them.
  for (const Relay& relay : own(s)->relays) {
    if (std::find(ring.begin(), ring.end(), relay.a) != ring.end()) return {};
  }
  std::vector<Trips> said;
  for (const PeerId p : ring) {
    const std::optional<Trips>& trips = s.peers.at(p).trips;
    if (!trips) return {};  // it has said none
    said.push_back(*trips);
  }
  Lines lines = lines_of_all(said, s.topology.mbit(group));
  if (!s.config.measure_links) lines = {.local = lines.local};
  if (!lines.sites.empty() && !s.topology.may_cross(ring, lines.sites)) {
    lines.sites.clear();
    lines.near_us = 0;
  }
  return lines;
}

namespace {

/// For the log; nothing where there is but one.
std::string of_group(std::uint32_t group, std::size_t groups) {
  return groups > 1 ? " of peer group " + std::to_string(group) : "";
}

}  // namespace

std::string rate_text(const State& s, std::uint32_t group, std::uint32_t mbit) {
  return "the members" + of_group(group, s.groups.size()) +
         " are far from each other, and choose the steps of their calls by " +
         (mbit == 0 ? "no rate: their links are not measured"
                    : "the rate of their slowest link, " + std::to_string(mbit) + " Mbit/s");
}

std::string text_of_sites(State& s, std::uint32_t group, const Sites& sites) {
  SitesTold& told = s.sites_told[group];  // a master that has just begun has told none
  told.site.clear();
  std::string now;
  if (!sites.empty()) {
    std::vector<std::uint32_t> ranks;
    for (const PeerId p : ring_of(*own(s), group)) {
      told.site[p] = 1 + sites.at(ranks.size());
      ranks.push_back(rank_of(own(s)->members, p));
    }
    now = sites_text(sites, ranks);
  }
  if (now == told.text) return "";
  told.text = now;
  const std::string who = "the members" + of_group(group, s.groups.size());
  if (now.empty()) return who + " stand at no sites any more: calls go in one level";
  return who + " stand at " + now + "; calls may go in two levels";
}

std::vector<std::string> changed_rings(const State& s, const Epoch* before, const Epoch& epoch) {
  std::vector<std::string> lines;
  if (before == nullptr || before->members != epoch.members) return lines;
  const auto groups = by_group(epoch.members);
  for (const auto& [group, mates] : groups) {
    const std::vector<PeerId> ring = ring_of(epoch, group);
    if (ring == ring_of(*before, group)) continue;
    std::string text = "data" + of_group(group, groups.size()) + " go round in another order";
    for (std::size_t i = 0; i < ring.size(); ++i) {
      text += (i == 0 ? ": ranks " : ", ") + std::to_string(rank_of(epoch.members, ring[i]));
    }
    const std::string why = s.topology.why(group);
    lines.push_back(cut_text(text + (why.empty() ? "" : "; " + why)));
  }
  return lines;
}

}  // namespace pccl::master
