// See invariants.h. The sentences say what a user would notice.
#include "invariants.h"

#include <algorithm>
#include <functional>

#include "base/limits.h"
#include "membership/master_rules.h"

namespace pccl::sim {
namespace {

/// One run that was founded: who belongs to it, and who goes on in its newest epoch.
struct Run {
  EpochId founding;
  const Epoch* newest = nullptr;
  std::vector<int> all;       // everybody that has begun it
  std::vector<int> going_on;  // members of its newest started epoch that have begun
};

bool has(const Epoch& epoch, PeerId p) {
  return std::any_of(epoch.members.begin(), epoch.members.end(),
                     [p](const Member& m) { return m.peer() == p; });
}

std::vector<Run> runs_of(const World& w) {
  std::map<EpochId, Run> runs;
  for (const auto& [id, who] : w.started) {
    Run& run = runs[w.run_of(id)];
    run.founding = w.run_of(id);
    const auto epoch = w.epochs.find(id);
    if (epoch != w.epochs.end()) run.newest = &epoch->second;
  }
  std::vector<Run> out;
  for (auto& [founding, run] : runs) {
    for (int p = 0; p < w.rules.peers; ++p) {
      const PeerWorld& peer = w.peers[static_cast<std::size_t>(p)];
      if (peer.first_epoch == EpochId{} || w.run_of(peer.first_epoch) != founding) continue;
      if (w.lies(p)) continue;
      run.all.push_back(p);
      if (run.newest == nullptr) continue;
      if (has(*run.newest, World::id(p))) run.going_on.push_back(p);
    }
    out.push_back(std::move(run));
  }
  return out;
}

const PeerWorld& at(const World& w, int p) { return w.peers[static_cast<std::size_t>(p)]; }
std::string text(int p) { return "peer " + std::to_string(p); }

/// A replica that is alone with a liar cannot be told from it.
std::size_t sound_replicas(const World& w, const Epoch& epoch) {
  std::set<int> sound;
  for (const Member& m : epoch.members) {
    const int p = World::index(m.peer());
    if (!w.goes_with_liar(p)) sound.insert(w.replica(p));
  }
  return sound.size();
}

/// Nothing is started that the register does not know, and it never goes back.
std::string registered(const World& w) {
  if (w.started.empty() || w.lost) return "";
  const EpochId newest = w.started.rbegin()->first;
  if (!w.held.epoch || w.held.epoch->id < newest) {
    return "epoch " + to_string(newest) + " was started, the register does not know it";
  }
  return "";
}

/// A replica goes on as a whole, or not at all.
std::string whole_replicas(const World& w) {
  if (!w.held.epoch || w.held.over) return "";
  // Adopted with those who are here: what starts next is without the rest of their replicas.
  const auto started = w.epochs.find(w.held.epoch->id);
  if (started != w.epochs.end() && started->second.members != w.held.epoch->members) return "";
  std::map<int, int> ranks;
  for (const Member& m : w.held.epoch->members) ++ranks[w.replica(World::index(m.peer()))];
  for (const auto& [replica, number] : ranks) {
    if (number == w.rules.ranks) continue;
    return "epoch " + to_string(w.held.epoch->id) + " has " + std::to_string(number) +
           " ranks of replica " + std::to_string(replica);
  }
  return "";
}

/// A run is finished where all of its members have said so; of one that is lost nothing is asked,
/// nor of the other ranks of its replica: a replica goes as a whole.
std::string finished(const World& w) {
  if (!w.held.ended || !w.held.epoch || w.contested || w.rules.eager) return "";
  if (w.rules.liar >= 0 && sound_replicas(w, *w.held.epoch) < 2) return "";
  std::set<int> lost;
  for (const Member& m : w.held.epoch->members) {
    const int peer = World::index(m.peer());
    if (w.at(m.peer()).life != Life::up || w.faulty.contains(peer)) lost.insert(w.replica(peer));
  }
  for (const Member& m : w.held.epoch->members) {
    const PeerWorld& peer = w.at(m.peer());
    const bool here = !peer.over && !w.lies(World::index(m.peer())) &&
                      !lost.contains(w.replica(World::index(m.peer())));
    const bool begun = peer.core.started && peer.core.started->id == w.held.epoch->id;
    if (here && begun && !peer.core.finish) {
      return "the run is finished, and " + text(World::index(m.peer())) + " has not said so";
    }
  }
  return "";
}

/// No two masters have taken the same incarnation, and nobody one that the register does not know.
std::string one_office(const World& w) {
  std::set<std::uint32_t> taken;
  for (const MasterWorld& master : w.masters) {
    if (!master.core || !master.core->holds) continue;
    const std::uint32_t incarnation = master.core->held->incarnation;
    if (incarnation > w.held.incarnation || !taken.insert(incarnation).second) {
      return "two masters hold incarnation " + std::to_string(incarnation);
    }
  }
  return "";
}

/// No split brain: of two started epochs the later is built on the earlier, unless the operator has
/// given up the earlier one's run.
std::string one_chain(const World& w) {
  EpochId earlier;
  for (const auto& [later, who] : w.started) {
    const bool anew = w.given_up != EpochId{} && earlier == w.given_up;
    if (anew && w.run_of(later) > earlier) earlier = w.run_of(later);
    EpochId reached = later;
    while (reached > earlier) {
      const auto epoch = w.epochs.find(reached);
      if (epoch == w.epochs.end()) return "epoch " + to_string(reached) + " was never proposed";
      reached = epoch->second.base;
    }
    if (reached != earlier) {
      return "split brain: epoch " + to_string(later) + " started without knowing of " +
             to_string(earlier);
    }
    earlier = later;
  }
  return "";
}

/// One outcome for each operation. A success that anybody saw, evicted or dead, is the success of
/// all; a failure is the failure of all that go on. A committed result is clean, and comes once.
std::string uniform(const World& w, const Run& run) {
  struct Seen {
    int peer;
    EpochId epoch;
    bool going_on;
  };
  std::map<std::pair<int, OpKey>, std::vector<Seen>> seen;
  for (const int p : run.all) {
    const bool going_on =
        std::find(run.going_on.begin(), run.going_on.end(), p) != run.going_on.end();
    std::set<OpKey> once;
    for (const Outcome& o : at(w, p).outcomes) {
      if (!once.insert(o.op).second) {
        return "operation " + to_string(o.op) + ": " + text(p) + " was given an outcome twice";
      }
      if (!o.clean) {
        return "operation " + to_string(o.op) + ": " + text(p) + " was given a wrong result";
      }
      if (o.closing) continue;
      auto& others = seen[{w.group(p), o.op}];
      for (const Seen& other : others) {
        const bool failed = o.epoch == EpochId{} || other.epoch == EpochId{};
        if (o.epoch != other.epoch && ((going_on && other.going_on) || !failed)) {
          return "operation " + to_string(o.op) + ": " + text(p) + " saw " + to_string(o.epoch) +
                 ", " + text(other.peer) + " saw " + to_string(other.epoch);
        }
      }
      others.push_back(Seen{p, o.epoch, going_on});
    }
  }
  return "";
}

/// Same step behind them, same shared state; same voted boundary, same pinned members.
std::string parity(const World& w, int p, int q) {
  const PeerWorld& a = at(w, p);
  const PeerWorld& b = at(w, q);
  // Before the first one a member may have been renumbered by an operation that has returned.
  if (w.rules.boundaries && a.core.passed > 0 && a.core.passed == b.core.passed &&
      a.core.pinned != b.core.pinned) {
    return text(p) + " and " + text(q) + " divide by different sizes in one step";
  }
  if (w.group(p) != w.group(q)) return "";
  // Who finishes the run offers no state. A liar that goes on there lets newcomers in without one.
  const bool at_end = std::min(a.core.step, b.core.step) > w.rules.program.size();
  if (w.rules.liar >= 0 && w.rules.finishes && at_end) return "";
  // Newcomers of a run in which the liar's replica is alone have what the liar says, or nothing.
  if (w.rules.liar >= 0 && a.first_epoch == b.first_epoch) {
    const auto first = w.epochs.find(a.first_epoch);
    const auto base = first == w.epochs.end() ? first : w.epochs.find(first->second.base);
    if (base != w.epochs.end()) {
      Epoch stayed = first->second;
      std::erase_if(stayed.members, [&](const Member& m) { return !has(base->second, m.peer()); });
      if (sound_replicas(w, stayed) == 0) return "";
    }
  }
  const std::uint64_t behind = std::min(a.core.step, b.core.step);
  const auto before = [&](const Content& content) {
    Content cut = content;
    std::erase_if(cut.ops, [&](const auto& entry) { return entry.first.step >= behind; });
    return cut;
  };
  Content mine = before(a.content);
  Content theirs = before(b.content);
  // Before the first boundary that admits, everybody has the state that it came with.
  if (a.core.passed == 0 || b.core.passed == 0 || !w.rules.boundaries || !w.rules.resumes.empty()) {
    mine.tag = theirs.tag = mine.revision = theirs.revision = 0;
  }
  if (mine != theirs && a.core.passed == b.core.passed) {
    return text(p) + " and " + text(q) + " hold different state";
  }
  return "";
}

/// Rank and size change at the same place of the program.
std::string same_numbering(const World& w, int p, int q) {
  if (w.group(p) != w.group(q)) return "";
  const auto& theirs = at(w, q).numbering_at;
  for (const auto& [op, numbering] : at(w, p).numbering_at) {
    const auto other = theirs.find(op);
    if (other != theirs.end() && other->second != numbering) {
      return "operation " + to_string(op) + ": " + text(p) + " and " + text(q) +
             " have issued it with different ranks";
    }
  }
  return "";
}

/// Nobody votes at a boundary that another one has passed without a vote.
std::string same_boundary(const World& w, int p, int q) {
  if (w.lied_of_failure) return "";  // it lets those vote that have not passed the boundary yet
  const auto& a = at(w, p).core;
  const auto& b = at(w, q).core;
  if (a.vote != VoteKind::none && a.passed == b.passed && b.step > a.step) {
    return text(p) + " votes at the boundary of step " + std::to_string(a.step) + ", " + text(q) +
           " has passed it";
  }
  return "";
}

/// Whether the boundary of a step was voted is one decision for all members of all peer groups, and
/// nobody leaves a step out.
std::string one_decision(const World& w, const Run& run) {
  std::map<std::uint64_t, bool> decided;
  std::map<std::uint64_t, int> members;  // that have passed the boundary of a step
  for (const int p : run.going_on) {
    for (const auto& [step, voted] : at(w, p).crossed) ++members[step];
  }
  for (const int p : run.going_on) {
    const auto& crossed = at(w, p).crossed;
    for (std::size_t i = 0; i < crossed.size(); ++i) {
      const auto [step, voted] = crossed[i];
      if (decided.try_emplace(step, voted).first->second != voted && !w.lied_of_failure) {
        return "the boundary of step " + std::to_string(step) +
               " was voted at one member and not at another";
      }
      const std::uint64_t next = i + 1 < crossed.size() ? crossed[i + 1].first : at(w, p).step;
      // A member alone with a liar believes it.
      const bool believes = w.rules.liar >= 0 && (members[step] < 2 || w.lied_of_failure);
      if (next != step + 1 && !believes) {
        return text(p) + " went from step " + std::to_string(step) + " to step " +
               std::to_string(next);
      }
    }
  }
  return "";
}

/// A voted boundary clears the failures before it, for good.
std::string old_failure(const World& w) {
  for (int p = 0; p < w.rules.peers; ++p) {
    const auto& core = at(w, p).core;
    if (w.lies(p)) continue;
    if (core.failure && core.failure->from.step < core.passed) {
      return text(p) + " has begun step " + std::to_string(core.passed) +
             " and fails because of an older one";
    }
  }
  return "";
}

/// Who leaves at once costs nobody anything: no member that stays has issued an operation in its
/// step, which would be replayed or fail.
std::string nothing_in_flight(const World& w) {
  for (const auto& [id, leavers] : w.at_once) {
    for (const Member& m : w.epochs.at(id).members) {
      if (w.lies(World::index(m.peer())) || !w.at(m.peer()).ready_busy.contains(id)) continue;
      return text(World::index(*leavers.begin())) + " left at once, and " +
             text(World::index(m.peer())) + " had an operation in this step";
    }
  }
  return "";
}

/// Why a peer that is well may stand still for ever; "" if there is no reason.
std::string excuse(const World& w, int p) {
  const PeerWorld& peer = at(w, p);
  if (peer.life != Life::up || peer.over || peer.hung || peer.foreign) return "it is not there";
  const master::State* core = w.in_office();
  if (core == nullptr) return "";
  const bool run_is_there = w.held.epoch && !w.held.over;
  std::map<int, int> ranks;  // of each replica that are here
  for (int q = 0; q < w.rules.peers; ++q) {
    const PeerWorld& other = at(w, q);
    const bool here = other.life == Life::up && !other.over && !other.foreign;
    if (here) ++ranks[w.replica(q)];
  }
  const auto waiting =
      static_cast<std::size_t>(std::count_if(ranks.begin(), ranks.end(), [&](const auto& entry) {
        return entry.second == w.rules.ranks;
      }));
  if (!peer.core.started) {
    if (ranks[w.replica(p)] < w.rules.ranks) return "its replica is not complete";
    if (!run_is_there && waiting < w.rules.founders) return "too few found a run";
    if (run_is_there && !w.rules.boundaries) return "the run has no boundary";
  }
  for (const PeerId q : core->unknown) {
    if (w.at(q).foreign) return "a member of another run is there";
  }
  if (core->holding) return "the run holds";
  // An operation that a liar calls another one fails in its peer group alone, and the programs of
  // the ranks of one replica part.
  const bool parts = w.rules.liar >= 0 && w.rules.ranks > 1;
  for (int q = 0; parts && q < w.rules.peers; ++q) {
    if (at(w, q).failed_step) return "an operation has failed in one peer group";
  }
  for (int q = 0; q < w.rules.peers; ++q) {
    const bool hangs = at(w, q).hung && at(w, q).life == Life::up && !at(w, q).over;
    // It hangs where nobody waits for it: nothing has expired.
    if (hangs && run_is_there && !peer.core.started) return "a member hangs";
    if (hangs && peer.core.started && peer.ops.empty() && peer.core.vote == VoteKind::none) {
      return "a member hangs";
    }
  }
  return "";
}

}  // namespace

std::string safety(const World& w) {
  if (!w.broken.empty()) return w.broken;
  if (std::string bad = registered(w); !bad.empty()) return bad;
  if (std::string bad = one_chain(w); !bad.empty()) return bad;
  if (std::string bad = one_office(w); !bad.empty()) return bad;
  if (std::string bad = finished(w); !bad.empty()) return bad;
  if (std::string bad = whole_replicas(w); !bad.empty()) return bad;
  if (std::string bad = old_failure(w); !bad.empty()) return bad;
  if (std::string bad = nothing_in_flight(w); !bad.empty()) return bad;
  for (const Run& run : runs_of(w)) {
    if (std::string bad = uniform(w, run); !bad.empty()) return bad;
    if (std::string bad = one_decision(w, run); !bad.empty()) return bad;
    for (const int p : run.going_on) {
      for (const int q : run.going_on) {
        if (p == q) continue;
        for (const auto& check : {parity, same_numbering, same_boundary}) {
          if (std::string bad = check(w, p, q); !bad.empty()) return bad;
        }
      }
    }
  }
  return "";
}

std::string liveness(const World& w) {
  for (int p = 0; p < w.rules.peers && w.rules.liar < 0; ++p) {
    bool reason = false;  // of a rank of its replica, which takes the others along
    for (int q = 0; q < w.rules.peers; ++q) {
      const bool ends = at(w, q).said_bye || at(w, q).leaving || w.faulty.contains(q);
      reason = reason || (w.replica(q) == w.replica(p) && ends);
    }
    const bool given_up = w.given_up != EpochId{} && at(w, p).first_epoch <= w.given_up;
    if (!w.contested && !w.rules.eager && !reason && !given_up && at(w, p).evicted) {
      return text(p) + " was evicted, and had no fault";
    }
  }
  // A program that has joiners calls refresh before its first operation; this one does not, and
  // somebody has joined: its ranks stand at different places, for which no protocol can do
  // anything.
  if (w.joined_late && w.rules.boundaries && !w.rules.program.front().empty()) return "";
  for (int p = 0; p < w.rules.peers; ++p) {
    if (!excuse(w, p).empty()) continue;
    return "stuck: " + text(p) + " is in step " + std::to_string(at(w, p).step) +
           " and nothing happens any more";
  }
  return "";
}

namespace {

/// Notes the first thing of which a core keeps more than it may.
class Limits {
 public:
  std::string broken;
  void keeps(const char* what, std::size_t number, std::size_t most) {
    if (number <= most || !broken.empty()) return;
    broken = std::string(what) + ": " + std::to_string(number) + " are kept, and " +
             std::to_string(most) + " at most may be";
  }
};

void look_at(const World& w, const master::State& s, Limits& limits) {
  const auto all = static_cast<std::size_t>(w.rules.peers);
  const auto ranks = static_cast<std::size_t>(w.rules.ranks);
  const std::size_t groups = std::max(s.groups.size(), std::size_t{1});
  // By peer, or by two of them: a peer that only a liar names is in none of these.
  limits.keeps("peers", s.peers.size(), all);
  limits.keeps("ready", s.ready.size(), all);
  limits.keeps("seats", s.seats.size(), all);
  limits.keeps("unknown", s.unknown.size(), all);
  limits.keeps("left", s.left.size(), all);
  limits.keeps("accusations", s.accusations.size(), all);
  limits.keeps("unreachable", s.unreachable.size(), all);
  limits.keeps("trials", s.trials.size(), all);
  limits.keeps("links_to_ask", s.links_to_ask.size(), all);
  limits.keeps("kept_waiting", s.kept_waiting.size(), all);
  limits.keeps("losses", s.losses.size(), all);
  limits.keeps("origins", s.origins.size(), all);
  limits.keeps("parted", s.parted.size(), all);
  for (const auto& [p, others] : s.parted) limits.keeps("parted from one", others.size(), all);
  limits.keeps("cannot", s.cannot.size(), all * all);
  limits.keeps("why_not", s.why_not.size(), all * all);
  limits.keeps("retried", s.retried.size(), all * all);
  limits.keeps("restarts", s.restarts.size(), all * all);
  limits.keeps("useless", s.useless.size(), all * all);
  for (const auto& [pair, tried] : s.useless) limits.keeps("useless of a pair", tried.size(), all);
  // By operation, step or peer group.
  limits.keeps("done", s.done.size(), kReportOpsMax * (groups + 1));  // and those of one message
  limits.keeps("flags", s.flags.size(), 2 * master::kStepsApartMax + all * kReportFlagsMax);
  limits.keeps("commit_step", s.commit_step.size(), ranks);
  limits.keeps("newest_commit", s.newest_commit.size(), ranks);
  limits.keeps("plans", s.plans.size(), ranks);
}

}  // namespace

std::string overfull(const World& w) {
  Limits limits;
  for (const MasterWorld& one : w.masters) {
    if (one.core) look_at(w, *one.core, limits);
  }
  const auto all = static_cast<std::size_t>(w.rules.peers);
  for (int p = 0; p < w.rules.peers; ++p) {
    if (w.lies(p)) continue;
    const peer::State& s = at(w, p).core;
    limits.keeps("flags of a peer", s.flags.size(), 2 * kReportFlagsMax);
    limits.keeps("members", s.here.size(), all);
    limits.keeps("names", s.names.size(), 3 * all);  // of its epoch, before it, and of a proposal
    limits.keeps("group_of", s.group_of.size(), 3 * all);
    limits.keeps("renumber", s.renumber.size(), kReportOpsMax);
  }
  return limits.broken;
}

}  // namespace pccl::sim
