// Who leaves, and leaving at once: between two boundaries that are far apart, if nobody has
// anything in flight.
//
// Who stays must neither replay nor fail anything because of it. Whether all have issued nothing in
// this step only their Ready can tell; but a proposal stops them, and what somebody has in flight
// by then runs again. So it is tried only when each member's newest heartbeat since the wish says
// that it has issued nothing, and nothing has been heard of an operation after that. Tried in vain,
// the boundary of that step decides.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

/// Every operation of these fails without all of those who are pinned.
bool raises(const std::vector<Member>& members) {
  return std::any_of(members.begin(), members.end(), [](const Member& m) { return m.raises; });
}

bool all_quiet(const State& s) {
  return std::all_of(s.seats.begin(), s.seats.end(),
                     [](const auto& entry) { return entry.second.quiet; });
}

std::set<PeerId> leavers_of(const State& s, const std::vector<Member>& members, bool at_once) {
  std::set<std::pair<std::string, std::uint64_t>> leaving;
  for (const Member& m : members) {
    const auto peer = s.peers.find(m.peer());
    if (peer == s.peers.end() || !peer->second.report.leaving) continue;
    if (!at_once || peer->second.report.at_once) leaving.insert(replica_of(m));
  }
  std::set<PeerId> out;
  if (leaving.empty()) return out;
  for (const Member& m : members) {
    if (leaving.contains(replica_of(m))) out.insert(m.peer());
  }
  return out;
}

}  // namespace

std::set<PeerId> who_leaves(const State& s, const std::vector<Member>& members) {
  return leavers_of(s, members, false);
}

std::set<PeerId> who_leaves_at_once(const State& s, const std::vector<Member>& members) {
  return leavers_of(s, members, true);
}

bool hear_issued(State& s, PeerId peer, OpKey issued) {
  Seat* seat = seat_of(s, peer);
  if (!s.wishes || seat == nullptr) return false;
  seat->quiet = issued.index == 0;
  return all_quiet(s);
}

void be_heard_anew(State& s) {
  for (auto& [p, seat] : s.seats) seat.quiet = false;
}

bool try_at_once(State& s) {
  const std::vector<Member>& members = own(s)->members;
  if (!all_quiet(s) || raises(members)) return false;
  if (who_leaves_at_once(s, members).empty()) return false;
  s.at_once = std::all_of(members.begin(), members.end(), [&](const Member& m) {
    return !s.tried || s.peers.at(m.peer()).report.issued.step > *s.tried;
  });
  return s.at_once;
}

void give_up_at_once(State& s) {
  s.at_once = false;
  be_heard_anew(s);
  for (const Member& m : own(s)->members) {
    const auto peer = s.peers.find(m.peer());
    if (peer == s.peers.end()) continue;
    s.tried = std::max(s.tried.value_or(0), peer->second.report.issued.step);
  }
}

}  // namespace pccl::master
