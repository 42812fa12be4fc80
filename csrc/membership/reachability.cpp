// The replicas that have to go because some members or newcomers cannot reach each other, and no
// third member can relay for them (relays.cpp): the smallest set without which all others reach
// each other.
//
// One of the two may lie, and nobody can tell which: what each says is all that is known of a link.
// So a liar can cost one sound member its place, but not a second one within kRememberedS: of two
// that cannot reach each other the one goes that was in the same case with another member before.
// (That does not count against a peer that has come since: a liar comes again under another id.)
#include <algorithm>
#include <optional>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::size_t kExactCover = 10;       // 2^10 choices
constexpr std::uint64_t kRememberedS = 3600;  // who could not reach a member that had to go

/// The members of the peer group of `p` that stay: they may relay for it. At a founding: the peers
/// that wait.
std::vector<PeerId> may_pass_on(const State& s, PeerId p,
                                const std::map<PeerId, std::uint64_t>& age,
                                const std::set<std::uint64_t>& go) {
  std::vector<PeerId> out;
  const std::uint32_t group = s.peers.at(p).member.place.rank;
  const auto add = [&](const Member& m) {
    const PeerId q = m.peer();
    if (m.place.rank == group && !go.contains(age.at(q)) && !is_expelled(s, q)) {
      out.push_back(q);
    }
  };
  if (const Epoch* epoch = own(s)) {
    const std::set<PeerId> leaving = who_leaves(s, epoch->members);
    for (const Member& m : epoch->members) {
      if (leaving.contains(m.peer())) continue;
      if (s.peers.contains(m.peer()) || is_awaited(s, m.peer())) add(m);
    }
  } else {
    for (const auto& [q, peer] : s.peers) add(peer.member);
  }
  return out;
}

/// From how many others this member was parted lately, since the peer `q` has come.
std::uint64_t parted_before(const State& s, PeerId p, PeerId q) {
  const auto others = s.parted.find(p);
  const auto other = s.peers.find(q);
  if (others == s.parted.end() || other == s.peers.end()) return 0;
  const auto counts = [&](const auto& entry) {
    return s.now_s < entry.second.since_s + kRememberedS &&
           other->second.arrived <= entry.second.arrivals;
  };
  return static_cast<std::uint64_t>(
      std::count_if(others->second.begin(), others->second.end(), counts));
}

/// Adds to `go` one replica of each pair of which none goes yet. Of a member and a newcomer the
/// newcomer goes.
std::set<std::uint64_t> who_goes(const std::vector<Pair>& pairs, std::uint64_t members,
                                 const std::map<std::uint64_t, std::uint64_t>& before,
                                 std::set<std::uint64_t> go) {
  for (const auto& [older, younger] : pairs) {
    if (older < members && younger >= members && !go.contains(older)) go.insert(younger);
  }
  for (const bool inside : {true, false}) {
    std::vector<Pair> left;
    for (const Pair& pair : pairs) {
      if ((pair.first < members) != inside || (pair.second < members) != inside) continue;
      if (!go.contains(pair.first) && !go.contains(pair.second)) left.push_back(pair);
    }
    go.merge(smallest_cover(left, before));
  }
  return go;
}

}  // namespace

std::set<PeerId> excluded(const State& s) {
  std::set<PeerId> out;
  if (s.cannot.empty()) return out;
  // Replicas go as a whole, so a pair is two replicas that cannot reach each other. A replica is
  // named by its age: members in rank order, then newcomers in order of arrival.
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> ages;
  std::map<PeerId, std::uint64_t> age;
  std::uint64_t members = 0;
  if (const Epoch* epoch = own(s)) {
    for (const Member& m : epoch->members) {
      const auto [at, added] = ages.try_emplace(replica_of(m), members);
      if (added) ++members;
      age[m.peer()] = at->second;
    }
  }
  for (const auto& [p, peer] : s.peers) {
    age.try_emplace(
        p, ages.try_emplace(replica_of(peer.member), members + peer.arrived).first->second);
  }
  std::set<std::uint64_t> go;
  // A replica that goes relays for no pair any more, so further replicas may have to go.
  for (bool more = true; more;) {
    std::vector<Pair> pairs;
    std::map<std::uint64_t, std::uint64_t> before;
    for (const auto& [p, q] : s.cannot) {
      // While `q` is connected, `p`, the younger of the two, is not waited for.
      if (!s.peers.contains(q) || (!s.peers.contains(p) && !is_awaited(s, p))) continue;
      if (!age.contains(p) || age.at(p) == age.at(q)) continue;
      if (has_relay(s, p, q, may_pass_on(s, q, age, go))) continue;
      pairs.emplace_back(std::min(age.at(p), age.at(q)), std::max(age.at(p), age.at(q)));
      before[age.at(p)] += parted_before(s, p, q);
      before[age.at(q)] += parted_before(s, q, p);
    }
    const std::set<std::uint64_t> all = who_goes(pairs, members, before, go);
    more = all.size() > go.size();
    go = all;
  }
  for (const auto& [p, its_age] : age) {
    if (go.contains(its_age)) out.insert(p);
  }
  return out;
}

