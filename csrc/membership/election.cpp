// Which shared state wins at a boundary. Only members elect, in each peer group separately.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

struct Candidate {
  StateRoot root;
  std::vector<const Member*> holders;  // in rank order
};

/// At a run's first voted boundary the highest revision wins (a member that has loaded a checkpoint
/// has the checkpoint's), and among equals the most popular root. Later the most popular root wins,
/// and among equals the highest revision. Last, the lowest rank.
bool better(const Candidate& a, const Candidate& b, bool first) {
  const auto votes = [](const Candidate& c) { return c.holders.size(); };
  if (first && a.root.revision != b.root.revision) return a.root.revision > b.root.revision;
  if (votes(a) != votes(b)) return votes(a) > votes(b);
  return a.root.revision > b.root.revision;  // equal: `a`, which has the lower rank, came first
}

SyncPlan plan_of(const Candidate& chosen, std::size_t voters, bool first,
                 const std::vector<Member>& members) {
  SyncPlan plan{chosen.root, {}, {}};
  for (const Member* m : chosen.holders) plan.sources.push_back(m->peer());
  plan.why = cut_text("revision " + std::to_string(chosen.root.revision) + " of " +
                      name_of(members, *chosen.holders.front()) +
                      (first ? ": the highest, " : ": the most popular state, ") + "held by " +
                      std::to_string(chosen.holders.size()) + " of " + count_of(voters, "member"));
  return plan;
}

}  // namespace

std::map<std::uint32_t, SyncPlan> elect(const State& s, const std::vector<Member>& voters) {
  const bool first = s.held->passed == 0;
  std::map<std::uint32_t, std::vector<Candidate>> candidates;
  std::map<std::uint32_t, std::size_t> numbers;
  for (const Member& m : voters) {
    const PeerState& peer = s.peers.at(m.peer());
    // A member that has started no epoch holds the state that it fetched before the register's
    // epoch was written.
    const StateRoot& root = peer.report.started ? peer.report.root : peer.door_root;
    ++numbers[m.place.rank];
    if (!root.present) continue;
    auto& list = candidates[m.place.rank];
    const auto same =
        std::find_if(list.begin(), list.end(), [&](const Candidate& c) { return c.root == root; });
    if (same == list.end()) {
      list.push_back(Candidate{root, {&m}});
    } else {
      same->holders.push_back(&m);
    }
  }
  std::map<std::uint32_t, SyncPlan> plans;
  for (const auto& [group, list] : candidates) {
    const Candidate* chosen = &list.front();
    for (const Candidate& c : list) {
      if (better(c, *chosen, first)) chosen = &c;
    }
    plans[group] = plan_of(*chosen, numbers[group], first, voters);
  }
  return plans;
}

}  // namespace pccl::master
