// How long peers that have the shared state wait for those that fetch it. A fetch is evident when
// both sides say so: the fetching peer alone could hold all others by its word, and so could a
// serving one. Beside the bytes, a peer gets time to hash and take over what it has fetched.
#include <algorithm>
#include <limits>

#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kFetchMaxS = 1800;  // of one wait, whatever is fetched
constexpr std::uint64_t kAdoptBytesPerSecondMin = 64U << 20;

std::uint64_t grown(std::uint64_t from, std::uint64_t to) { return to - std::min(from, to); }

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  return a + std::min(b, std::numeric_limits<std::uint64_t>::max() - a);
}

/// The size of the state of a peer group: at least half of its peers that are ready offer no larger
/// one. The ranks of a replica may have states of very different sizes.
std::uint64_t state_bytes(const State& s, std::uint32_t group) {
  std::vector<std::uint64_t> said;
  for (const PeerId p : s.ready) {
    const auto peer = s.peers.find(p);
    if (peer == s.peers.end() || peer->second.member.place.rank != group) continue;
    said.push_back(peer->second.beat.state_bytes);
  }
  if (said.empty()) return 0;
  const auto middle = said.begin() + static_cast<std::ptrdiff_t>((said.size() - 1) / 2);
  std::nth_element(said.begin(), middle, said.end());
  return *middle;
}

}  // namespace

void watch_fetches(const State& s, Fetches& fetches, std::uint64_t elapsed_s) {
  std::uint64_t fetched = 0;
  std::uint64_t served = 0;
  for (const Member& m : s.proposal->members) {
    const auto peer = s.peers.find(m.peer());
    if (peer == s.peers.end()) continue;
    const Heartbeat& now = peer->second.beat;
    const Heartbeat& before = peer->second.beat_before;
    if (s.ready.contains(m.peer())) {
      served = sum(served, grown(before.served, now.served));
    } else {
      fetched = sum(fetched, grown(before.fetched, now.fetched));
    }
  }
  fetches.fetched = sum(fetches.fetched, fetched);
  fetches.served = sum(fetches.served, served);
  fetches.fetched_still_s = fetched > 0 ? 0 : fetches.fetched_still_s + elapsed_s;
  fetches.served_still_s = served > 0 ? 0 : fetches.served_still_s + elapsed_s;
  fetches.for_s += elapsed_s;
}

void look_at_beats(State& s) {
  for (auto& [p, peer] : s.peers) peer.beat_before = peer.beat;
}

bool waited_enough(const State& s, const Fetches& fetches, const std::vector<PeerId>& unready,
                   std::uint64_t still_s_max) {
  std::map<std::uint32_t, std::uint64_t> number;
  for (const PeerId p : unready) ++number[s.peers.at(p).member.place.rank];
  std::uint64_t adopt_s = 0;
  std::uint64_t needed = 0;
  for (const auto& [group, peers] : number) {
    const std::uint64_t bytes = state_bytes(s, group);
    adopt_s = std::max(adopt_s, bytes / kAdoptBytesPerSecondMin);
    // Each of them needs the state once. (A state beyond the factor takes longer than kFetchMaxS.)
    needed += std::min(bytes, kFetchMaxS * kPullBytesPerSecondMin) * peers;
  }
  // What moves shows in heartbeats only.
  still_s_max = std::max(still_s_max, 3 * s.config.heartbeat_ms / 1000);
  const std::uint64_t still_s = std::max(fetches.fetched_still_s, fetches.served_still_s);
  if (still_s >= std::min(still_s_max + adopt_s, kFetchMaxS)) return true;
  const std::uint64_t move_s =
      std::min({fetches.fetched, fetches.served, needed}) / kPullBytesPerSecondMin;
  return fetches.for_s >= std::min(still_s_max + adopt_s + move_s, kFetchMaxS);
}

}  // namespace pccl::master
