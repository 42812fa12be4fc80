#include "membership/topology.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/lines.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kSilentLooks = 20;  // longer than a member measures
constexpr std::uint64_t kAgainS = 30;       // from links that are measured again to the next ones
constexpr std::uint64_t kByItself = 8;    // of so many measurements of a link of the ring one sends
constexpr std::size_t kAgainMembers = 6;  // so many have one link of the ring measured again
constexpr std::uint64_t kPartS = 30;      // from a look at a part of a group to the next one
constexpr std::uint64_t kVoteS = 600;     // from one vote for a ring to the next one
constexpr std::uint64_t kUnsureS = 30;    // twice that, four times, ... kVoteS: rings not confirmed
constexpr std::uint64_t kVotePercent = 25;  // a ring is so much better, or no boundary votes for it
constexpr std::uint64_t kSurePercent = 100;  // as kVotePercent: one measurement more confirms it,
constexpr std::size_t kConfirms = 2;         // else so many
constexpr std::uint64_t kChangePercent = 5;  // as kVotePercent, where an epoch begins anyway
constexpr std::uint64_t kRateMin = 1000;
constexpr std::uint64_t kRateMax = std::uint64_t{1} << 40;
constexpr std::uint64_t kRateCompared = std::uint64_t{1} << 32;  // times members^2: no overflow
constexpr std::uint64_t kTripMaxUs = 60'000'000;
// A ring passes pieces of some MiB on, and each waits for half a round trip: of two rings with
// links of one rate the one with the shorter ways is the faster. 2^50 / 2^22 bytes / 2, for 1 us.
constexpr std::uint64_t kTimeOfTripUs = 134;
// A link that cannot be measured, or goes over a third member, counts as so much slower than the
// slowest one: rings avoid it, and those that cannot are still compared.
constexpr std::uint64_t kDeadIsSlower = 4;
constexpr std::uint32_t kOtherRate = 4;  // a rate is so many times another one, or worth no vote
constexpr std::size_t kAloneLinks = 3;
constexpr std::uint64_t kAssumedRate = kMbitAssumed * 125'000ULL;  // of links to newcomers, at most
constexpr std::uint64_t kRateWaitS = 14'400;  // twice kUnsureS, four times, ... from look to look

/// Rates that differ by less than measurements do are one: the three highest bits.
std::uint64_t rough(std::uint64_t rate) {
  const int low = std::max(0, static_cast<int>(std::bit_width(rate)) - 3);
  return rate >> low << low;
}

Rates roughly(const Rates& rates) {
  Rates rough_rates(rates.size());
  for (std::uint32_t a = 0; a < rates.size(); ++a) {
    for (std::uint32_t b = 0; b < rates.size(); ++b) {
      if (a != b) rough_rates.set(a, b, rough(rates.of(a, b)), rates.byte_time(a, b));
    }
  }
  return rough_rates;
}

std::set<Topology::Pair> links_of(const std::vector<PeerId>& ring) {
  std::set<Topology::Pair> links;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    links.emplace(ring[i], ring[(i + 1) % ring.size()]);
  }
  return links;
}

bool contains(const std::vector<PeerId>& peers, PeerId peer) {
  return std::find(peers.begin(), peers.end(), peer) != peers.end();
}

bool has_members(const std::vector<PeerId>& ring, const std::vector<PeerId>& peers) {
  return ring.size() == peers.size() &&
         std::all_of(peers.begin(), peers.end(), [&](PeerId p) { return contains(ring, p); });
}

std::uint32_t mbit_of(std::uint64_t rate) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(rate / 125'000, 1, kMbitMost));
}

