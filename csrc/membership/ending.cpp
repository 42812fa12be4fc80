// How a run is finished: all members stand at one boundary and call finish. Then the register holds
// step and time of the end, and a peer that comes later is refused with a text that names them,
// until the operator opens the run anew (--again). A run whose members all leave, or are all lost,
// is not finished.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

/// "2026-11-23 at 22:01:05 UTC". The calendar: H. Hinnant, chrono-compatible low-level date
/// algorithms.
std::string day_and_time(std::uint64_t unix_s) {
  const std::uint64_t from_march = unix_s / 86400 + 719468;  // days since the 1st of March 0000
  const std::uint64_t era = from_march / 146097;
  const std::uint64_t in_era = from_march % 146097;
  const std::uint64_t year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
  const std::uint64_t in_year = in_era - (365 * year + year / 4 - year / 100);
  const std::uint64_t month = (5 * in_year + 2) / 153;  // 0: March
  const std::uint64_t day = in_year - (153 * month + 2) / 5 + 1;
  const std::uint64_t seconds = unix_s % 86400;
  const auto two = [](std::uint64_t number) {
    return (number < 10 ? "0" : "") + std::to_string(number);
  };
  return std::to_string(era * 400 + year + (month >= 10 ? 1 : 0)) + "-" +
         two(month < 10 ? month + 3 : month - 9) + "-" + two(day) + " at " + two(seconds / 3600) +
         ":" + two(seconds / 60 % 60) + ":" + two(seconds % 60) + " UTC";
}

}  // namespace

bool all_finish(const State& s, const std::vector<Member>& voters) {
  return !voters.empty() && std::all_of(voters.begin(), voters.end(), [&](const Member& m) {
    const Report& report = s.peers.at(m.peer()).report;
    return report.finish && report.step == s.peers.at(voters.front().peer()).report.step;
  });
}

void write_ending(State& s, const std::vector<Member>& voters, Actions& out) {
  Ending ending{0, s.unix_s, s.peers.at(voters.front().peer()).report.step, ids_of(voters)};
  for (const Member& m : voters) {
    ending.step = std::max(ending.step, s.peers.at(m.peer()).report.root.revision);
  }
  write_over(s, out, ending);
}

std::string ending_text(const State& s, const std::string& run) {
  const Ending& ending = *s.held->ended;
  return run + " is finished, after step " + std::to_string(ending.step) +
         (ending.unix_s == 0 ? "" : ", on " + day_and_time(ending.unix_s)) +
         "; a master started with --again and this time opens it anew";
}

void turn_away(State& s, PeerId peer, Actions& out) {
  const std::string text = cut_text(ending_text(s, "the run \"" + s.config.run + "\""));
  const Report& report = s.peers.at(peer).report;
  const Ending& ending = *s.held->ended;
  // The peer stands at the run's last boundary: its Left may have been lost with an earlier
  // connection. A peer that stands at an earlier boundary has another state: the others have gone
  // on without it. So has a peer of an earlier founding, which began its step with other members.
  // (A newcomer's report is older than its admission and names no mates.)
  const auto ended_it = [&](PeerId p) {
    return std::find(ending.members.begin(), ending.members.end(), p) != ending.members.end();
  };
  const bool with_them =
      ended_it(peer) || std::any_of(report.pinned.begin(), report.pinned.end(), ended_it);
  const bool of_last = ending.members.empty() || (report.step == ending.boundary && with_them);
  if (of_last && report.finish && report.vote != VoteKind::none) {
    send(s, peer, Left{text, ending.members}, out);
  } else {
    send(s, peer, Refuse{Error{ErrorCode::refused, text}, true}, out);
  }
  out.push_back(Close{peer});
  forget(s, peer, "the run is finished", out);
}

}  // namespace pccl::master
