// Who counts: replicas, survivors of the register's epoch, newcomers at the door, and which Hello
// is taken at all.
#include <algorithm>

#include "membership/master_rules.h"

namespace pccl::master {

const Epoch* own(const State& s) {
  return s.held && s.held->epoch && !s.held->over ? &*s.held->epoch : nullptr;
}

bool is_own_member(const State& s, PeerId peer) { return s.group_of.contains(peer); }

std::pair<std::string, std::uint64_t> replica_of(const Member& member) {
  return {member.place.replica, member.place.attempt};
}

std::size_t replicas(const std::vector<Member>& members) {
  // Replicas are whole and of one size here, so each has exactly one rank 0.
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [](const Member& m) { return m.place.rank == 0; }));
}

std::vector<Member> whole(std::vector<Member> members) {
  const bool trivial = std::all_of(members.begin(), members.end(),
                                   [](const Member& m) { return m.place.size == 1; });
  if (trivial) return members;
  std::map<std::pair<std::string, std::uint64_t>, std::set<std::uint32_t>> ranks;
  for (const Member& m : members) ranks[replica_of(m)].insert(m.place.rank);
  std::erase_if(members,
                [&](const Member& m) { return ranks[replica_of(m)].size() < m.place.size; });
  return members;
}

/// Who cannot reach the most goes first, among equals the youngest: so if one is down of whom the
/// master has not heard it yet, that one goes, and not all who miss it.
std::set<PeerId> excluded(const State& s) {
  std::set<PeerId> out;
  if (s.cannot.empty()) return out;
  const auto counts = [&](PeerId p, PeerId q) {
    return s.peers.contains(q) && (s.peers.contains(p) || s.awaited.contains(p));
  };
  for (const auto& [p, q] : s.cannot) {  // no newcomers, however many, put a member out
    if (!counts(p, q)) continue;
    if (is_own_member(s, q) && !is_own_member(s, p)) out.insert(p);
    if (planted(s.config.planted, "all_younger_go")) out.insert(p);
  }
  std::map<PeerId, std::set<PeerId>> apart;
  for (const auto& [p, q] : s.cannot) {
    if (!counts(p, q) || out.contains(p) || out.contains(q)) continue;
    apart[p].insert(q);
    apart[q].insert(p);
  }
  const auto age = [&](PeerId p) {  // members by rank, newcomers after them by arrival
    const Epoch* epoch = own(s);
    const std::size_t size = epoch == nullptr ? 0 : epoch->members.size();
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (epoch->members[rank].peer() == p) return std::pair<std::size_t, std::uint64_t>(rank, 0);
    }
    const auto known = s.peers.find(p);
    return std::pair(size, known == s.peers.end() ? 0 : known->second.arrived);
  };
  while (!apart.empty()) {
    const auto goes = std::max_element(apart.begin(), apart.end(), [&](auto& a, auto& b) {
      if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
      return age(a.first) < age(b.first);
    });
    const PeerId p = goes->first;
    const std::set<PeerId> others = std::move(goes->second);
    apart.erase(goes);
    for (const PeerId q : others) {
      apart.at(q).erase(p);
      if (apart.at(q).empty()) apart.erase(q);
    }
    out.insert(p);
  }
  return out;
}

std::vector<Member> survivors(const State& s) {
  std::vector<Member> alive;
  const Epoch* epoch = own(s);
  if (epoch == nullptr) return alive;
  const std::set<PeerId> out = excluded(s);
  for (const Member& m : epoch->members) {
    const PeerId p = m.peer();
    if (!s.peers.contains(p) || out.contains(p) || s.expelled.contains(p)) continue;
    alive.push_back(m);
  }
  return planted(s.config.planted, "half_replica") ? alive : whole(std::move(alive));
}

std::vector<Member> door(const State& s) {
  std::vector<Member> waiting;
  std::set<PeerId> out;
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> arrival;
  for (const auto& [p, state] : s.peers) {
    if (state.report.started || s.expelled.contains(p)) continue;
    if (own(s) != nullptr && !state.at_door) continue;
    waiting.push_back(state.member);
  }
  if (waiting.empty()) return waiting;
  out = excluded(s);
  for (const Member& m : survivors(s)) out.insert(m.peer());
  std::erase_if(waiting, [&](const Member& m) { return out.contains(m.peer()); });
  waiting = whole(std::move(waiting));
  // Ranks of one replica stay together, so that a replica has one position in all peer groups.
  for (const Member& m : waiting) {
    const std::uint64_t arrived = s.peers.at(m.peer()).arrived;
    const auto [at, added] = arrival.try_emplace(replica_of(m), arrived);
    if (!added) at->second = std::min(at->second, arrived);
  }
  std::sort(waiting.begin(), waiting.end(), [&](const Member& a, const Member& b) {
    return std::pair(arrival[replica_of(a)], a.place.rank) <
           std::pair(arrival[replica_of(b)], b.place.rank);
  });
  return waiting;
}

