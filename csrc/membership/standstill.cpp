// All members of a run are gone, or not back yet. This file says which may come back, how long the
// master waits for them, what newcomers hear of it, and when the wait can end early. Connections
// that have closed prove no death: a router that fails at the master closes all of them, while the
// members go on. So the member that is back first waits for the others.
#include <algorithm>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kTellAgainS = 5;  // newcomers are told again after half of the rest
constexpr std::size_t kNamedMax = 8;      // members

/// The names of the members of the register's epoch for whose seat `is` holds; the first kNamedMax
/// of them.
std::string named(const State& s, bool (*is)(const Seat&)) {
  const std::vector<Member>& members = own(s)->members;
  std::string who;
  std::size_t count = 0;
  for (const Member& m : members) {
    if (!is(s.seats.at(m.peer())) || ++count > kNamedMax) continue;
    add_to_list(who, name_of(members, m));
  }
  return who + (count > kNamedMax ? " and " + std::to_string(count - kNamedMax) + " more" : "");
}

}  // namespace

std::string whole_seconds(std::uint64_t ms) { return std::to_string((ms + 999) / 1000) + " s"; }

std::uint64_t refound_ms(const State& s) {
  // The members may still be connected to a former master that is cut off from the register.
  const bool started_here =
      s.held && s.held->epoch && s.held->epoch->id.incarnation() == s.held->incarnation;
  return s.config.refound_after_ms + (s.config.shared && !started_here ? s.config.lapse_ms : 0);
}

void stand_still(State& s, TimerKind kind, Actions& out) {
  out.push_back(StartTimer{kind, {}});
  const std::uint64_t ms = kind == TimerKind::refound ? refound_ms(s) : s.config.patience_ms;
  s.stands_until_s = s.now_s + (ms + 999) / 1000;
  s.tells_again_s = 0;
}

void be_patient(State& s, Actions& out) {
  if (s.patient) return;
  s.patient = true;
  stand_still(s, TimerKind::patience, out);
}

void wait_for_others(State& s, Actions& out) {
  if (s.refounding) {
    s.refounding = false;
    out.push_back(StopTimer{TimerKind::refound, {}});
  }
  bool any = false;
  for (auto& [p, seat] : s.seats) {
    if (seat.expelled || !(seat.cut_off || seat.awaited == TimerKind::absence)) continue;
    await_no_more(s, p, out);
    seat.awaited = TimerKind::patience;
    any = true;
  }
  if (!any) return;
  be_patient(s, out);
  const std::string who =
      named(s, [](const Seat& seat) { return seat.awaited == TimerKind::patience; });
  out.push_back(Say{
      true, cut_text("the connections of all members had ended; epoch " + to_string(own(s)->id) +
                     " waits " + whole_seconds(s.config.patience_ms) + " for: " + who)});
}

void see_death(State& s, PeerId peer, Actions& out) {
  Seat* seat = seat_of(s, peer);
  if (seat == nullptr || s.peers.contains(peer) || seat->dead) return;
  seat->dead = seat->expelled = true;
  forget(s, peer, seat->reason.empty() ? "its process has ended" : seat->reason, out);
  reconsider(s, out);
}

void say_all_are_gone(const State& s, Actions& out) {
  const std::string dead = named(s, [](const Seat& seat) { return seat.dead; });
  const std::string revoked =
      named(s, [](const Seat& seat) { return seat.revoked && !seat.dead && !seat.departed; });
  if (!revoked.empty()) {
    out.push_back(Say{true, cut_text("all members of epoch " + to_string(own(s)->id) +
                                     " are gone; the tokens of these were revoked: " + revoked +
                                     ". The run waits for newcomers with valid tokens")});
  }
  if (dead.empty()) return;
  out.push_back(
      Say{true, cut_text("all members of epoch " + to_string(own(s)->id) +
                         " are gone; the processes of these have ended on this machine: " + dead)});
}

static bool is_gone(const Seat& seat) { return seat.departed || seat.dead || seat.revoked; }

bool nobody_can_come_back(const State& s) {
  return std::all_of(s.seats.begin(), s.seats.end(),
                     [](const auto& entry) { return is_gone(entry.second); });
}

std::string standstill(const State& s) {
  const Epoch* epoch = own(s);
  if (epoch == nullptr || epoch->members.empty() || !(s.patient || s.refounding) ||
      !survivors(s).empty())
    return "";
  const std::string who = named(s, [](const Seat& seat) { return !is_gone(seat); });
  const auto waiting =
      static_cast<std::size_t>(std::count_if(s.peers.begin(), s.peers.end(), [](const auto& peer) {
        return !peer.second.report.started;
      }));
  const std::uint64_t left_s = s.stands_until_s > s.now_s ? s.stands_until_s - s.now_s : 0;
  const bool ranks = epoch->members.front().place.size > 1;
  std::string text = std::string(ranks ? "no whole replica" : "no member") + " of epoch " +
                     to_string(epoch->id) + " is connected; " + who + " may come back for " +
                     std::to_string(left_s) + " s";
  if (!s.refounding && !s.config.refound) text += ", then for " + whole_seconds(refound_ms(s));
  if (!s.config.refound) text += " (--refound-after)";
  text += ", then newcomers found the run anew; " + count_of(waiting, "newcomer") +
          (waiting == 1 ? " waits" : " wait");
  if (s.config.refound) return cut_text(text);
  return cut_text(text + ". If those members are dead, " +
                  (s.refounding ? "end the wait: " : "end the second wait when it has begun: ") +
                  "stop this master with Ctrl-C (SIGINT), and start it again");
}

void tell_newcomer(State& s, PeerId peer, Actions& out) {
  const auto found = s.peers.find(peer);
  if (found == s.peers.end() || found->second.report.started) return;
  std::string text = standstill(s);
  if (text.empty()) return;
  found->second.told_s = s.now_s;
  send(s, peer, Hold{std::move(text)}, out);
}

void tell_newcomers(State& s, Actions& out) {
  if (!(s.patient || s.refounding) || s.now_s < s.tells_again_s) return;
  const std::uint64_t left_s = s.stands_until_s > s.now_s ? s.stands_until_s - s.now_s : 0;
  s.tells_again_s = s.now_s + std::max(kTellAgainS, left_s / 2);
  std::string text = standstill(s);
  if (text.empty()) return;
  std::vector<PeerId> newcomers;
  for (auto& [p, peer] : s.peers) {
    if (peer.report.started || (peer.told_s && s.now_s - *peer.told_s < kTellAgainS)) continue;
    peer.told_s = s.now_s;
    newcomers.push_back(p);
  }
  if (newcomers.empty()) return;
  send_all(s, newcomers, Hold{std::move(text)}, out);
}

}  // namespace pccl::master
