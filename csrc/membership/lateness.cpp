// Which members have not come to an operation or to a boundary in time. Pure; master.cpp asks.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

bool stands_at(const Report& report, std::uint64_t step) {
  return report.vote != VoteKind::none && report.step >= step;
}

/// True: the peer has not issued an operation whose time-out has passed at a mate (a member of the
/// same peer group).
bool is_late(const State& s, PeerId p, const Report& report) {
  const Seat* seat = seat_of(s, p);
  if (seat == nullptr) return false;
  const auto op = s.expired.find(seat->group);
  return op != s.expired.end() && report.issued <= op->second &&
         !stands_at(report, op->second.step);
}

/// True: the peer has not come to a boundary at which others have waited too long, and does not
/// itself wait for a mate that has issued fewer operations.
bool is_late_at_boundary(const State& s, PeerId p, const Report& report) {
  const Seat* seat = seat_of(s, p);
  if (seat == nullptr || !s.expired_boundary) return false;
  if (stands_at(report, *s.expired_boundary)) return false;
  const auto& mates = s.groups.at(seat->group);
  return std::none_of(mates.begin(), mates.end(), [&](PeerId mate) {
    const auto found = s.peers.find(mate);
    if (found == s.peers.end()) return false;
    const Report& other = found->second.report;
    return !stands_at(other, *s.expired_boundary) && other.issued < report.issued;
  });
}

/// Some members of a peer group stand at the boundary of a step, others wait in an operation of
/// that step which the first have not called, and the time-out of the operation has passed: their
/// programs differ. The smaller of the two parts goes; if they are equal, the part at the boundary.
/// Returns why this peer goes; empty: it stays.
std::string differs(const State& s, PeerId p, const Report& report) {
  const Seat* seat = seat_of(s, p);
  if (seat == nullptr) return "";
  const auto expired = s.expired.find(seat->group);
  if (expired == s.expired.end()) return "";
  const OpKey op = expired->second;
  const auto stands = [&](const Report& r) { return r.issued <= op && stands_at(r, op.step); };
  const auto calls = [&](const Report& r) { return r.issued > op && !stands_at(r, op.step); };
  std::size_t standing = 0;
  std::size_t calling = 0;
  for (const PeerId mate : s.groups.at(seat->group)) {
    const auto found = s.peers.find(mate);
    if (found == s.peers.end()) continue;
    if (stands(found->second.report)) ++standing;
    if (calls(found->second.report)) ++calling;
  }
  if (stands(report) && calling >= standing) {
    return "it stands at the boundary of step " + std::to_string(op.step) +
           " and has not called operation " + to_string(op) + ", in which others wait";
  }
  if (calls(report) && standing > calling) {
    return "it waits in operation " + to_string(op) +
           ", and most others stand at the boundary of that step and have not called it";
  }
  return "";
}

/// While a member of the running epoch is not connected, no member is late: a member that has not
/// come may be waiting for the missing one. The next epoch is near, and the time-outs are reported
/// again in it.
bool somebody_is_missing(const State& s) {
  const auto& members = own(s)->members;
  return std::any_of(members.begin(), members.end(),
                     [&](const Member& m) { return !s.peers.contains(m.peer()); });
}

}  // namespace

std::string why_late(const State& s, PeerId p, const Report& report) {
  std::string why = differs(s, p, report);
  if (is_late(s, p, report)) {
    why =
        "it has not come to operation " + to_string(s.expired.at(s.seats.at(p).group)) + " in time";
  } else if (is_late_at_boundary(s, p, report)) {
    why = "it has not come to the boundary of step " + std::to_string(*s.expired_boundary) +
          " in time";
  }
  return somebody_is_missing(s) ? "" : why;
}

void time_is_over(State& s, PeerId p, OpKey op) {
  const Seat* seat = seat_of(s, p);
  if (seat == nullptr) return;
  Report& report = s.peers.at(p).report;
  if (stands_at(report, op.step)) {
    s.expired_boundary = report.step;
    return;
  }
  report.issued = std::max(report.issued, OpKey{op.step, op.index + 1});  // never the reporter
  // The oldest operation counts as long as a member has still to come to it: members that wait in
  // it have not come to later ones.
  const auto [old, added] = s.expired.try_emplace(seat->group, op);
  if (added || op < old->second) {
    old->second = op;
    return;
  }
  const auto& mates = s.groups.at(seat->group);
  const bool open = std::any_of(mates.begin(), mates.end(), [&](PeerId mate) {
    const auto found = s.peers.find(mate);
    return found != s.peers.end() && (is_late(s, mate, found->second.report) ||
                                      !differs(s, mate, found->second.report).empty());
  });
  if (!open) old->second = op;
}

}  // namespace pccl::master
