// Founders that cannot reach each other, and no other founder helps (relays.cpp): the master tells
// them, and keeps them. They are proposed again when another founder comes, when one of them comes
// again, and else ever more rarely.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kFirstRetryS = 30;    // then twice as long each time
constexpr std::uint64_t kDoublingsMax = 4;    // 8 minutes
constexpr std::size_t kReasonBytesMax = 500;  // of a text
constexpr std::size_t kFewFounders = 64;
constexpr std::uint64_t kProposalsOfFew = 8;  // in a second; of more founders: one
constexpr const char* kWhatHelps =
    ". What helps: let one of the two be dialled by the other (forward a port at its NAT or open "
    "one in a firewall, and set PCCL_ADVERTISE and PCCL_PORTS), or add a peer that both reach";

using Apart = std::pair<PeerId, PeerId>;

std::string with_addresses(const State& s, PeerId p) {
  std::string addresses;
  for (const std::string& address : s.peers.at(p).member.handle.addresses) {
    add_to_list(addresses, printable(address));
  }
  return name(s, p) + (addresses.empty() ? "" : " at " + addresses);
}

/// Pairs of connected peers, of which one has to go or to wait.
std::vector<Apart> pairs_apart(const State& s) {
  std::vector<Apart> out;
  if (s.cannot.empty()) return out;
  const std::set<PeerId> must_go = excluded(s);
  for (const auto& [p, q] : s.cannot) {
    if (!s.peers.contains(p) || !s.peers.contains(q)) continue;
    if (must_go.contains(p) || must_go.contains(q)) out.emplace_back(p, q);
  }
  return out;
}

std::string text_of(const State& s, const Apart& pair) {
  const std::string text = with_addresses(s, pair.first) + " and " +
                           with_addresses(s, pair.second) + " cannot reach each other";
  const auto why = s.why_not.find(pair);
  if (why == s.why_not.end() || why->second.empty()) return text;
  return text + " (" + printable(why->second.substr(0, kReasonBytesMax)) + ")";
}

std::string when_again(const State& s) {
  const std::uint64_t left_s = s.apart_again_s - std::min(s.apart_again_s, s.now_s);
  return ". They try again in " + std::to_string(left_s) +
         " s, and at once when another peer comes";
}

}  // namespace

bool keeps_pace(Pace& pace, std::uint64_t now_s, std::uint64_t times_max) {
  if (pace.second_s != now_s) pace = {now_s, 0};
  if (pace.times >= times_max) return false;
  ++pace.times;
  return true;
}

std::string why_apart(const State& s, PeerId p) {
  for (const Apart& pair : pairs_apart(s)) {
    if (pair.first == p || pair.second == p) return cut_text(text_of(s, pair) + kWhatHelps);
  }
  return "";
}

std::string founders_apart(const State& s) {
  if (own(s) != nullptr || s.apart_again_s == 0) return "";
  const std::vector<Apart> pairs = pairs_apart(s);
  if (pairs.empty()) return "";
  const std::string more =
      pairs.size() == 1 ? "" : ", and so " + count_of(pairs.size() - 1, "other pair");
  return cut_text("the run is not founded: " + text_of(s, pairs.front()) + more + kWhatHelps +
                  when_again(s));
}

void hold_founders(State& s, Actions& out) {
  const std::vector<Apart> pairs = pairs_apart(s);
  if (pairs.empty()) s.apart_again_s = 0;
  if (pairs.empty() || s.apart_again_s > 0) return;
  s.apart_again_s = s.now_s + (kFirstRetryS << std::min(s.apart_tries++, kDoublingsMax));
  out.push_back(Say{true, founders_apart(s)});
  std::set<PeerId> told;
  for (const Apart& pair : pairs) {
    for (const PeerId p : {pair.first, pair.second}) {
      if (!told.insert(p).second) continue;
      send(s, p, Hold{cut_text("the run is not founded: " + why_apart(s, p) + when_again(s))}, out);
    }
  }
}

void founders_changed(State& s) {
  s.apart_again_s = 0;
  s.apart_tries = 0;
}

bool may_propose_founders(State& s, std::size_t number) {
  const bool may =
      keeps_pace(s.founding_proposals, s.now_s, number > kFewFounders ? 1 : kProposalsOfFew);
  s.found_later = !may;
  return may;
}

bool founders_try_again(State& s) {
  if (std::exchange(s.found_later, false)) return true;
  if (s.apart_again_s == 0 || s.now_s < s.apart_again_s) return false;
  s.apart_again_s = 0;
  for (const PeerId p : excluded(s)) reaches_again(s, p);
  return true;
}

}  // namespace pccl::master
