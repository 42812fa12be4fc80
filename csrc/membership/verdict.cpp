// The verdict: which operations in flight are committed, by the reports of the members that go on.
//
// An operation is committed if this master has committed it, or if one of these members knows it to
// be committed by an earlier master, or if all of them that are in the operation's peer group have
// completed it in the newest epoch that one of them has started. Then no member lacks the result,
// and a commit of which only a lost peer or a lost master knew is not undone. What members say
// about commits of this master is not needed, and a liar among them could call anything committed.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

/// Adds the operations that this master has committed, and those that one mate (a member of the
/// same peer group) knows from an earlier master. A mate that has left a step has all operations of
/// that step below its `below`: it left when all were committed.
///
/// A master that has started an epoch knows what is committed: that epoch's verdict rested on what
/// all its members had said. A member that has left a step says then that no mate can be waiting in
/// it for an operation; where there are three mates or more, two have to say so.
void add_known(const State& s, const std::vector<Begun>& begun, Judgement& verdict) {
  std::map<std::uint32_t, std::vector<OpKey>> left;  // `below` of each mate
  for (const auto& [member, report] : begun) {
    const std::uint32_t group = member->place.rank;
    if (const auto own = s.committed.find(group); own != s.committed.end()) {
      // Of its steps this master has said whether their boundaries vote.
      verdict.committed.try_emplace(group, own->second);
      left[group].push_back(report->committed.below);
      continue;
    }
    OpSet& set = verdict.committed[group];
    set.below = std::max(set.below, report->committed.below);
    set.also.insert(set.also.end(), report->committed.also.begin(), report->committed.also.end());
    if (report->committed.below.index > 0) {
      verdict.commit_steps.insert(report->committed.below.step);
    }
    for (const OpKey key : report->committed.also) verdict.commit_steps.insert(key.step);
  }
  for (auto& [group, below] : left) {
    std::sort(below.rbegin(), below.rend());
    OpSet& set = verdict.committed[group];
    set.below = std::max(set.below, below[below.size() > 2 ? 1 : 0]);
  }
}

/// Adds the operations that all mates that go on have completed in the newest epoch that one of
/// them has started. Another peer group may have started a newer epoch. That changes nothing:
/// without these mates nothing was committed in that epoch except by its verdict, which rested on
/// the same completions.
void add_completed(const State& s, const Epoch& epoch, Judgement& verdict) {
  std::map<std::uint32_t, std::vector<const Report*>> mates;
  for (const Member& m : epoch.members) {
    mates[m.place.rank].push_back(&s.peers.at(m.peer()).report);
  }
  for (const auto& [group, reports] : mates) {
    EpochId newest;
    for (const Report* r : reports) newest = std::max(newest, r->started.value_or(EpochId{}));
    const bool current = std::all_of(reports.begin(), reports.end(), [&](const Report* r) {
      return r->started && *r->started == newest;
    });
    if (!current) continue;
    std::map<OpKey, std::size_t> done;
    for (const Report* r : reports) {
      for (const OpKey key : r->done) ++done[key];
    }
    OpSet& set = verdict.committed[group];
    for (const auto& [key, number] : done) {
      const auto has = [&, k = key](const Report* r) {
        return k.step < r->step || contains(r->committed, k) ||
               std::find(r->done.begin(), r->done.end(), k) != r->done.end();
      };
      if (number < reports.size() && !std::all_of(reports.begin(), reports.end(), has)) continue;
      set.also.push_back(key);
      verdict.commit_steps.insert(key.step);
    }
  }
}

/// At a boundary nothing of a later step is committed, whatever a member that was alone has said.
void end_with_boundary(Judgement& verdict) {
  const OpKey next{verdict.passed, 0};
  for (auto& [group, set] : verdict.committed) {
    set.below = std::min(set.below, next);
    std::erase_if(set.also, [next](OpKey key) { return key >= next; });
  }
}

void tidy(Judgement& verdict) {
  for (auto& [group, set] : verdict.committed) {
    std::sort(set.also.begin(), set.also.end());
    set.also.erase(std::unique(set.also.begin(), set.also.end()), set.also.end());
    std::erase_if(set.also, [below = set.below](OpKey key) { return key < below; });
  }
}

/// The first failure of the step among those that members report. (Each peer finds out by itself
/// which operations cannot be replayed after the loss.)
void add_failure(const std::vector<Begun>& begun, Judgement& verdict) {
  for (const auto& [member, report] : begun) {
    // A failure before the last voted boundary: that boundary has cleared it.
    if (!report->failure || report->failure->from.step < verdict.passed) continue;
    if (!verdict.failure || report->failure->from < verdict.failure->from) {
      verdict.failure = report->failure;
    }
  }
}

/// For each step that a member may still be in: does its boundary vote? If a member has left a step
/// without a vote, however long ago, the boundary of that step does not. Steps that all members
/// have left are not in the verdict. (A member that has started no epoch yet begins with the step
/// after the last voted boundary.)
void add_flags(const State& s, const std::vector<Begun>& begun, bool all_begun,
               Judgement& verdict) {
  std::uint64_t oldest = all_begun ? begun.front().report->step : verdict.passed;
  for (const auto& [member, report] : begun) oldest = std::min(oldest, report->step);
  for (const auto& [step, votes] : s.flags) {
    if (step >= oldest) verdict.flags[step] = votes;
  }
  for (const auto& [member, report] : begun) {
    for (const StepFlag& flag : report->flags) {
      if (flag.step >= oldest) verdict.flags[flag.step] = flag.votes;
    }
  }
  for (const auto& [member, report] : begun) {
    if (report->passed != verdict.passed) continue;
    std::uint64_t last = report->step;
    if (last - std::min(last, oldest) > kStepsApartMax) last = oldest + kStepsApartMax;
    for (std::uint64_t step = std::max(report->passed, oldest); step < last; ++step) {
      verdict.flags[step] = false;
    }
  }
}

