// Which peers count: whole replicas, survivors of the register's epoch, newcomers at the door; and
// which Hello is accepted.
#include <algorithm>
#include <functional>
#include <optional>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kLossesWithinS = 600;
constexpr std::size_t kLossesAllowed = 3;
constexpr std::size_t kLossesKept = 16;
constexpr std::uint64_t kFirstPenaltyS = 30;
constexpr std::uint64_t kPenaltyMaxS = 300;
constexpr std::uint32_t kIncarnationMax = 0xFFFF0000U;  // a report of a later one is not believed

}  // namespace

const Epoch* own(const State& s) {
  return s.held && s.held->epoch && !s.held->over ? &*s.held->epoch : nullptr;
}

bool is_own_member(const State& s, PeerId peer) { return s.seats.contains(peer); }

const Seat* seat_of(const State& s, PeerId peer) {
  const auto found = s.seats.find(peer);
  return found == s.seats.end() ? nullptr : &found->second;
}

Seat* seat_of(State& s, PeerId peer) {
  const auto found = s.seats.find(peer);
  return found == s.seats.end() ? nullptr : &found->second;
}

bool is_awaited(const State& s, PeerId peer) {
  const Seat* seat = seat_of(s, peer);
  return seat != nullptr && seat->awaited.has_value();
}

bool is_awaited(const State& s) {
  return std::any_of(s.seats.begin(), s.seats.end(),
                     [](const auto& entry) { return entry.second.awaited.has_value(); });
}

bool is_expelled(const State& s, PeerId peer) {
  const Seat* seat = seat_of(s, peer);
  return seat != nullptr && seat->expelled;
}

void await_no_more(State& s, PeerId peer, Actions& out) {
  Seat* seat = seat_of(s, peer);
  if (seat == nullptr) return;
  if (seat->awaited == TimerKind::absence) out.push_back(StopTimer{TimerKind::absence, peer});
  seat->awaited.reset();
}

std::pair<std::string, std::uint64_t> replica_of(const Member& member) {
  return {member.place.replica, member.place.attempt};
}

std::size_t replicas(const std::vector<Member>& members) {
  // These replicas are whole and of one size, so each has exactly one rank 0.
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [](const Member& m) { return m.place.rank == 0; }));
}

namespace {

/// Erases the entries whose replica is not complete among the entries. `member`: entry -> Member.
void keep_whole(auto& entries, auto&& member) {
  const bool trivial = std::all_of(entries.begin(), entries.end(),
                                   [&](const auto& e) { return member(e).place.size == 1; });
  if (trivial) return;
  std::map<std::pair<std::string, std::uint64_t>, std::set<std::uint32_t>> ranks;
  for (const auto& e : entries) ranks[replica_of(member(e))].insert(member(e).place.rank);
  std::erase_if(entries, [&](const auto& e) {
    return ranks[replica_of(member(e))].size() < member(e).place.size;
  });
}

}  // namespace

std::vector<Member> whole(std::vector<Member> members) {
  keep_whole(members, std::identity{});
  return members;
}

std::vector<const Member*> going_on(const State& s, const std::set<PeerId>& must_go) {
  std::vector<const Member*> here;
  const Epoch* epoch = own(s);
  if (epoch == nullptr) return here;
  for (const Member& m : epoch->members) {
    const PeerId p = m.peer();
    if (!s.peers.contains(p) || must_go.contains(p) || is_expelled(s, p)) continue;
    here.push_back(&m);
  }
  keep_whole(here, [](const Member* m) -> const Member& { return *m; });
  return here;
}

std::vector<Member> survivors(const State& s) {
  std::vector<Member> members;
  for (const Member* m : going_on(s, excluded(s))) members.push_back(*m);
  return members;
}

