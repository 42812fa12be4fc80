// Which members leave, and which leave at once: before the next boundary, if no member has an
// operation in flight.
//
// The members that stay must neither replay nor fail an operation because another one leaves. Only
// the Ready of all members proves that none has issued an operation in this step. But a proposal
// stops all members, and operations that are in flight by then run again. So the master proposes a
// leave at once only when the newest heartbeat of each member since the wish says that the member
// has issued nothing, and no Done has come after that heartbeat. If a Ready says otherwise none the
// less, the boundary of that step decides.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

/// With on_loss "raise" every operation fails if one of the pinned members is missing.
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
