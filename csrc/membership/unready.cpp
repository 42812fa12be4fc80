// Members that are asked to be ready for an epoch, and are not: how long the others wait for them.
// A sound member is ready when its links are up and it has the state; a link that does not come up
// is reported within seconds (`Cannot`), and a fetch shows in heartbeats. Newcomers have less time
// (newcomers.cpp).
#include <utility>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kStillS = 120;  // in which no peer has become ready or fetched a byte

std::size_t replicas_in(const std::vector<const Member*>& members) {
  std::set<std::pair<std::string, std::uint64_t>> names;
  for (const Member* m : members) names.insert(replica_of(*m));
  return names.size();
}

/// The members of which those that are not ready fetch the state.
std::vector<const Member*> sources_for(const State& s, const std::vector<const Member*>& unready) {
  std::set<PeerId> sources;
  for (const Member* m : unready) {
    const auto plan = s.plans.find(m->place.rank);
    if (plan == s.plans.end()) continue;
    sources.insert(plan->second.sources.begin(), plan->second.sources.end());
  }
  std::vector<const Member*> out;
  for (const Member& m : own(s)->members) {
    if (sources.contains(m.peer())) out.push_back(&m);
  }
  return out;
}

}  // namespace

bool give_up_members(State& s, std::uint64_t elapsed_s, Actions& out) {
  if (!s.proposal || own(s) == nullptr) return false;
  std::vector<const Member*> unready;
  std::vector<PeerId> missing;
  for (const Member& m : own(s)->members) {
    if (!contains(s.proposal->members, m.peer())) continue;
    const auto peer = s.peers.find(m.peer());
    if (peer == s.peers.end()) continue;
    if (s.ready.contains(m.peer())) continue;
    unready.push_back(&m);
    missing.push_back(m.peer());
  }
  Unready& wait = s.unready;
  if (wait.proposal != s.proposal->id) wait = {s.proposal->id, s.ready.size(), {}};
  watch_fetches(s, wait.fetches, elapsed_s);
  if (std::exchange(wait.ready, s.ready.size()) != s.ready.size()) {
    wait.fetches.fetched_still_s = wait.fetches.served_still_s = 0;
  }
  if (unready.empty() || !waited_enough(s, wait.fetches, missing, kStillS)) return false;
  const std::string after = " after " + std::to_string(wait.fetches.for_s) + " s";
  const std::string epoch = to_string(s.proposal->id);
  wait = {};
  const auto sources = sources_for(s, unready);
  // A few that offer a state which many cannot fetch are at fault; else those that fetch it are.
  if (!sources.empty() && replicas_in(sources) < replicas_in(unready)) {
    for (const Member* m : sources) {
      expel(s, m->peer(), "others have not come to have its state for epoch " + epoch + after, out);
    }
    return true;
  }
  if (2 * replicas_in(unready) <= replicas(s.proposal->members)) {
    for (const Member* m : unready) {
      expel(s, m->peer(), "it is not ready for epoch " + epoch + after, out);
    }
    return true;
  }
  out.push_back(
      Say{true, "most members are not ready for epoch " + epoch + after + ": it is proposed anew"});
  s.proposal.reset();
  return true;
}

}  // namespace pccl::master