bool is_other(std::uint32_t mbit, std::uint32_t than) {
  if (mbit == 0 || than == 0) return mbit != than;
  return mbit / kOtherRate >= than || mbit <= than / kOtherRate;
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
  for (const auto& [number, group] : groups_) {
    if (group.much_better) not_before_s_ = now_s + kVoteS;
    if (group.votes_for_rate) no_rate_before_s_ = now_s + kVoteS;
  }
  std::map<PeerId, std::uint32_t> group_of;
  const std::map<std::uint32_t, Group> before = std::exchange(groups_, {});
  std::size_t pairs = 0;
  for (auto& [number, ring] : rings) {
    for (const PeerId p : ring) group_of[p] = number;
    const std::size_t size = ring.size();
    const std::size_t more = size * (size - 1);
    Group& group = groups_[number];
    group.is_measured =
        size >= kMeasuredLeast && size <= kMeasuredMost && pairs + more <= kMeasuredPairsMax;
    if (group.is_measured) pairs += more;
    group.ring = std::move(ring);
    const auto same = before.find(number);
    if (same != before.end()) {
      const Group& was = same->second;
      group.told_before = was.told;
      group.rate = group.is_measured ? was.rate : 0;
      const auto is_old = [&](PeerId p) { return contains(was.ring, p); };
      if (!std::all_of(group.ring.begin(), group.ring.end(), is_old)) {
        group.rate = std::min(group.rate, kAssumedRate);
      }
      if (has_members(was.ring, group.ring)) {
        group.rate_s = was.rate_s;
        group.rate_wait_s = was.rate_wait_s;
      }
    }
    const bool still_lacks = same != before.end() && !same->second.known;
    group.lacks_since_s = still_lacks ? same->second.lacks_since_s : now_s;
    group.part_s = now_s + kPartS;
    group.again_s = now_s + kAgainS + number % kAgainS;
  }
  const auto is_gone = [&](const Pair& pair) {
    const auto from = group_of.find(pair.first);
    const auto to = group_of.find(pair.second);
    return from == group_of.end() || to == group_of.end() || from->second != to->second ||
           !groups_.at(from->second).is_measured;
  };
  std::erase_if(links_, [&](const auto& link) { return is_gone(link.first); });
  std::erase_if(asked_, [&](const auto& asked) { return is_gone(asked.first); });
  apart_ = std::move(apart);
}

std::vector<Topology::Question> Topology::next(std::uint64_t now_s) {
  Questions out;
  ++looks_;
  std::set<PeerId> busy;
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    const auto [pair, since] = *asked++;
    if (since + kSilentLooks <= looks_) {
      measured(pair.first, pair.second, 0, 0, now_s);
    } else {
      busy.insert({pair.first, pair.second});
    }
  }
  // One in each call: a look at a large group takes 50 ms.
  const std::uint32_t* due = nullptr;
  for (auto& [number, group] : groups_) {
    if (!group.is_measured) continue;
    for (const Pair& pair : group.to_confirm) ask(pair, busy, out);
    look_for_rate(group, now_s);
    if (!group.alone.empty()) {
      if (!is_measuring(group)) ask(*group.alone.begin(), busy, out);
      continue;
    }
    ask_new(group, busy, out);
    ask_again(group, busy, now_s, out);
    if (!look_is_due(group, now_s)) continue;
    if (due == nullptr || (*due <= looked_at_ && number > looked_at_)) due = &number;
  }
  if (due != nullptr) {
    looked_at_ = *due;
    look(groups_.at(*due), now_s);
  }
  return out;
}

bool Topology::lacks() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group.second.is_measured && !group.second.known;
  });
}

bool Topology::wants_vote() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group.second.much_better || group.second.votes_for_rate;
  });
}

/// False: an end of the link measures another one.
bool Topology::ask(const Pair& pair, std::set<PeerId>& busy, Questions& out, std::uint64_t known) {
  if (busy.contains(pair.first) || busy.contains(pair.second)) return false;
  busy.insert({pair.first, pair.second});
  asked_[pair] = looks_;
  out.push_back({pair.first, pair.second, known});
  return true;
}

/// In each round each member sends to another one.
void Topology::ask_new(Group& group, std::set<PeerId>& busy, Questions& out) {
  if (group.known) return;
  const auto is_idle = [&](PeerId p) { return !busy.contains(p); };
  if (std::count_if(group.ring.begin(), group.ring.end(), is_idle) < 2) return;
  const std::size_t size = group.ring.size();
  bool known = true;
  for (std::size_t far = 1; far < size; ++far) {
    for (std::size_t i = 0; i < size; ++i) {
      const Pair pair{group.ring[i], group.ring[(i + far) % size]};
      if (is_known(pair)) continue;
      known = false;
      ask(pair, busy, out);
    }
  }
  group.known = known;
}

/// Those whose measurements are the oldest: now some of the ring, now one of all. Operations show
/// what a link of the ring carries. They do not show how much more it would carry, so now and then
/// it is measured by itself; and of a link beside the ring operations show only what they need.
void Topology::ask_again(Group& group, std::set<PeerId>& busy, std::uint64_t now_s,
                         Questions& out) {
  if (!group.known || now_s < group.again_s) return;
  group.again_s = now_s + kAgainS;
  group.of_ring = !group.of_ring;
  const std::size_t size = group.ring.size();
  std::vector<std::pair<std::uint64_t, Pair>> pairs;
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t far = 1; far < (group.of_ring ? 2 : size); ++far) {
      const Pair pair{group.ring[i], group.ring[(i + far) % size]};
      const auto link = links_.find(pair);
      if (link != links_.end() && !is_apart(pair)) pairs.emplace_back(link->second.at_s, pair);
    }
  }
  const std::size_t wanted = group.of_ring ? std::max<std::size_t>(1, size / kAgainMembers) : 1;
  const std::size_t before = out.size();
  std::sort(pairs.begin(), pairs.end());
  for (const auto& [at_s, pair] : pairs) {
    if (out.size() == before + wanted) break;
    Link& link = links_[pair];
    const bool by_itself = !group.of_ring || link.failed || (link.again + 1) % kByItself == 0;
    if (ask(pair, busy, out, by_itself ? 0 : link.rate) && group.of_ring) ++link.again;
  }
}