std::set<PeerId> who_leaves(const State& s, const std::vector<Member>& members) {
  std::set<std::pair<std::string, std::uint64_t>> leaving;
  for (const Member& m : members) {
    const auto peer = s.peers.find(m.peer());
    if (peer != s.peers.end() && peer->second.report.leaving) leaving.insert(replica_of(m));
  }
  std::set<PeerId> out;
  if (leaving.empty()) return out;
  for (const Member& m : members) {
    if (leaving.contains(replica_of(m))) out.insert(m.peer());
  }
  return out;
}

bool wants_boundary(const State& s, const std::vector<PeerId>& pinned,
                    const std::vector<Member>& members) {
  return pinned != ids_of(members) || replicas(members) < s.config.hold_below ||
         !who_leaves(s, members).empty() || !door(s).empty();
}

namespace {

Error refuse(std::string text) { return Error{ErrorCode::refused, cut_text(std::move(text))}; }

/// Replicas of one run have one size and one on_loss: those of its members, or of who waits
/// already.
Error check_like_others(const State& s, const Member& mine) {
  const Member* other = nullptr;
  if (own(s) != nullptr && !own(s)->members.empty()) {
    other = &own(s)->members.front();
  } else {
    const auto waits = std::find_if(s.peers.begin(), s.peers.end(),
                                    [&](const auto& peer) { return peer.first != mine.peer(); });
    if (waits != s.peers.end()) other = &waits->second.member;
  }
  if (other == nullptr) return Error{};
  if (other->place.size != mine.place.size) {
    return refuse("replica " + mine.place.replica + " has " + count_of(mine.place.size, "rank") +
                  ", the replicas of this run have " + std::to_string(other->place.size));
  }
  if (other->raises != mine.raises) {
    const auto text = [](bool raises) {
      return raises ? "on_loss=\"raise\"" : "on_loss=\"retry\"";
    };
    return refuse(std::string("this peer has ") + text(mine.raises) + ", the others of this run " +
                  text(other->raises));
  }
  return Error{};
}

/// Does `other`, connected or awaited, leave no room for this Hello's place?
Error check_beside(const Member& mine, const Member& other) {
  const Place& place = mine.place;
  if (other.peer() == mine.peer() || other.place.replica != place.replica) return Error{};
  if (other.place.attempt > place.attempt) {
    return refuse("replica " + place.replica + ": attempt " + std::to_string(place.attempt) +
                  " has been replaced by attempt " + std::to_string(other.place.attempt));
  }
  if (other.place.attempt == place.attempt && other.place.rank == place.rank) {
    return refuse("rank " + std::to_string(place.rank) + " of replica " + place.replica +
                  " (attempt " + std::to_string(place.attempt) +
                  ") is there already: " + to_string(other.peer()));
  }
  return Error{};
}

}  // namespace

Error check_hello(const State& s, const Hello& hello) {
  const Place& place = hello.member.place;
  const PeerId p = hello.member.peer();
  if (!hello.run.empty() && hello.run != s.config.run) {
    return refuse("this master serves run \"" + s.config.run + "\", not \"" + hello.run + "\"");
  }
  if (p == PeerId{}) return refuse("a peer without a number");
  if (place.replica.empty() || place.rank >= place.size || place.size > kMembersMax) {
    return refuse("replica \"" + place.replica + "\": rank " + std::to_string(place.rank) + " of " +
                  std::to_string(place.size) + " is no place");
  }
  if (hello.member.raises && place.size > 1) {
    return refuse(
        "on_loss=\"raise\" with replicas of several ranks: a failure in one peer group "
        "would leave the ranks of a replica a step apart");
  }
  if (Error error = check_like_others(s, hello.member); error.failed()) return error;
  if (own(s) != nullptr) {
    for (const Member& m : own(s)->members) {
      if (m.peer() == p && m.place != place) {
        return refuse("this peer was rank " + std::to_string(m.place.rank) + " of replica " +
                      m.place.replica + " before");
      }
      const bool counts = s.awaited.contains(m.peer()) && !s.expelled.contains(m.peer());
      if (!counts) continue;
      if (Error error = check_beside(hello.member, m); error.failed()) return error;
    }
  }
  for (const auto& [q, state] : s.peers) {
    if (Error error = check_beside(hello.member, state.member); error.failed()) return error;
  }
  if (s.peers.size() >= kMembersMax && !s.peers.contains(p)) {
    return refuse("this run is full: " + count_of(kMembersMax, "peer"));
  }
  return Error{};
}

}  // namespace pccl::master