void remember_parted(State& s, const std::vector<Member>& before,
                     const std::vector<Member>& members) {
  const std::set<PeerId> out = excluded(s);
  for (const auto& [p, q] : s.cannot) {
    if (!contains(before, p) || !contains(before, q)) continue;
    const Parted parted{s.now_s, s.arrivals};
    if (out.contains(p) && contains(members, q)) s.parted[q][p] = parted;
    if (out.contains(q) && contains(members, p)) s.parted[p][q] = parted;
  }
  for (auto& [p, others] : s.parted) {
    std::erase_if(others,
                  [&](const auto& o) { return s.now_s >= o.second.since_s + kRememberedS; });
  }
  std::erase_if(s.parted, [&](const auto& entry) {
    return entry.second.empty() || !contains(members, entry.first);
  });
}

std::set<std::uint64_t> smallest_cover(const std::vector<Pair>& pairs,
                                       const std::map<std::uint64_t, std::uint64_t>& before) {
  std::map<std::uint64_t, std::uint64_t> degree;
  for (const auto& [a, b] : std::set<Pair>(pairs.begin(), pairs.end())) ++degree[a], ++degree[b];
  const auto worth = [&](const std::set<std::uint64_t>& cover) {
    std::uint64_t cut = 0;
    for (const std::uint64_t node : cover) {
      const auto known = before.find(node);
      cut += degree.at(node) + (known == before.end() ? 0 : known->second);
    }
    return std::pair(cut, std::vector<std::uint64_t>(cover.rbegin(), cover.rend()));
  };
  // One of each pair has to go: the search tries both choices, with larger and larger sets.
  for (std::size_t size = 0; size <= kExactCover; ++size) {
    std::optional<std::set<std::uint64_t>> best;
    std::set<std::uint64_t> taken;
    const auto search = [&](const auto& self) -> void {
      const auto open = std::find_if(pairs.begin(), pairs.end(), [&](const Pair& pair) {
        return !taken.contains(pair.first) && !taken.contains(pair.second);
      });
      if (open == pairs.end()) {
        if (!best || worth(taken) > worth(*best)) best = taken;
        return;
      }
      if (taken.size() == size) return;
      for (const std::uint64_t node : {open->first, open->second}) {
        taken.insert(node);
        self(self);
        taken.erase(node);
      }
    };
    search(search);
    if (best) return *best;
  }
  // Too many pairs for the search: the replica that cannot reach the most others goes first.
  std::set<std::uint64_t> cover;
  std::vector<Pair> left = pairs;
  while (!left.empty()) {
    degree.clear();
    for (const auto& [a, b] : left) ++degree[a], ++degree[b];
    const auto most =
        std::max_element(degree.begin(), degree.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second, a.first) < std::pair(b.second, b.first);
        });
    cover.insert(most->first);
    std::erase_if(left, [node = most->first](const Pair& pair) {
      return pair.first == node || pair.second == node;
    });
  }
  return cover;
}

void cannot_reach(State& s, PeerId p, const Cannot& m, Actions& out) {
  const Epoch* epoch = nullptr;
  if (s.proposal && m.epoch == s.proposal->id) epoch = &*s.proposal;
  if (own(s) != nullptr && m.epoch == own(s)->id) epoch = own(s);
  if (epoch == nullptr || !are_mates(epoch->members, p, m.peer)) return;
  // The two go on over a third member. If there is none, one of the two has to go, unless the other
  // one is lost first.
  const auto& members = epoch->members;
  const auto index = [&](PeerId q) {
    return std::find_if(members.begin(), members.end(),
                        [&](const Member& member) { return member.peer() == q; }) -
           members.begin();
  };
  const auto mine = index(p);
  const auto other = index(m.peer);
  const std::pair<PeerId, PeerId> pair = mine > other ? std::pair(p, m.peer) : std::pair(m.peer, p);
  const bool proposed = s.proposal && m.epoch == s.proposal->id;
  const bool known = !s.cannot.insert(pair).second;
  s.why_not[pair] = m.reason;
  if (known && !proposed && m.via == PeerId{}) return;  // the other of the two has said so
  if (known || m.via != PeerId{}) of_no_use(s, p, m.peer, m.via);
  const std::string over = m.via == PeerId{} ? "" : " over " + name(s, m.via);
  const std::string text =
      name(s, p) + " cannot reach " + name(s, m.peer) + over + ": " + printable(m.reason);
  out.push_back(Say{true, cut_text(text)});
  for (const PeerId q : {pair.first, pair.second}) {
    if (Seat* seat = seat_of(s, q)) seat->reason = cut_text(text);
  }
  give_up_apart(s, out);
  s.running = false;
  s.proposal.reset();
  reconsider(s, out);
}

}  // namespace pccl::master