void Topology::measured(PeerId from, PeerId to, std::uint64_t rate, std::uint64_t trip_us,
                        std::uint64_t now_s) {
  const Pair pair{from, to};
  if (asked_.erase(pair) == 0) return;
  Link& link = links_[pair];
  if (rate > 0) {
    link = {std::clamp(rate, kRateMin, kRateMax),
            std::min(trip_us, kTripMaxUs),
            now_s,
            false,
            link.rate,
            link.again};
  } else if (!std::exchange(link.failed, true)) {
    link.at_s = 0;  // the next to be measured again
  } else {
    link = {0, 0, now_s, true, 0, link.again};
  }
  for (auto& [number, group] : groups_) {
    if (!contains(group.ring, from)) continue;
    group.changed = true;
    group.to_confirm.erase(pair);
    measured_alone(group, pair, rate > 0 ? link.rate : 0, now_s);
  }
}

std::map<PeerId, Topology::Slowest> Topology::slowest() const {
  std::map<PeerId, Slowest> out;
  for (const auto& [pair, link] : links_) {
    if (link.rate == 0) continue;
    Slowest& slowest = out[pair.first];
    if (slowest.rate > 0 && slowest.rate <= link.rate) continue;
    slowest = {pair.second, link.rate, link.trip_us};
  }
  return out;
}

// ---------------------------------------------------------------------------------------- rings

bool Topology::look_is_due(const Group& group, std::uint64_t now_s) const {
  if (!group.changed || group.much_better || !group.to_confirm.empty()) return false;
  return group.known || now_s >= group.part_s;
}

/// Members of which all links to each other are known, in the order of the ring: those with the
/// most unknown links are left out first.
std::vector<PeerId> Topology::known_members(const Group& group) const {
  if (group.known) return group.ring;
  const std::size_t size = group.ring.size();
  std::vector<std::vector<bool>> unknown(size, std::vector<bool>(size, false));
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = 0; b < size; ++b) {
      if (a == b || is_known({group.ring[a], group.ring[b]})) continue;
      unknown[a][b] = unknown[b][a] = true;
    }
  }
  std::vector<std::size_t> count;
  for (const std::vector<bool>& of : unknown) {
    count.push_back(static_cast<std::size_t>(std::count(of.begin(), of.end(), true)));
  }
  std::vector<bool> left_out(size, false);
  for (;;) {
    const auto worst = std::max_element(count.begin(), count.end());
    if (worst == count.end() || *worst == 0) break;
    const auto a = static_cast<std::size_t>(worst - count.begin());
    left_out[a] = true;
    count[a] = 0;
    for (std::size_t b = 0; b < size; ++b) {
      if (unknown[a][b] && count[b] > 0) --count[b];
    }
  }
  std::vector<PeerId> members;
  for (std::size_t a = 0; a < size; ++a) {
    if (!left_out[a]) members.push_back(group.ring[a]);
  }
  return members;
}

Rates Topology::rates_of(const std::vector<PeerId>& members) const {
  const auto size = static_cast<std::uint32_t>(members.size());
  std::uint64_t least = kRateMax;
  Rates rates(size);
  for (std::uint32_t a = 0; a < size; ++a) {
    for (std::uint32_t b = 0; b < size; ++b) {
      const auto found = links_.find({members[a], members[b]});
      if (found == links_.end() || found->second.rate == 0 || is_apart(found->first)) continue;
      const Link& link = found->second;
      rates.set(a, b, link.rate, time_of_byte(link.rate) + link.trip_us * kTimeOfTripUs);
      least = std::min(least, link.rate);
    }
  }
  for (std::uint32_t a = 0; a < size; ++a) {
    for (std::uint32_t b = 0; b < size; ++b) {
      if (a != b && rates.of(a, b) == 0) rates.set(a, b, least / kDeadIsSlower);
    }
  }
  return rates;
}

