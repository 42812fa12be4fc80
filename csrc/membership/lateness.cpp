// Which members have not come to an operation or to a boundary in time. Pure; master.cpp asks.
//
// A member that says that a time-out has passed (an accuser) may lie, and so may a member that says
// that it is not late. So a member goes on the word of two accusers; on the word of one if its own
// time-outs have passed too; and otherwise not before kDenialMaxS. Among fewer than three members
// nobody can tell who lies: there the word of one counts.
//
// A member that has called an operation and not completed it may wait for data that a third one
// keeps back. It is not late for what comes after that operation, and has time to say who owes it
// data (reachability.cpp).
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::size_t kEnoughToTell = 3;     // of two nobody can tell which one lies
constexpr std::uint64_t kDenialMaxS = 1800;  // for so long a member may deny to be late
constexpr std::uint64_t kStuckMaxS = 2700;  // for so long in an operation that others are done with
constexpr std::uint64_t kBoundary = ~std::uint64_t{0};  // as index: the boundary of the step

bool stands_at(const Report& report, std::uint64_t step) {
  return report.vote != VoteKind::none && report.step >= step;
}

bool has_come(const Report& report, OpKey place) {
  return report.issued > place || stands_at(report, place.step);
}

bool is_boundary(OpKey place) { return place.index == kBoundary; }

/// All mates (the members of that peer group) have issued the operations before this one.
OpKey least_issued(const State& s, std::uint32_t group) {
  OpKey least{kBoundary, kBoundary};
  for (const PeerId mate : s.groups.at(group)) {
    const auto found = s.peers.find(mate);
    if (found != s.peers.end()) least = std::min(least, found->second.report.issued);
  }
  return least;
}

bool is_done_with(const State& s, PeerId p, std::uint32_t group, OpKey op) {
  const auto newest = s.newest_commit.find(group);
  if (newest != s.newest_commit.end() && newest->second >= op) return true;
  const auto done = s.done.find({group, op});
  return done != s.done.end() && done->second.contains(p);
}

/// Has this member called an operation before `place` that it has not completed, and that all its
/// mates have called?
bool waits_before(const State& s, PeerId p, OpKey place) {
  const std::uint32_t group = s.seats.at(p).group;
  const OpKey issued = s.peers.at(p).report.issued;
  if (issued.index > 0 && issued <= place) {
    const OpKey newest{issued.step, issued.index - 1};
    const bool failed = s.failure && newest >= s.failure->from;
    const bool called = newest < least_issued(s, group);
    if (called && !failed && !is_done_with(s, p, group, newest)) return true;
  }
  const auto first = s.done.lower_bound({group, OpKey{}});
  const auto last = s.done.lower_bound({group, std::min(place, issued)});
  return std::any_of(first, last, [p](const auto& entry) { return !entry.second.contains(p); });
}

/// The oldest operation that others are done with and wait for, and in which this member has been
/// for too long.
std::optional<OpKey> stuck_op(const State& s, PeerId p, const Report& report) {
  const std::uint32_t group = s.seats.at(p).group;
  std::optional<OpKey> oldest;
  for (const auto& accusation : s.accusations) {
    const PeerId q = accusation.first;
    const auto& said = accusation.second;
    if (report.issued <= said.place || s.now_s < said.since_s + kStuckMaxS) continue;
    const auto done = s.done.find({group, said.place});
    if (done == s.done.end() || done->second.contains(p) || !done->second.contains(q)) continue;
    const auto says_so = [&](const auto& other) {
      return done->second.contains(other.first) && other.second.place == said.place &&
             s.now_s >= other.second.since_s + kStuckMaxS &&
             replica_of(s.peers.at(other.first).member) != replica_of(s.peers.at(q).member);
    };
    const bool alone = own(s)->members.size() < kEnoughToTell;
    if (!alone && std::none_of(s.accusations.begin(), s.accusations.end(), says_so)) continue;
    oldest = std::min(oldest.value_or(said.place), said.place);
  }
  return oldest;
}

/// Does what is said against this member suffice? `place`: to which it has not come.
bool believed(const State& s, PeerId p, OpKey place) {
  const PeerState& peer = s.peers.at(p);
  if (own(s)->members.size() < kEnoughToTell) return true;
  if (is_boundary(place) ? peer.beat.step_overdue : peer.beat.op_overdue) return true;
  std::optional<Member> accuser;  // the ranks of one replica may lie together, and count as one
  for (const auto& [q, said] : s.accusations) {
    if (q == p || is_boundary(said.place) != is_boundary(place)) continue;
    if (!is_boundary(place) && s.seats.at(q).group != s.seats.at(p).group) continue;
    if (has_come(peer.report, said.place)) continue;
    const auto from = s.peers.find(q);
    if (from == s.peers.end()) continue;
    const Member& member = from->second.member;
    if (s.now_s >= std::max(said.since_s, peer.moved_s) + kDenialMaxS) return true;
    if (waits_before(s, p, said.place)) continue;
    if (accuser && (member.place.size == 1 || replica_of(member) != replica_of(*accuser))) {
      return true;
    }
    accuser = member;
  }
  return false;
}

