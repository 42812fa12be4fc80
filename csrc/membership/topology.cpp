#include "membership/topology.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "membership/fastest_ring.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kSilentS = 20;      // longer than a member measures
constexpr std::uint64_t kAgainS = 20;       // from one pair that is measured again to the next one
constexpr std::uint64_t kVoteS = 600;       // from one vote for a ring to the next one
constexpr std::uint64_t kVotePercent = 25;  // a ring is so much better, or no boundary votes for it
constexpr std::uint64_t kChangePercent = 5;  // as kVotePercent, where an epoch begins anyway
constexpr std::uint64_t kRateMax = std::uint64_t{1} << 40;
constexpr std::uint64_t kTripMaxUs = 60'000'000;
// A ring passes pieces of some MiB on, and each waits for half a round trip: of two rings with
// links of one rate the one with the shorter ways is the faster. 2^50 / 2^22 bytes / 2, for 1 us.
constexpr std::uint64_t kTimeOfTripUs = 134;

/// Rates that differ by less than measurements do are one: the three highest bits.
std::uint64_t rough(std::uint64_t rate) {
  const int low = std::max(0, static_cast<int>(std::bit_width(rate)) - 3);
  return rate >> low << low;
}

bool is_measured(std::size_t members) {
  return members >= kMeasuredLeast && members <= kMeasuredMost;
}

std::string in_mbit(std::uint64_t rate) {
  const std::uint64_t tenths = rate / 12'500;
  return tenths >= 1000 ? std::to_string(tenths / 10)
                        : std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

/// Milliseconds in which a piece of 4 MiB goes round.
std::string in_ms(std::uint64_t time) { return std::to_string((time >> 10) * 1000 >> 18); }

}  // namespace

/// Is `a` so many percent better than `b`: its slowest link, or, where that one is about as fast,
/// the way round?
bool Topology::better(const Worth& a, const Worth& b, std::uint64_t percent) {
  if (100 * a.slowest > (100 + percent) * b.slowest) return true;
  if (100 * a.slowest < 80 * b.slowest) return false;
  return (100 + percent) * a.time < 100 * b.time;
}

void Topology::begin(std::map<std::uint32_t, std::vector<PeerId>> rings, std::set<Pair> apart,
                     std::uint64_t now_s) {
  std::map<PeerId, std::uint32_t> group_of;
  std::map<std::uint32_t, Group> groups;
  for (auto& [number, ring] : rings) {
    for (const PeerId p : ring) group_of[p] = number;
    groups[number].ring = std::move(ring);
  }
  const auto is_gone = [&](const Pair& pair) {
    const auto from = group_of.find(pair.first);
    const auto to = group_of.find(pair.second);
    return from == group_of.end() || to == group_of.end() || from->second != to->second;
  };
  std::erase_if(links_, [&](const auto& link) { return is_gone(link.first); });
  std::erase_if(asked_, [&](const auto& asked) { return is_gone(asked.first); });
  apart_ = std::move(apart);
  if (std::exchange(wants_vote_, false)) not_before_s_ = now_s + kVoteS;
  groups_ = std::move(groups);
  for (auto& [number, group] : groups_) {
    group.changed = true;
    group.again_s = now_s + kAgainS;
  }
}

std::vector<Topology::Pair> Topology::next(std::uint64_t now_s) {
  std::vector<Pair> out;
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    const auto [pair, since_s] = *asked++;
    if (since_s + kSilentS <= now_s) measured(pair.first, pair.second, 0, 0, now_s);
  }
  std::set<PeerId> busy;
  for (const auto& [pair, since_s] : asked_) busy.insert({pair.first, pair.second});
  wants_vote_ = false;
  for (auto& [number, group] : groups_) {
    if (!is_measured(group.ring.size())) continue;
    if (!ask_new(group, busy, now_s, out)) ask_again(group, busy, now_s, out);
    if (group.known && std::exchange(group.changed, false)) look_for_best(group);
    wants_vote_ = wants_vote_ || (group.much_better && now_s >= not_before_s_);
  }
  return out;
}

bool Topology::lacks() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return is_measured(group.second.ring.size()) && !group.second.known;
  });
}

void Topology::ask(Pair pair, std::set<PeerId>& busy, std::uint64_t now_s, std::vector<Pair>& out) {
  busy.insert({pair.first, pair.second});
  asked_[pair] = now_s;
  out.push_back(pair);
}

