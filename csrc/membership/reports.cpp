// Reports that cannot be true. A member may lie: the master evicts a member whose report
// contradicts itself, or claims something that another member would have to know, and no other
// member does. Reports of sound members pass by construction: an operation is committed when every
// mate has completed it, and a boundary that does not vote is passed only behind a commit of its
// step.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

bool too_far(OpKey key) { return key.step > kStepMax || key.index > kStepMax; }

/// Each operation belongs to the report's step, comes after the one before, and has been issued.
bool all_issued(const std::vector<OpKey>& ops, const Report& report) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (i > 0 && ops[i] <= ops[i - 1]) return false;
    if (ops[i].step != report.step || ops[i] >= report.issued) return false;
  }
  return true;
}

/// The newest step that this master knows the run to have reached, without any report.
std::uint64_t known_step(const State& s) {
  std::uint64_t step = s.held->passed;
  if (!s.flags.empty()) step = std::max(step, s.flags.rbegin()->first);
  for (const auto& [group, key] : s.newest_commit) step = std::max(step, key.step);
  return step;
}

bool has_issued(const Report& report, OpKey key) {
  return report.step > key.step || report.issued > key;
}

/// Has this master committed an operation in that step, or in a later one?
bool has_committed_in(const State& s, std::uint64_t step) {
  return s.flags.contains(step) ||
         std::any_of(s.newest_commit.begin(), s.newest_commit.end(),
                     [step](const auto& made) { return made.second.step >= step; });
}

/// The first step, from the last voted boundary on, of which the report says that its boundary does
/// not vote. Such a step has a committed operation.
std::optional<std::uint64_t> first_unvoted(const Report& report) {
  std::optional<std::uint64_t> first;
  if (report.step > report.passed) first = report.passed;
  for (const StepFlag& flag : report.flags) {
    if (flag.votes || flag.step < report.passed) continue;
    first = std::min(first.value_or(flag.step), flag.step);
  }
  return first;
}

/// When a boundary ends, all members stand in one step. A member that names another one than most
/// members do lies; of two members nobody can tell which one does. Nor can anybody after a failure:
/// a member that lies about an operation lets those vote that have not passed the boundary yet.
std::optional<Lie> find_astray(const std::vector<Begun>& begun) {
  std::map<std::uint64_t, std::size_t> numbers;  // of members, by step
  for (const auto& [member, report] : begun) {
    if (report->failure) return std::nullopt;
    ++numbers[report->step];
  }
  if (numbers.size() < 2) return std::nullopt;
  const auto most =
      std::max_element(numbers.begin(), numbers.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (2 * most->second <= begun.size()) return std::nullopt;
  for (const auto& [member, report] : begun) {
    if (report->step == most->first) continue;
    return Lie{member->peer(), "it votes at the boundary of step " + std::to_string(report->step) +
                                   ", and most members at that of step " +
                                   std::to_string(most->first)};
  }
  return std::nullopt;
}

/// The first step, from the last voted boundary on, of which this master has said that it votes.
std::optional<std::uint64_t> first_voting(const State& s) {
  const auto found = std::find_if(s.flags.lower_bound(s.held->passed), s.flags.end(),
                                  [](const auto& flag) { return flag.second; });
  return found == s.flags.end() ? std::nullopt : std::optional(found->first);
}

/// A step of which the report says something else about its boundary than this master has said.
/// `voting`: of first_voting.
std::optional<std::uint64_t> denied_flag(const State& s, std::optional<std::uint64_t> voting,
                                         const Report& report) {
  if (voting && report.step > *voting) return voting;  // it has left the step without a vote
  for (const StepFlag& flag : report.flags) {
    const auto said = s.flags.find(flag.step);
    if (flag.step < s.held->passed || said == s.flags.end()) continue;
    if (said->second != flag.votes) return flag.step;
  }
  return std::nullopt;
}

}  // namespace

std::optional<OpKey> newest_of(const OpSet& set) {
  std::optional<OpKey> newest;
  if (set.below.index > 0) newest = OpKey{set.below.step, set.below.index - 1};
  if (!set.also.empty()) newest = std::max(newest.value_or(OpKey{}), set.also.back());
  return newest;
}

std::string contradiction(const Report& report) {
  if (report.started == EpochId{}) return "its report names an epoch without a number";
  if (report.step > kStepMax || report.passed > kStepMax || too_far(report.issued) ||
      too_far(report.committed.below)) {
    return "its report has a number that no run reaches";
  }
  if (report.committed.below.step > report.step) {
    return "its report names commits of a step to which it has not come";
  }
  if (report.committed.below > report.issued || !all_issued(report.committed.also, report) ||
      !all_issued(report.done, report)) {
    return "its report names operations that it has not issued";
  }
  return "";
}

std::string contradiction(const PeerToMaster& message) {
  const bool far = std::visit(
      [](const auto& m) {
        if constexpr (requires { m.ops; }) {
          return std::any_of(m.ops.begin(), m.ops.end(), too_far);
        } else if constexpr (requires { m.op.step; }) {
          return too_far(m.op);
        } else if constexpr (requires { m.issued; }) {
          return too_far(m.issued);
        } else if constexpr (requires { m.step; }) {
          return m.step > kStepMax;
        } else {
          return false;
        }
      },
      message);
  if (far) return "it names a step or an operation that no run reaches";
  const auto* ready = std::get_if<Ready>(&message);
  return ready == nullptr ? "" : contradiction(ready->report);
}