/// The oldest operation of a peer group whose time-out has passed, and that some mate has not
/// issued: members that wait in it have not come to later ones.
std::optional<OpKey> expired_op(const State& s, std::uint32_t group) {
  if (s.accusations.empty()) return std::nullopt;
  const OpKey least = least_issued(s, group);
  std::optional<OpKey> oldest;
  for (const auto& [p, said] : s.accusations) {
    if (s.seats.at(p).group != group || is_boundary(said.place) || said.place < least) continue;
    oldest = std::min(oldest.value_or(said.place), said.place);
  }
  return oldest;
}

/// A boundary at which others have waited too long, and to which this peer has not come. None if it
/// waits itself for a mate that has issued fewer operations.
std::optional<OpKey> expired_boundary(const State& s, PeerId p, const Report& report) {
  std::optional<OpKey> first;
  for (const auto& [q, said] : s.accusations) {
    if (!is_boundary(said.place) || stands_at(report, said.place.step)) continue;
    first = std::min(first.value_or(said.place), said.place);
  }
  if (!first) return first;
  const auto& mates = s.groups.at(s.seats.at(p).group);
  const bool waits = std::any_of(mates.begin(), mates.end(), [&](PeerId mate) {
    const auto found = s.peers.find(mate);
    if (found == s.peers.end()) return false;
    const Report& other = found->second.report;
    return !stands_at(other, first->step) && other.issued < report.issued;
  });
  return waits ? std::nullopt : first;
}

/// Some members of a peer group stand at the boundary of a step, others wait in an operation of
/// that step which the first have not called, and the time-out of the operation has passed: their
/// programs differ. The smaller of the two parts goes; if they are equal, the part at the boundary,
/// but of three or more not on the word of one. Returns why this peer goes; empty: it stays.
std::string differs(const State& s, PeerId p, const Report& report, OpKey op) {
  const auto stands = [&](const Report& r) { return r.issued <= op && stands_at(r, op.step); };
  const auto calls = [&](const Report& r) { return r.issued > op && !stands_at(r, op.step); };
  std::size_t standing = 0;
  std::size_t calling = 0;
  const std::vector<PeerId>& mates = s.groups.at(s.seats.at(p).group);
  for (const PeerId mate : mates) {
    const auto found = s.peers.find(mate);
    if (found == s.peers.end()) continue;
    if (stands(found->second.report)) ++standing;
    if (calls(found->second.report)) ++calling;
  }
  const bool can_tell = calling > 1 || mates.size() < kEnoughToTell;
  if (stands(report) && calling >= standing && can_tell) {
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
  const Seat* seat = seat_of(s, p);
  if (seat == nullptr || s.accusations.empty() || somebody_is_missing(s)) return "";
  if (const auto op = expired_op(s, seat->group)) {
    if (!has_come(report, *op) && believed(s, p, *op)) {
      return "it has not come to operation " + to_string(*op) + " in time";
    }
    if (std::string why = differs(s, p, report, *op); !why.empty()) return why;
  }
  if (const auto op = stuck_op(s, p, report)) {
    return "it has called operation " + to_string(*op) +
           " and not completed it in time, and others are done with it";
  }
  const auto boundary = expired_boundary(s, p, report);
  if (!boundary || !believed(s, p, *boundary)) return "";
  return "it has not come to the boundary of step " + std::to_string(boundary->step) + " in time";
}

std::string time_is_over(State& s, PeerId p, OpKey op) {
  const Seat* seat = seat_of(s, p);
  if (seat == nullptr || op.step < s.held->passed) return "";  // all have left that step
  Report& report = s.peers.at(p).report;
  const bool stands = stands_at(report, op.step);
  if (!stands && s.failure && op >= s.failure->from) return "";
  const OpKey place{stands ? report.step : op.step, stands ? kBoundary : op.index};
  if (const auto furthest = furthest_step_without(s, p); furthest && place.step > *furthest + 1) {
    return "it says that a time-out has passed in step " + std::to_string(place.step) +
           ", and no other member has come beyond step " + std::to_string(*furthest);
  }
  if (!stands) report.issued = std::max(report.issued, OpKey{op.step, op.index + 1});
  const auto [at, added] = s.accusations.try_emplace(p, Accusation{place, s.now_s});
  Accusation& said = at->second;
  if (added || said.place == place) return "";
  // The oldest operation counts as long as a member has still to come to it: an accuser that waits
  // in several says so of one after the other. So does one that a member has not completed.
  const OpKey least = least_issued(s, seat->group);
  const bool is_open = !is_boundary(said.place) && said.place >= least;
  if (!stands && is_open && (said.place < place || place < least)) return "";
  if (!stands && said.place < place && s.done.contains({seat->group, said.place})) return "";
  said = Accusation{place, s.now_s};
  return "";
}

void time_is_not_over(State& s, PeerId p, OpKey op) {
  const auto at = s.accusations.find(p);
  if (at != s.accusations.end() && at->second.place == op) s.accusations.erase(at);
}

}  // namespace pccl::master