std::vector<Member> door(const State& s) {
  struct Waiting {
    const Member* member;
    std::uint64_t arrived;
  };
  std::vector<Waiting> waiting;
  const bool founds = own(s) == nullptr;
  if (!founds && s.trials.empty()) return {};
  const std::set<PeerId> reached = founds ? std::set<PeerId>{} : tried(s);
  for (const auto& [p, state] : s.peers) {
    if (state.report.started || is_expelled(s, p)) continue;
    if (!founds && (!state.at_door || !reached.contains(p))) continue;
    if (s.asked.let_in && !s.asked.let_in->contains(p)) continue;
    waiting.push_back(Waiting{&state.member, state.arrived});
  }
  if (waiting.empty()) return {};
  std::set<PeerId> out = excluded(s);
  const std::vector<const Member*> inside = going_on(s, out);
  for (const Member* m : inside) out.insert(m->peer());
  // A replica waits as a whole if one of its ranks has to wait.
  std::erase_if(waiting, [&](const Waiting& w) {
    return out.contains(w.member->peer()) || must_wait_s(s, *w.member) > 0;
  });
  keep_whole(waiting, [](const Waiting& w) -> const Member& { return *w.member; });
  // Ranks of one replica stay together, so that a replica has one position in all peer groups.
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> arrival;
  for (Waiting& w : waiting) {
    if (w.member->place.size == 1) continue;
    const auto at = arrival.try_emplace(replica_of(*w.member), w.arrived).first;
    at->second = std::min(at->second, w.arrived);
  }
  for (Waiting& w : waiting) {
    if (w.member->place.size > 1) w.arrived = arrival.at(replica_of(*w.member));
  }
  std::sort(waiting.begin(), waiting.end(), [](const Waiting& a, const Waiting& b) {
    return std::pair(a.arrived, a.member->place.rank) < std::pair(b.arrived, b.member->place.rank);
  });
  const std::size_t most = s.config.max_peers;
  const std::size_t room = most - std::min(inside.size(), most);
  if (waiting.size() > room) {
    // All replicas have one size. A replica for which there is no room as a whole waits.
    waiting.resize(room - room % waiting.front().member->place.size);
  }
  std::vector<Member> members;
  for (const Waiting& w : waiting) members.push_back(*w.member);
  return members;
}

std::uint64_t must_wait_s(const State& s, const Member& member) {
  if (const std::uint64_t wait_s = origin_waits_s(s, member.peer()); wait_s > 0) return wait_s;
  const auto losses = s.losses.find(member.place.replica);
  if (losses == s.losses.end()) return 0;
  const auto& times = losses->second;
  const auto lately = static_cast<std::uint64_t>(std::count_if(
      times.begin(), times.end(), [&](std::uint64_t t) { return t + kLossesWithinS > s.now_s; }));
  if (lately < kLossesAllowed) return 0;
  const std::uint64_t doublings = std::min<std::uint64_t>(lately - kLossesAllowed, 10);
  const std::uint64_t until = times.back() + std::min(kFirstPenaltyS << doublings, kPenaltyMaxS);
  return until > s.now_s ? until - s.now_s : 0;
}

void count_loss(State& s, const Member& member) {
  // A process that is a replica of its own has a new name each time.
  if (member.place.replica == to_string(member.peer())) return;
  std::erase_if(s.losses,
                [&](const auto& entry) { return entry.second.back() + kLossesWithinS <= s.now_s; });
  auto& times = s.losses[member.place.replica];
  if (times.size() >= kLossesKept) times.erase(times.begin());
  times.push_back(s.now_s);
}

void explain_door(State& s, Actions& out) {
  const bool no_penalty = s.losses.empty() && s.origins.empty();
  if (no_penalty && s.peers.size() <= s.config.max_peers) return;  // there is room for all
  std::set<PeerId> may;
  for (const Member& m : door(s)) may.insert(m.peer());
  const std::size_t inside = going_on(s, excluded(s)).size();
  for (const auto& [p, peer] : s.peers) {
    if (peer.report.started || !peer.at_door || s.kept_waiting.contains(p) || may.contains(p)) {
      continue;
    }
    const std::uint64_t wait_s = must_wait_s(s, peer.member);
    std::string text;
    if (origin_waits_s(s, p) > 0) {
      text = "newcomers with the token and from the network of peer " +
             name_of(peer.member.handle) + " were not ready in time, or could not be reached: it " +
             "waits " + std::to_string(wait_s) + " s at the door";
    } else if (wait_s > 0) {
      text = "replica " + peer.member.place.replica + " was lost " +
             std::to_string(s.losses.at(peer.member.place.replica).size()) +
             " times lately: it waits " + std::to_string(wait_s) + " s at the door";
    } else if (inside + may.size() + peer.member.place.size > s.config.max_peers) {
      text = "the run is full (--max-peers " + std::to_string(s.config.max_peers) + "): peer " +
             name_of(peer.member.handle) + " waits at the door until there is room";
    } else {
      continue;  // it waits for other ranks, or for the boundary
    }
    s.kept_waiting.insert(p);
    out.push_back(Say{true, cut_text(text)});
    send(s, p, Hold{cut_text(text)}, out);
  }
}

