// Reports that cannot be true. A member may lie: the master evicts a member whose report
// contradicts itself, or claims something that another member would have to know, and no other
// member does. Reports of sound members pass by construction: an operation is committed when every
// mate has completed it, and a boundary that does not vote is passed only behind a commit of its
// step.
#include <algorithm>
#include <utility>

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

/// What a report claims that others would have to know.
struct Claims {
  std::optional<OpKey> commit;           // the newest one
  bool made_here = false;                // this master has made that commit
  bool of_this_master = false;           // the epoch in which the member has begun
  std::optional<std::uint64_t> unvoted;  // first_unvoted
};

Claims claims_of(const State& s, const Begun& one) {
  const std::uint32_t group = one.member->place.rank;
  const auto made = s.newest_commit.find(group);
  Claims claims;
  claims.commit = newest_of(one.report->committed);
  claims.made_here =
      made != s.newest_commit.end() && claims.commit && made->second >= *claims.commit;
  // Whatever the report says about when the member has begun: it was ready for an epoch that this
  // master has started.
  claims.of_this_master =
      one.report->started->incarnation() == s.held->incarnation || s.committed.contains(group);
  claims.unvoted = first_unvoted(*one.report);
  return claims;
}

/// What the reports of other replicas say about the claims of one report.
struct Others {
  bool any = false;             // of them could confirm or deny it
  bool mates = false;           // some are of its peer group
  std::uint64_t step = 0;       // to which this master or one of them has come
  bool issued_commit = false;   // a mate has issued the operation of its newest commit
  bool issued_unvoted = false;  // one has issued an operation in the step `unvoted`
};

Others heard_of_others(const State& s, const std::vector<Begun>& begun, const Begun& one,
                       const Claims& claims) {
  Others others;
  others.step = known_step(s);
  for (const Begun& other : begun) {
    if (replica_of(*other.member) == replica_of(*one.member)) continue;
    const Report& report = *other.report;
    others.any = true;
    others.step = std::max(others.step, report.step);
    if (claims.unvoted && has_issued(report, OpKey{*claims.unvoted, 0})) {
      others.issued_unvoted = true;
    }
    if (other.member->place.rank != one.member->place.rank) continue;
    others.mates = true;
    if (claims.commit && has_issued(report, *claims.commit)) others.issued_commit = true;
  }
  return others;
}

/// Why the report cannot be true; empty: it can. `passed`: the last voted boundary.
std::string refuted(const State& s, const Report& report, const Claims& claims,
                    const Others& others, std::uint64_t passed) {
  const auto committed = [&] {
    return "it reports operation " + to_string(*claims.commit) + " as committed, ";
  };
  if (claims.commit && !claims.made_here && claims.of_this_master) {
    return committed() + "and this master has not committed it";
  }
  // Of a run of one replica a master knows only the steps in which it has committed something.
  if (!others.any && !claims.of_this_master) return "";
  const std::uint64_t step = others.any ? others.step : std::max(others.step, s.brought_step);
  const bool foretells = std::any_of(report.flags.begin(), report.flags.end(),
                                     [&](const StepFlag& flag) { return flag.step > step + 1; });
  if (report.step > step + 1 || foretells) {
    return "it reports step " + std::to_string(report.step) +
           (foretells ? " and boundaries still further on" : "") +
           ", and no other member has come beyond step " + std::to_string(step);
  }
  const auto& unvoted = claims.unvoted;
  const bool none_knows = others.any ? !others.issued_unvoted : unvoted >= s.brought_step;
  if (unvoted && none_knows && *unvoted >= passed && !has_committed_in(s, *unvoted)) {
    return "it reports that the boundary of step " + std::to_string(*unvoted) +
           " does not vote, and no other member has issued an operation in that step";
  }
  if (claims.commit && !claims.made_here && others.mates && !others.issued_commit) {
    return committed() + "which no other member has issued";
  }
  return "";
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
  if (epoch.boundary) {
    if (std::optional<Lie> lie = find_astray(begun)) return lie;
  }
  const std::uint64_t passed = numbering_before(s, epoch).passed;
  const std::optional<std::uint64_t> voting = first_voting(s);
  for (const Begun& one : begun) {
    std::string why;
    if (const auto denied = denied_flag(s, voting, *one.report)) {
      why = "it denies what this master has said about the boundary of step " +
            std::to_string(*denied);
    } else {
      const Claims claims = claims_of(s, one);
      why = refuted(s, *one.report, claims, heard_of_others(s, begun, one, claims), passed);
    }
    if (!why.empty()) return Lie{one.member->peer(), std::move(why)};
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
