// Relays for members that cannot reach each other. A third member that both reach passes their data
// on: among several the one that relays for the fewest pairs, then the one with the lowest rank, so
// that the choice stays while others come and go. If there is no relay, reachability.cpp says which
// replicas have to go.
#include <algorithm>

#include "base/limits.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::size_t kRelaysTried = 2;  // for one pair; each useless one costs some seconds

std::pair<PeerId, PeerId> in_order(PeerId p, PeerId q) { return {std::min(p, q), std::max(p, q)}; }

bool cannot_reach(const State& s, PeerId p, PeerId q) {
  return s.cannot.contains({p, q}) || s.cannot.contains({q, p});
}

bool may_relay(const State& s, PeerId p, PeerId q, PeerId via) {
  if (via == p || via == q) return false;
  if (cannot_reach(s, p, via) || cannot_reach(s, q, via)) return false;
  const auto tried = s.useless.find(in_order(p, q));
  if (tried == s.useless.end()) return true;
  return tried->second.size() < kRelaysTried && !tried->second.contains(via) &&
         !tried->second.contains(PeerId{});
}

}  // namespace

bool has_relay(const State& s, PeerId p, PeerId q, const std::vector<PeerId>& among) {
  return std::any_of(among.begin(), among.end(),
                     [&](PeerId via) { return may_relay(s, p, q, via); });
}

void of_no_use(State& s, PeerId p, PeerId q, PeerId via) {
  std::set<PeerId>& tried = s.useless[in_order(p, q)];
  if (tried.size() < kRelaysTried) tried.insert(via);  // more change nothing
}

bool reaches_again(State& s, PeerId p) {
  const auto erased = std::erase_if(
      s.cannot, [p](const auto& pair) { return pair.first == p || pair.second == p; });
  forget_reached(s);
  return erased > 0;
}

std::set<PeerId> let_try_again(State& s) {
  std::set<PeerId> out = excluded(s);
  const Epoch* epoch = own(s);
  if (epoch == nullptr || epoch->relays.empty()) return out;
  bool any = false;
  for (const Relay& relay : epoch->relays) {
    if (!out.contains(relay.a) && !out.contains(relay.b)) continue;
    if (!cannot_reach(s, relay.a, relay.b)) continue;
    if (!s.retried.insert(in_order(relay.a, relay.b)).second) continue;
    s.cannot.erase({relay.a, relay.b});
    s.cannot.erase({relay.b, relay.a});
    any = true;
  }
  forget_reached(s);
  return any ? excluded(s) : out;
}

void forget_reached(State& s) {
  std::erase_if(s.useless, [&](const auto& entry) {
    return !cannot_reach(s, entry.first.first, entry.first.second);
  });
  std::erase_if(s.why_not, [&](const auto& entry) { return !s.cannot.contains(entry.first); });
}

std::vector<Relay> relays(const State& s, const std::vector<Member>& members) {
  std::vector<Relay> out;
  if (s.cannot.empty()) return out;
  std::map<PeerId, std::size_t> place;
  for (const Member& m : members) place.emplace(m.peer(), place.size());
  std::map<PeerId, std::size_t> load;
  for (const auto& [younger, older] : s.cannot) {
    const auto p = place.find(older);
    const auto q = place.find(younger);
    if (p == place.end() || q == place.end() || out.size() == kRelaysMax) continue;
    const Member* best = nullptr;
    for (const Member& m : members) {
      if (m.place.rank != members[p->second].place.rank) continue;
      if (!may_relay(s, older, younger, m.peer())) continue;
      if (best == nullptr || load[m.peer()] < load[best->peer()]) best = &m;
    }
    if (best == nullptr) continue;
    ++load[best->peer()];
    Relay relay{older, younger, best->peer()};
    if (q->second < p->second) std::swap(relay.a, relay.b);
    out.push_back(relay);
  }
  return out;
}

std::vector<std::string> new_relays(const Epoch* before, const Epoch& epoch) {
  const auto named = [&](PeerId p) {
    return name_of(epoch.members, *std::find_if(epoch.members.begin(), epoch.members.end(),
                                                [&](const Member& m) { return m.peer() == p; }));
  };
  std::vector<std::string> lines;
  for (const Relay& relay : epoch.relays) {
    if (before != nullptr &&
        std::find(before->relays.begin(), before->relays.end(), relay) != before->relays.end())
      continue;
    lines.push_back(named(relay.a) + " and " + named(relay.b) + " reach each other over " +
                    named(relay.via));
  }
  return lines;
}

void recall_relays(State& s) {
  if (const Epoch* epoch = own(s)) {
    for (const Relay& relay : epoch->relays) s.cannot.insert({relay.b, relay.a});
  }
}

}  // namespace pccl::master