/// Of a ring of these members: `rates` has them by their places in `members`.
Topology::Worth Topology::worth_of(const Rates& rates, const std::vector<PeerId>& members,
                                   const std::vector<PeerId>& ring) {
  std::vector<std::uint32_t> places;
  for (const PeerId p : ring) {
    const auto at = std::find(members.begin(), members.end(), p);
    if (at != members.end()) places.push_back(static_cast<std::uint32_t>(at - members.begin()));
  }
  return {slowest_of(rates, places), time_of_all(rates, places)};
}

void Topology::look(Group& group, std::uint64_t now_s) {
  group.changed = false;
  group.part_s = now_s + kPartS;
  const std::vector<PeerId> members = known_members(group);
  if (members.size() < kMeasuredLeast) return;
  const Rates rates = rates_of(members);
  group.worth = worth_of(rates, members, members);
  if (group.confirms == 0) return look_for_best(group, rates, members, now_s);
  group.best_worth = worth_of(rates, members, group.best);
  group.much_better = better(group.best_worth, group.worth, kVotePercent);
  const bool sure = better(group.best_worth, group.worth, kSurePercent);
  if (group.much_better && !sure && group.confirms < kConfirms) {
    group.much_better = false;
    return confirm(group);
  }
  group.confirms = 0;
  if (!better(group.best_worth, group.worth, kChangePercent)) group.best.clear();
  if (group.much_better) return;  // the next epoch begins anew
  group.unsure_s = std::min(kVoteS, 2 * std::max(kUnsureS, group.unsure_s));
  group.confirm_s = now_s + group.unsure_s;
}

void Topology::look_for_best(Group& group, const Rates& rates, const std::vector<PeerId>& members,
                             std::uint64_t now_s) {
  const Ring found = fastest_ring(roughly(rates));
  std::vector<PeerId> ring;
  for (const std::uint32_t place : found.order) ring.push_back(members[place]);
  for (const PeerId p : group.ring) {
    if (!contains(ring, p)) ring.push_back(p);
  }
  group.best.clear();
  group.best_worth = worth_of(rates, members, ring);
  if (!better(group.best_worth, group.worth, kChangePercent)) return;
  group.best = std::move(ring);
  // Where members come and go all the time a part is never the whole.
  const bool may_vote = now_s >= not_before_s_ && now_s >= group.confirm_s &&
                        (group.known || now_s >= group.lacks_since_s + kVoteS);
  if (!may_vote || !better(group.best_worth, group.worth, kVotePercent)) return;
  confirm(group);
}

/// Has the links measured once more in which the two rings differ.
void Topology::confirm(Group& group) {
  ++group.confirms;
  const std::set<Pair> present = links_of(group.ring);
  const std::set<Pair> other = links_of(group.best);
  for (const Pair& pair : other) {
    if (!present.contains(pair) && !is_apart(pair)) group.to_confirm.insert(pair);
  }
  for (const Pair& pair : present) {
    if (!other.contains(pair) && !is_apart(pair)) group.to_confirm.insert(pair);
  }
  group.changed = group.to_confirm.empty();  // then there is nothing to wait for
}

std::vector<PeerId> Topology::ring(std::uint32_t number, const std::vector<PeerId>& mates) const {
  std::vector<PeerId> out;
  const auto group = groups_.find(number);
  if (group != groups_.end()) {
    const Group& known = group->second;
    // What a vote is not for was not confirmed.
    const auto much_better = [](const auto& entry) { return entry.second.much_better; };
    const bool for_rate = wants_vote() && std::none_of(groups_.begin(), groups_.end(), much_better);
    const bool stays = known.best.empty() || (for_rate && has_members(known.ring, mates));
    for (const PeerId p : stays ? known.ring : known.best) {
      if (contains(mates, p)) out.push_back(p);
    }
  }
  for (const PeerId p : mates) {
    if (!contains(out, p)) out.push_back(p);
  }
  return out;
}

std::string Topology::why(std::uint32_t number) const {
  const auto group = groups_.find(number);
  if (group == groups_.end() || group->second.best.empty()) return "";
  const Worth& now = group->second.worth;
  const Worth& then = group->second.best_worth;
  return "its slowest link carries " + in_mbit(then.slowest) +
         " Mbit/s (before: " + in_mbit(now.slowest) + "), and 4 MiB go round in " +
         in_ms(then.time) + " ms (before: " + in_ms(now.time) + ")";
}

// ---------------------------------------------------------------------------------------- rates

bool Topology::told(std::uint32_t number, std::uint32_t mbit) {
  const auto found = groups_.find(number);
  if (found == groups_.end() || !found->second.is_measured) return false;
  found->second.told = mbit;
  return is_other(mbit, found->second.told_before.value_or(0));
}

