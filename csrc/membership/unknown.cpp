// Peers that report an epoch which the register does not know: the register is lost or was set
// back, they belong to another run, or they lie. With tokens the server asks for a mark first
// (master/run_server.cpp). Without the operator's word the master decides nothing of it.
#include <algorithm>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {

bool is_unknown(const State& s, const Report& report) {
  if (report.accepted > EpochId::make(s.held->incarnation, s.counter)) return true;
  return report.started && (!s.held->epoch || *report.started > s.held->epoch->id);
}

bool is_invented(const State& s, PeerId p, const Report& report) {
  if (!is_own_member(s, p) || own(s)->id.incarnation() != s.held->incarnation) return false;
  const EpochId newest = std::max(report.accepted, report.started.value_or(EpochId{}));
  return is_unknown(s, report) && newest.incarnation() <= s.held->incarnation;
}

std::string text_of_unknown(const State& s) {
  EpochId newest;
  std::string names;
  for (const PeerId p : s.unknown) {
    const PeerState& peer = s.peers.at(p);
    newest = std::max({newest, peer.report.accepted, peer.report.started.value_or(EpochId{})});
    names += " " + name_of(peer.member.handle);
  }
  std::string text =
      "epoch " + to_string(newest) + " is not known to the register; here are:" + names;
  if (s.config.adopt) {
    text +=
        ". As --adopt says, the run goes on when all members of that epoch are here, and after " +
        whole_seconds(s.config.patience_ms) + " at most with those that are";
  } else {
    text +=
        ". Nothing goes on by itself: bring back the register, or start this master with "
        "--adopt, if no other one runs, or with --refound";
  }
  return cut_text(text);
}

void hold_for_unknown(State& s, PeerId p, Actions& out) {
  s.unknown.insert(p);
  if (s.config.adopt) {
    be_patient(s, out);
    adopt(s, false, out);
    if (s.writing) return;
  }
  out.push_back(Say{true, text_of_unknown(s)});
}

void evict_foreign(State& s, const std::vector<Member>& alive, Actions& out) {
  if (s.unknown.empty()) return;
  const bool known = std::any_of(alive.begin(), alive.end(),
                                 [&](const Member& m) { return !s.unknown.contains(m.peer()); });
  if (!known) return;
  for (const PeerId p : std::set<PeerId>(s.unknown)) {
    if (!is_own_member(s, p)) evict(s, p, "it reports an epoch that this run does not know", out);
  }
}

void adopt(State& s, bool patience_over, Actions& out) {
  const PeerState* newest = nullptr;
  Register to = *s.held;
  for (const auto& [p, peer] : s.peers) {
    const Report& report = peer.report;
    to.incarnation = std::max(to.incarnation, report.accepted.incarnation());
    if (!report.started) continue;
    if (newest == nullptr || *report.started > *newest->report.started) newest = &peer;
  }
  std::vector<Member> members;
  std::size_t all = 0;
  if (newest != nullptr) {
    to.passed = newest->report.passed;  // the register's may be of a run that is over
    const std::vector<PeerId>& named = newest->report.started_members;
    const std::set<PeerId> once(named.begin(), named.end());
    all = once.size();
    for (const PeerId p : named) {
      if (contains(members, p)) continue;
      const auto here = s.peers.find(p);
      if (here != s.peers.end()) members.push_back(here->second.member);
    }
  }
  if (members.size() < all && !patience_over) return;  // the rest may be on its way
  ++to.incarnation;
  if (newest != nullptr) {
    to.pinned.clear();
    to.before_passed = 0;
    to.before_pinned.clear();
    to.admitted.clear();
    to.epoch = Epoch{*newest->report.started, members, EpochId{}, false};
    to.over = false;
    to.ended.reset();
    out.push_back(Say{true, "adopted epoch " + to_string(to.epoch->id) + " with " +
                                std::to_string(members.size()) + " of its " +
                                count_of(all, "member") + ", as the operator says"});
  }
  drop_proposal(s);
  s.running = false;
  s.adopting = true;
  out.push_back(WriteRegister{*s.held, to});
  s.writing = std::move(to);
}

}  // namespace pccl::master
