// Members, reports and a master in office, for the tests of the pure functions.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "membership/master_rules.h"

namespace pccl::cast {

inline Member member(std::uint64_t id, std::string replica = "", std::uint32_t rank = 0,
                     std::uint32_t size = 1) {
  Member m;
  m.handle.peer = PeerId{id};
  m.place.replica = replica.empty() ? "r" + std::to_string(id) : std::move(replica);
  m.place.rank = rank;
  m.place.size = size;
  return m;
}

inline std::vector<PeerId> peers(std::initializer_list<std::uint64_t> ids) {
  std::vector<PeerId> out;
  for (const std::uint64_t id : ids) out.push_back(PeerId{id});
  return out;
}

inline StateRoot root(std::uint64_t revision, char name) {
  StateRoot r{true, revision, {}};
  r.digest[0] = static_cast<std::uint8_t>(name);
  return r;
}

inline const EpochId kEpoch = EpochId::make(1, 1);

/// A master whose register holds epoch 1.1 of these members, all connected and in that epoch.
inline master::State in_office(const std::vector<Member>& members, std::uint64_t passed = 1) {
  master::State s;
  s.held = master::Register{1, Epoch{EpochId::make(1, 1), members, {}, true}, passed, false};
  s.holds = s.running = true;
  s.counter = 1;
  master::index_members(s);
  for (const Member& m : members) {
    master::PeerState& peer = s.peers[m.peer()];
    peer.member = m;
    peer.report.started = peer.report.accepted = EpochId::make(1, 1);
    peer.report.passed = peer.report.step = passed;
    peer.report.pinned = ids_of(members);
    peer.report.committed.below = peer.report.issued = OpKey{passed, 0};
  }
  s.held->pinned = ids_of(members);
  s.held->before_passed = passed;  // so its last vote was not the first one
  return s;
}

inline master::Actions tell(master::State& s, std::uint64_t peer, PeerToMaster message) {
  return master::step(s, master::PeerMessage{PeerId{peer}, std::move(message)});
}

inline master::Judgement judged(const master::State& s, const Epoch& epoch) {
  return judge(s, epoch, numbering_of(s, epoch));
}

inline Report& report(master::State& s, std::uint64_t peer) {
  return s.peers.at(PeerId{peer}).report;
}

/// A newcomer whose links to all members are up.
inline void newcomer(master::State& s, const Member& m, bool at_door = true) {
  master::PeerState& peer = s.peers[m.peer()];
  peer.member = m;
  peer.at_door = at_door;
  peer.arrived = ++s.arrivals;
  master::Trial& trial = s.trials[m.peer()];
  trial.number = ++s.trials_begun;
  const auto mates = s.groups.find(m.place.rank);
  if (mates != s.groups.end()) trial.mates = {mates->second.begin(), mates->second.end()};
}

inline Epoch next_epoch(const std::vector<Member>& members, bool boundary = false) {
  return Epoch{EpochId::make(1, 2), members, EpochId::make(1, 1), boundary};
}

/// Two continents, of the odd and of the even peers: bytes a second from one to another.
inline constexpr std::uint64_t kLan = 125'000'000;
inline std::uint64_t oceans(PeerId from, PeerId to) {
  return from.value % 2 == to.value % 2 ? kLan : kLan / 10;
}
inline std::size_t crossings(const std::vector<PeerId>& ring) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    count += ring[i].value % 2 != ring[(i + 1) % ring.size()].value % 2 ? 1 : 0;
  }
  return count;
}

template <typename T, typename Actions>
std::vector<T> all(const Actions& actions) {
  std::vector<T> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<T>(&action)) found.push_back(*one);
  }
  return found;
}

/// Messages of one kind that the master sends, with their receivers.
template <typename T>
std::vector<std::pair<PeerId, T>> sent(const master::Actions& actions) {
  std::vector<std::pair<PeerId, T>> found;
  for (const auto& action : actions) {
    if (const auto* send = std::get_if<master::Send>(&action)) {
      if (const auto* message = std::get_if<T>(&send->message)) {
        found.emplace_back(send->peer, *message);
      }
    } else if (const auto* to_all = std::get_if<master::SendAll>(&action)) {
      const auto* message = std::get_if<T>(&to_all->message);
      if (message == nullptr) continue;
      for (const PeerId p : to_all->peers) found.emplace_back(p, *message);
    }
  }
  return found;
}

/// The peers but `mute` answer at once that the links which they are to try are up. Returns all
/// actions.
inline master::Actions linked(master::State& s, master::Actions actions,
                              const std::set<std::uint64_t>& mute = {}) {
  for (std::size_t at = 0; at < actions.size(); ++at) {
    for (const auto& [to, links] : sent<Try>(master::Actions{actions[at]})) {
      Tried said;
      for (const Handle& other : links.open) {
        if (mute.contains(to.value) || mute.contains(other.peer.value)) continue;
        said.links.push_back({other.peer, ""});
      }
      const master::Actions more = tell(s, to.value, std::move(said));
      actions.insert(actions.end(), more.begin(), more.end());
    }
  }
  return actions;
}

/// The members of the first epoch that is proposed; empty: none is.
inline std::vector<PeerId> proposed(const master::Actions& actions) {
  const auto proposals = sent<Propose>(actions);
  return proposals.empty() ? std::vector<PeerId>{} : ids_of(proposals[0].second.epoch.members);
}

/// Seconds until the proposal is another one; 0: it is not within `most`. `each`: every second.
template <typename Each>
std::uint64_t until_another(master::State& s, std::uint64_t most, Each&& each) {
  const EpochId before = s.proposal->id;
  for (std::uint64_t second = 1; second <= most; ++second) {
    each(second);
    static_cast<void>(master::step(s, master::Clock{s.now_s + 1, 0}));
    if (!s.proposal || s.proposal->id != before) return second;
  }
  return 0;
}
inline std::uint64_t until_another(master::State& s, std::uint64_t most) {
  return until_another(s, most, [](std::uint64_t) {});
}

}  // namespace pccl::cast
