// Newcomers that are asked to be ready for an epoch, and are not: how long the members wait for
// them at a boundary, and how long those wait then before they are asked again. A founding is
// bounded in the same way. What counts against a newcomer counts against its origin, because ids
// cost nothing.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kReadyS = 30;           // without an answer, or a byte of the state
constexpr std::uint64_t kFirstWaitS = 30;       // then twice as long each time
constexpr std::uint64_t kWaitMaxS = 600;        // of an origin
constexpr std::uint64_t kUnreachedAllowed = 2;  // newcomers of an origin that nobody could reach
constexpr std::uint64_t kRetryDoublingsMax =
    5;                                       // of a newcomer that could not be reached: 16 minutes
constexpr std::uint64_t kForgottenS = 7200;  // an origin of which nothing bad is heard
constexpr std::size_t kOriginsMax = 4096;

Origin& origin_of(State& s, PeerId p) {
  std::erase_if(s.origins,
                [&](const auto& entry) { return entry.second.last_s + kForgottenS <= s.now_s; });
  if (s.origins.size() >= kOriginsMax) {
    s.origins.erase(std::min_element(
        s.origins.begin(), s.origins.end(),
        [](const auto& a, const auto& b) { return a.second.last_s < b.second.last_s; }));
  }
  Origin& origin = s.origins[origin_name(s, p)];
  origin.last_s = s.now_s;
  return origin;
}

void let_wait(const State& s, Origin& origin, std::uint64_t times) {
  const std::uint64_t doublings = std::min<std::uint64_t>(times - 1, 10);
  origin.until_s =
      std::max(origin.until_s, s.now_s + std::min(kFirstWaitS << doublings, kWaitMaxS));
}

}  // namespace

std::string origin_name(const State& s, PeerId p) {
  const auto peer = s.peers.find(p);
  return peer == s.peers.end() || peer->second.origin.empty() ? to_string(p) : peer->second.origin;
}

Say warning_of(const State& s, PeerId p, std::string text) {
  return {true, std::move(text), is_own_member(s, p) ? "" : origin_name(s, p)};
}

std::uint64_t origin_waits_s(const State& s, PeerId p) {
  if (s.asked.let_in && s.asked.let_in->contains(p)) return 0;  // it was ready in time
  const auto origin = s.origins.find(origin_name(s, p));
  if (origin == s.origins.end()) return 0;
  return origin->second.until_s - std::min(origin->second.until_s, s.now_s);
}

std::uint64_t not_reached(State& s, PeerId newcomer, const std::string& why) {
  Unreachable& held = s.unreachable[newcomer];
  const std::uint64_t wait_s = kFirstWaitS << std::min(held.times++, kRetryDoublingsMax);
  held.retry_s = s.now_s + wait_s;
  held.why = cut_text(why);
  Origin& origin = origin_of(s, newcomer);
  if (++origin.unreached > kUnreachedAllowed) {
    let_wait(s, origin, origin.unreached - kUnreachedAllowed);
  }
  return wait_s;
}

bool give_up_newcomers(State& s, std::uint64_t elapsed_s, Actions& out) {
  if (!s.proposal) return false;
  NewcomersAsked& asked = s.asked;
  std::set<PeerId> ready;
  std::vector<PeerId> missing;
  for (const Member& m : s.proposal->members) {
    const PeerId p = m.peer();
    const auto found = s.peers.find(p);
    if (is_own_member(s, p) || found == s.peers.end()) continue;
    asked.any = true;
    PeerState& peer = found->second;
    if (s.ready.contains(p)) {
      peer.unready_s = 0;
      ready.insert(p);
      continue;
    }
    missing.push_back(p);
    peer.unready_s += elapsed_s;
  }
  if (!asked.any) return false;
  watch_fetches(s, asked.fetches, elapsed_s);
  if (missing.empty()) return false;
  // While most founders are not ready, the cause may lie anywhere.
  if (own(s) == nullptr && 2 * s.ready.size() < s.proposal->members.size()) return false;
  if (!waited_enough(s, asked.fetches, missing, kReadyS)) return false;
  asked.let_in = ready;
  for (const PeerId p : missing) {
    PeerState& peer = s.peers.at(p);
    if (peer.unready_s < kReadyS) continue;  // asked lately: it waits for the next boundary
    peer.unready_s = 0;
    Origin& origin = origin_of(s, p);
    let_wait(s, origin, ++origin.unready);
    out.push_back(Say{
        true, cut_text(name(s, p) + " is not ready for epoch " + to_string(s.proposal->id) +
                       " after " + std::to_string(kReadyS) + " s: the others go on without it")});
  }
  explain_door(s, out);
  return true;
}

}  // namespace pccl::master