/// What most members report that have started `epoch`; among equals that of the lowest rank.
Numbering numbering_of_most(const std::vector<Begun>& begun, EpochId epoch) {
  std::map<std::pair<std::uint64_t, std::vector<PeerId>>, std::size_t> number;
  std::size_t most = 0;
  for (const auto& [member, report] : begun) {
    if (report->started != epoch) continue;
    most = std::max(most, ++number[{report->passed, report->pinned}]);
  }
  const auto found = std::find_if(begun.begin(), begun.end(), [&](const Begun& b) {
    return b.report->started == epoch && number[{b.report->passed, b.report->pinned}] == most;
  });
  return {found->report->passed, found->report->pinned};
}

}  // namespace

std::vector<StepFlag> flags_for(const State& s, const Judgement& verdict,
                                const std::vector<PeerId>& mates) {
  auto flag = verdict.flags.begin();
  if (verdict.flags.size() > kReportFlagsMax) {
    std::uint64_t oldest = ~std::uint64_t{0};
    for (const PeerId p : mates) {
      const Report& report = s.peers.at(p).report;
      oldest = std::min(oldest, report.started ? report.step : verdict.passed);
    }
    flag = verdict.flags.lower_bound(oldest);
  }
  std::vector<StepFlag> flags;
  for (; flag != verdict.flags.end() && flags.size() < kReportFlagsMax; ++flag) {
    flags.push_back(StepFlag{flag->first, flag->second});
  }
  return flags;
}

std::vector<Begun> begun_of(const State& s, const Epoch& epoch) {
  std::vector<Begun> begun;
  for (const Member& m : epoch.members) {
    const auto peer = s.peers.find(m.peer());
    if (peer != s.peers.end() && peer->second.report.started) {
      begun.push_back(Begun{&m, &peer->second.report});
    }
  }
  return begun;
}

EpochId newest_started(const State& s, const std::vector<Member>& alive) {
  EpochId newest;
  for (const Member& m : alive) {
    newest = std::max(newest, s.peers.at(m.peer()).report.started.value_or(EpochId{}));
  }
  return newest;
}

std::set<PeerId> members_of_started(const State& s, const std::vector<Member>& alive, EpochId id) {
  std::set<PeerId> members;
  if (id == own(s)->id || !own(s)->boundary || !s.held->before_pinned.empty()) {
    for (const Member& m : own(s)->members) members.insert(m.peer());
    if (id == own(s)->id || !own(s)->boundary) return members;
    for (const PeerId p : s.held->admitted) members.erase(p);
    return members;
  }
  std::size_t reports = 0;
  std::map<PeerId, std::size_t> named;
  for (const Member& m : alive) {
    const Report& r = s.peers.at(m.peer()).report;
    if (r.started != id) continue;
    ++reports;
    for (const PeerId p : std::set<PeerId>(r.started_members.begin(), r.started_members.end())) {
      ++named[p];
    }
  }
  for (const auto& [p, times] : named) {
    if (2 * times > reports) members.insert(p);
  }
  return members;
}

Numbering numbering_before(const State& s, const Epoch& epoch) {
  const Epoch* held = own(s);
  const std::vector<Begun> begun = begun_of(s, epoch);
  if (begun.empty()) {
    // No connected member has started the register's epoch: nothing was in flight.
    return {held == nullptr ? 0 : s.held->passed, ids_of(epoch.members)};
  }
  EpochId newest;
  for (const auto& [member, report] : begun) newest = std::max(newest, *report->started);
  if (held == nullptr) return numbering_of_most(begun, newest);
  // Also a member that leaves may have started it.
  const std::vector<Member> alive = survivors(s);
  const bool started = std::any_of(alive.begin(), alive.end(), [&](const Member& m) {
    return s.peers.at(m.peer()).report.started == held->id;
  });
  const bool known = !s.held->pinned.empty();
  // A boundary that the register holds, and that nobody has started, has passed for nobody.
  if (!started && held->boundary) {
    if (!s.held->before_pinned.empty()) return {s.held->before_passed, s.held->before_pinned};
    return numbering_of_most(begun, newest);
  }
  if (known) return {s.held->passed, s.held->pinned};
  if (held->boundary) return {s.held->passed, ids_of(held->members)};
  return {s.held->passed, numbering_of_most(begun, newest).pinned};
}

Numbering numbering_of(const State& s, const Epoch& epoch) {
  const std::vector<Begun> begun = begun_of(s, epoch);
  if (begun.empty() || !epoch.boundary) return numbering_before(s, epoch);
  std::uint64_t step = 0;
  for (const auto& [member, report] : begun) step = std::max(step, report->step);
  return {std::min(step, kStepMax) + 1, ids_of(epoch.members)};
}

Judgement judge(const State& s, const Epoch& epoch, Numbering numbering) {
  Judgement verdict;
  verdict.passed = numbering.passed;
  verdict.pinned = std::move(numbering.pinned);
  const std::vector<Begun> begun = begun_of(s, epoch);
  if (begun.empty()) return verdict;
  add_known(s, begun, verdict);
  if (epoch.boundary) {
    end_with_boundary(verdict);
    tidy(verdict);
    add_failure(begun, verdict);  // of a later step: newcomers learn it too
    return verdict;
  }
  add_completed(s, epoch, verdict);
  tidy(verdict);
  add_failure(begun, verdict);
  add_flags(s, begun, begun.size() == epoch.members.size(), verdict);
  return verdict;
}

}  // namespace pccl::master