std::optional<std::uint64_t> furthest_step_without(const State& s, PeerId p) {
  std::optional<std::uint64_t> step;
  for (const auto& [q, seat] : s.seats) {
    const auto other = s.peers.find(q);
    if (q == p || other == s.peers.end()) continue;
    const Report& report = other->second.report;
    step = std::max(step.value_or(known_step(s)), std::max(report.step, report.issued.step));
  }
  return step;
}

std::optional<Lie> find_lie(const State& s, const Epoch& epoch) {
  const std::vector<Begun> begun = begun_of(s, epoch);
  for (const auto& [member, report] : begun) {
    if (report->passed > s.held->passed) {
      return Lie{member->peer(), "it reports a voted boundary that the register does not know"};
    }
  }
  const std::uint64_t passed = numbering_before(s, epoch).passed;
  if (epoch.boundary) {
    if (std::optional<Lie> lie = find_astray(begun)) return lie;
  }
  const std::optional<std::uint64_t> voting = first_voting(s);
  for (const auto& [member, report] : begun) {
    if (const auto denied = denied_flag(s, voting, *report)) {
      return Lie{member->peer(), "it denies what this master has said about the boundary of step " +
                                     std::to_string(*denied)};
    }
    const std::optional<OpKey> claim = newest_of(report->committed);
    bool alone = true;    // there is no other replica that could confirm or deny it
    bool no_mate = true;  // there is no other member of its peer group
    const std::optional<std::uint64_t> unvoted = first_unvoted(*report);
    bool none_there = true;  // nobody else has called anything in the step `unvoted`
    std::uint64_t step = known_step(s);
    bool confirmed = !claim;
    for (const Begun& other : begun) {
      if (replica_of(*other.member) == replica_of(*member)) continue;
      alone = false;
      step = std::max(step, other.report->step);
      none_there = none_there && !(unvoted && has_issued(*other.report, OpKey{*unvoted, 0}));
      if (other.member->place.rank != member->place.rank) continue;
      no_mate = false;
      confirmed = confirmed || has_issued(*other.report, *claim);
    }
    const auto made = s.newest_commit.find(member->place.rank);
    const bool made_here = made != s.newest_commit.end() && claim && made->second >= *claim;
    // Whatever it says about when it has begun: it was ready for an epoch that this master has
    // started.
    const bool of_this_master = report->started->incarnation() == s.held->incarnation ||
                                s.committed.contains(member->place.rank);
    if (claim && !made_here && of_this_master) {
      return Lie{member->peer(), "it reports operation " + to_string(*claim) +
                                     " as committed, and this master has not committed it"};
    }
    // Of a run of one replica a master knows only the steps in which it has committed something.
    if (alone && !of_this_master) continue;
    if (alone) step = std::max(step, s.brought_step);
    const bool foretells = std::any_of(report->flags.begin(), report->flags.end(),
                                       [&](const StepFlag& flag) { return flag.step > step + 1; });
    if (report->step > step + 1 || foretells) {
      return Lie{member->peer(), "it reports step " + std::to_string(report->step) +
                                     (foretells ? " and boundaries still further on" : "") +
                                     ", and no other member has come beyond step " +
                                     std::to_string(step)};
    }
    const bool none_knows = alone ? unvoted >= s.brought_step : none_there;
    if (unvoted && none_knows && *unvoted >= passed && !has_committed_in(s, *unvoted)) {
      return Lie{member->peer(), "it reports that the boundary of step " +
                                     std::to_string(*unvoted) +
                                     " does not vote, and no other member has issued an operation "
                                     "in that step"};
    }
    confirmed = confirmed || made_here;
    if (!confirmed && !no_mate) {
      return Lie{member->peer(), "it reports operation " + to_string(*claim) +
                                     " as committed, which no other member has issued"};
    }
  }
  return std::nullopt;
}

std::optional<Lie> find_excess(const State& s, const std::vector<Member>& members,
                               const Judgement& verdict) {
  for (const auto& [group, set] : verdict.committed) {
    if (set.also.size() <= kReportOpsMax) continue;
    const Member* most = nullptr;
    std::size_t number = 0;
    for (const Member& m : members) {
      if (m.place.rank != group) continue;
      const Report& report = s.peers.at(m.peer()).report;
      const std::size_t its = report.committed.also.size() + report.done.size();
      if (most == nullptr || its > number) most = &m, number = its;
    }
    if (most == nullptr) continue;
    return Lie{most->peer(), "it reports " + std::to_string(number) +
                                 " operations in flight, more than a verdict takes (" +
                                 std::to_string(kReportOpsMax) + ")"};
  }
  return std::nullopt;
}

std::optional<PeerId> find_hoarder(const State& s) {
  if (s.done.size() <= kReportOpsMax * s.groups.size()) return std::nullopt;
  std::map<PeerId, std::size_t> number;
  for (const auto& [key, peers] : s.done) {
    for (const PeerId p : peers) ++number[p];
  }
  return std::max_element(number.begin(), number.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace pccl::master