std::map<PeerId, std::string> incomplete(const State& s) {
  std::map<std::pair<std::string, std::uint64_t>, std::map<std::uint32_t, PeerId>> here;
  for (const auto& [p, peer] : s.peers) {
    if (peer.report.started || peer.member.place.size == 1 || is_expelled(s, p)) continue;
    here[replica_of(peer.member)][peer.member.place.rank] = p;
  }
  std::map<PeerId, std::string> out;
  for (const auto& [replica, ranks] : here) {
    const std::uint32_t size = s.peers.at(ranks.begin()->second).member.place.size;
    std::string missing;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (!ranks.contains(rank)) add_to_list(missing, std::to_string(rank));
    }
    if (missing.empty()) continue;
    for (const auto& [rank, p] : ranks) {
      out[p] = cut_text("replica " + replica.first + " (attempt " + std::to_string(replica.second) +
                        ") has " + std::to_string(size) + " ranks and waits for " + missing);
    }
  }
  return out;
}

bool compares_states(const Register& held) {
  const bool first = held.before_passed == 0;
  return held.epoch && held.epoch->boundary && held.passed > 0 && (first || !held.admitted.empty());
}

bool wants_boundary(const State& s, const std::vector<PeerId>& pinned,
                    const std::vector<Member>& members) {
  return pinned != ids_of(members) || replicas(members) < s.config.hold_below ||
         !who_leaves(s, members).empty() || !door(s).empty() || compares_states(*s.held) ||
         s.topology.wants_vote();
}

namespace {

Error refuse(std::string text) { return Error{ErrorCode::refused, cut_text(std::move(text))}; }

/// Replicas of one run have one size and one on_loss: those of its members, or, before the
/// founding, of a peer that waits already.
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
                  ") is there already: " + name_of(other.handle));
  }
  return Error{};
}

/// A newcomer needs room at the door. Where there are several tokens, those of one leave as much of
/// it as they take, so that others can come. Members always have room.
Error check_room(const State& s, const Hello& hello) {
  const Member& mine = hello.member;
  if (s.peers.contains(mine.peer()) || is_own_member(s, mine.peer())) return Error{};
  const std::size_t room = kMembersMax - std::min(kMembersMax, s.peers.size());
  if (room == 0) return refuse("this run is full: " + count_of(kMembersMax, "peer"));
  if (s.tokens < 2 || hello.report.started.has_value()) return Error{};
  const auto waiting = std::count_if(s.peers.begin(), s.peers.end(), [&](const auto& peer) {
    return peer.second.member.token == mine.token && !is_own_member(s, peer.first);
  });
  if (static_cast<std::size_t>(waiting) < room) return Error{};
  return refuse("by the token \"" + mine.token + "\" " + std::to_string(waiting) +
                " processes wait at the door already, and the room for " + std::to_string(room) +
                " more is kept for others: come by another token");
}

}  // namespace

Error check_hello(const State& s, const Hello& hello) {
  const Place& place = hello.member.place;
  const PeerId p = hello.member.peer();
  if (!hello.run.empty() && hello.run != s.config.run) {
    return refuse("this master serves run \"" + s.config.run + "\", not \"" + printable(hello.run) +
                  "\"");
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
  if (std::string wrong = contradiction(hello.report); !wrong.empty()) {
    return refuse(std::move(wrong));
  }
  const EpochId newest = std::max(hello.report.accepted, hello.report.started.value_or(EpochId{}));
  if (newest.incarnation() > kIncarnationMax) return refuse("no master has had its incarnation");
  if (Error error = check_like_others(s, hello.member); error.failed()) return error;
  const auto is_other = [&](const Member& m) {
    return m.peer() == p && m.handle.key != hello.member.handle.key;
  };
  if (const auto known = s.peers.find(p);
      known != s.peers.end() && is_other(known->second.member)) {
    return refuse("another process has its number");
  }
  if (own(s) != nullptr) {
    for (const Member& m : own(s)->members) {
      if (is_other(m)) return refuse("another process has its number");
      if (m.peer() == p && m.place != place) {
        return refuse("this peer was rank " + std::to_string(m.place.rank) + " of replica " +
                      m.place.replica + " before");
      }
      const bool counts = is_awaited(s, m.peer()) && !is_expelled(s, m.peer());
      if (!counts) continue;
      if (Error error = check_beside(hello.member, m); error.failed()) return error;
    }
  }
  for (const auto& [q, state] : s.peers) {
    if (Error error = check_beside(hello.member, state.member); error.failed()) return error;
  }
  return check_room(s, hello);
}

}  // namespace pccl::master