std::uint32_t Topology::mbit(std::uint32_t number) const {
  const auto found = groups_.find(number);
  return found == groups_.end() || found->second.rate == 0 ? 0 : mbit_of(found->second.rate);
}

bool Topology::may_cross(const std::vector<PeerId>& ring, const Sites& sites) const {
  const std::size_t n = ring.size();
  const auto ranks = ranks_by_site(sites);
  const std::uint64_t k = ranks.size();
  // 0: not measured. A link that could not be measured may carry nothing.
  const auto rate_of = [&](std::size_t a, std::size_t b) -> std::optional<std::uint64_t> {
    const auto link = links_.find({ring[a], ring[b]});
    if (link == links_.end() || is_apart(link->first)) return 0;
    const std::uint64_t rate = std::max(link->second.rate, link->second.rate_before);
    if (rate == 0 && link->second.failed) return std::nullopt;
    return std::min(rate, kRateCompared);
  };
  std::uint64_t round = kRateCompared;
  bool knows = false;
  for (std::size_t a = 0; a < n; ++a) {
    const auto rate = rate_of(a, (a + 1) % n);
    if (rate.value_or(0) == 0) continue;
    round = std::min(round, *rate);
    knows = true;
  }
  if (!knows) return true;
  // In a ring each link carries 2 S (n - 1) / n. In two levels a pair of two sites carries S / m of
  // the larger one (of k > 2 sites 2 S / (k m)), and one that closes the ring of a site
  // 2 S (m - 1) / m.
  for (std::size_t a = 0; a < n; ++a) {
    std::size_t next = a;  // in the ring of the own site
    do {
      next = (next + 1) % n;
    } while (sites[next] != sites[a]);
    for (std::size_t b = 0; b < n; ++b) {
      const bool far = sites[a] != sites[b];
      if (!far && (b != next || b == a || b == (a + 1) % n)) continue;
      const auto rate = rate_of(a, b);
      if (!rate) return false;
      if (*rate == 0) continue;
      const std::uint64_t m = std::max(ranks[sites[a]].size(), ranks[sites[b]].size());
      const bool keeps_up =
          far ? n * round <= (n - 1) * k * m * *rate : n * (m - 1) * round <= (n - 1) * m * *rate;
      if (!keeps_up) return false;
    }
  }
  return true;
}

bool Topology::is_measuring(const Group& group) const {
  return std::any_of(asked_.begin(), asked_.end(),
                     [&](const auto& asked) { return contains(group.ring, asked.first.first); });
}

/// Has the slowest links measured, if that may be worth a vote: links that were measured at the
/// same time may have one line in common. Of each the faster one of its last two measurements
/// counts.
void Topology::look_for_rate(Group& group, std::uint64_t now_s) {
  const bool finds_a_ring = !group.known || group.changed || group.confirms > 0;
  if (!group.told || group.votes_for_rate || !group.alone.empty() || finds_a_ring) return;
  if (now_s < group.rate_s || now_s < no_rate_before_s_ || is_measuring(group)) return;
  group.rate_s = now_s + kPartS;
  std::vector<std::pair<std::uint64_t, Pair>> slowest;
  for (const PeerId from : group.ring) {
    for (const PeerId to : group.ring) {
      const auto link = links_.find({from, to});
      if (link == links_.end() || is_apart(link->first)) continue;
      const std::uint64_t rate = std::max(link->second.rate, link->second.rate_before);
      if (rate == 0) continue;  // it cannot be measured
      slowest.emplace_back(rate, link->first);
    }
  }
  const std::size_t count = std::min(kAloneLinks, slowest.size());
  std::partial_sort(slowest.begin(), slowest.begin() + static_cast<std::ptrdiff_t>(count),
                    slowest.end());
  if (count == 0 || !is_other(mbit_of(slowest.front().first), *group.told)) return;
  for (std::size_t i = 0; i < count; ++i) group.alone.insert(slowest[i].second);
  group.alone_rate = 0;
}

void Topology::measured_alone(Group& group, const Pair& pair, std::uint64_t rate,
                              std::uint64_t now_s) {
  if (group.alone.erase(pair) == 0) return;
  if (rate > 0 && (group.alone_rate == 0 || rate < group.alone_rate)) group.alone_rate = rate;
  if (!group.alone.empty()) return;
  group.rate_wait_s = std::min(kRateWaitS, 2 * std::max(kUnsureS, group.rate_wait_s));
  group.rate_s = now_s + group.rate_wait_s;
  if (group.alone_rate == 0) return;
  group.rate = group.alone_rate;
  group.votes_for_rate = is_other(mbit_of(group.rate), *group.told);
}

}  // namespace pccl::master