/// False: all pairs of the group are known. In each round each member sends to another one.
bool Topology::ask_new(Group& group, std::set<PeerId>& busy, std::uint64_t now_s,
                       std::vector<Pair>& out) {
  if (group.known) return false;
  const std::size_t size = group.ring.size();
  auto idle = std::count_if(group.ring.begin(), group.ring.end(),
                            [&](PeerId p) { return !busy.contains(p); });
  if (idle < 2) return true;
  group.known = true;
  for (std::size_t far = 1; far < size && idle > 1; ++far) {
    for (std::size_t i = 0; i < size; ++i) {
      const Pair pair{group.ring[i], group.ring[(i + far) % size]};
      if (is_apart(pair) || links_.contains(pair)) continue;
      group.known = false;
      if (busy.contains(pair.first) || busy.contains(pair.second)) continue;
      ask(pair, busy, now_s, out);
      idle -= 2;
    }
  }
  return !group.known;
}

/// The pair whose measurement is the oldest: now one of the ring, now one of all.
void Topology::ask_again(Group& group, std::set<PeerId>& busy, std::uint64_t now_s,
                         std::vector<Pair>& out) {
  if (now_s < group.again_s) return;
  group.again_s = now_s + kAgainS;
  group.of_ring = !group.of_ring;
  const std::size_t size = group.ring.size();
  std::optional<Pair> oldest;
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t far = 1; far < (group.of_ring ? 2 : size); ++far) {
      const auto link = links_.find({group.ring[i], group.ring[(i + far) % size]});
      if (link == links_.end() || is_apart(link->first)) continue;
      if (!oldest || link->second.at_s < links_.at(*oldest).at_s) oldest = link->first;
    }
  }
  if (!oldest || busy.contains(oldest->first) || busy.contains(oldest->second)) return;
  ask(*oldest, busy, now_s, out);
}

void Topology::measured(PeerId from, PeerId to, std::uint64_t rate, std::uint64_t trip_us,
                        std::uint64_t now_s) {
  if (asked_.erase({from, to}) == 0) return;
  links_[{from, to}] = {std::min(rate, kRateMax), std::min(trip_us, kTripMaxUs), now_s};
  for (auto& [number, group] : groups_) {
    if (std::find(group.ring.begin(), group.ring.end(), from) == group.ring.end()) continue;
    group.changed = true;
  }
}

void Topology::look_for_best(Group& group) {
  const auto size = static_cast<std::uint32_t>(group.ring.size());
  Rates rates(size);
  Rates roughly(size);
  for (std::uint32_t a = 0; a < size; ++a) {
    for (std::uint32_t b = 0; b < size; ++b) {
      const auto link = links_.find({group.ring[a], group.ring[b]});
      if (link == links_.end() || link->second.rate == 0 || is_apart(link->first)) continue;
      const auto& [rate, trip_us, at_s] = link->second;
      const std::uint64_t time = time_of_byte(rate) + trip_us * kTimeOfTripUs;
      rates.set(a, b, rate, time);
      roughly.set(a, b, rough(rate), time);
    }
  }
  // The present ring is the order of these ranks.
  std::vector<std::uint32_t> present(size);
  for (std::uint32_t i = 0; i < size; ++i) present[i] = i;
  const Ring ring = fastest_ring(roughly);
  const Worth now{slowest_of(rates, present), time_of_all(rates, present)};
  const Worth then{slowest_of(rates, ring.order), time_of_all(rates, ring.order)};
  group.worth = now;
  group.best.clear();
  group.much_better = better(then, now, kVotePercent);
  if (!better(then, now, kChangePercent)) return;
  group.best_worth = then;
  for (const std::uint32_t place : ring.order) group.best.push_back(group.ring[place]);
}

std::vector<PeerId> Topology::ring(std::uint32_t number, const std::vector<PeerId>& mates) const {
  std::vector<PeerId> out;
  const auto group = groups_.find(number);
  if (group != groups_.end()) {
    const auto& [ring, best] = std::pair(group->second.ring, group->second.best);
    for (const PeerId p : best.empty() ? ring : best) {
      if (std::find(mates.begin(), mates.end(), p) != mates.end()) out.push_back(p);
    }
  }
  for (const PeerId p : mates) {
    if (std::find(out.begin(), out.end(), p) == out.end()) out.push_back(p);
  }
  return out;
}

std::string Topology::why(std::uint32_t number) const {
  const auto group = groups_.find(number);
  if (group == groups_.end() || group->second.best.empty()) return "";
  const auto& [now, then] = std::pair(group->second.worth, group->second.best_worth);
  return "its slowest link carries " + in_mbit(then.slowest) +
         " Mbit/s (before: " + in_mbit(now.slowest) + "), and 4 MiB go round in " +
         in_ms(then.time) + " ms (before: " + in_ms(now.time) + ")";
}

}  // namespace pccl::master
