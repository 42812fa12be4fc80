// See status.h.
#include "membership/status.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kStaleS = 2;  // the age of what heartbeats say: below it nobody is late

std::string shown(const std::string& text, std::size_t bytes_max) {
  std::string out = printable(text);
  if (out.size() <= bytes_max) return out;
  out.resize(bytes_max);
  return printable(out);  // the cut may have gone through a character
}

bool stands(const State& s, const Report& report) {
  return report.started && report.vote != VoteKind::none && report.step >= s.held->passed;
}

/// For each member: for how long others of its peer group have waited at a place to which it has
/// not come. `mates`: connected.
std::map<PeerId, std::uint64_t> lateness(const State& s, const std::vector<PeerId>& mates) {
  std::vector<std::pair<OpKey, PeerId>> order;
  for (const PeerId p : mates) {
    const auto peer = s.peers.find(p);
    if (peer != s.peers.end()) order.emplace_back(came_to(peer->second.report), p);
  }
  std::sort(order.rbegin(), order.rend());  // the furthest first
  std::map<PeerId, std::uint64_t> late;
  std::uint64_t longest = 0;  // for which a member further than `i` has stood still
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;
    std::uint64_t here = 0;
    for (; end < order.size() && order[end].first == order[i].first; ++end) {
      late[order[end].second] = longest >= kStaleS ? longest : 0;
      here = std::max(here, s.now_s - std::min(s.now_s, s.peers.at(order[end].second).moved_s));
    }
    longest = std::max(longest, here);
    i = end;
  }
  return late;
}

MemberStatus about(const State& s, const Member& member, const std::map<PeerId, Seen>& seen) {
  MemberStatus m;
  m.peer = member.peer();
  m.name = shown(name_of(member.handle), kNameBytesMax);
  m.replica = shown(member.place.replica, kRunNameBytesMax);
  m.group = member.place.rank;
  m.process = member.process.id;
  m.token = shown(member.token, kTokenNameBytesMax);
  if (const auto connection = seen.find(m.peer); connection != seen.end()) {
    m.address = shown(connection->second.address, kAddressBytesMax);
    m.silent_ms = connection->second.silent_ms;
  }
  const auto peer = s.peers.find(m.peer);
  if (peer == s.peers.end()) return m;
  m.host = shown(peer->second.host, kNameBytesMax);
  m.step = peer->second.report.step;
  m.step = std::max(m.step, peer->second.report.issued.step);
  return m;
}

std::uint32_t site_of(const State& s, const Member& member) {
  const auto told = s.sites_told.find(member.place.rank);
  if (told == s.sites_told.end()) return 0;
  const auto site = told->second.site.find(member.peer());
  return site == told->second.site.end() ? 0 : site->second;
}

void add_lines(const State& s, const std::map<PeerId, Topology::Slowest>& slowest,
               MemberStatus& m) {
  const auto peer = s.peers.find(m.peer);
  if (peer != s.peers.end() && peer->second.trips) m.farthest_us = peer->second.trips->farthest_us;
  const auto link = slowest.find(m.peer);
  if (link == slowest.end()) return;
  m.slowest_to = link->second.to;
  m.slowest_rate = link->second.rate;
  m.slowest_us = link->second.trip_us;
}

void say(MemberStatus& m, const char* doing, std::string detail) {
  m.doing = doing;
  m.detail = shown(detail, kStatusTextBytesMax);
}

void describe_member(const State& s, MemberStatus& m) {
  const auto peer = s.peers.find(m.peer);
  if (peer == s.peers.end()) {
    const auto seat = s.seats.find(m.peer);
    if (seat != s.seats.end() && seat->second.dead) return say(m, "away", "its process has ended");
    return say(m, "away", is_awaited(s, m.peer) ? "not connected; may come back" : "not connected");
  }
  const Report& report = peer->second.report;
  if (s.proposal && contains(s.proposal->members, m.peer)) {
    const std::string epoch = "epoch " + to_string(s.proposal->id);
    if (!s.ready.contains(m.peer)) return say(m, "connecting", "connects for " + epoch);
    return say(m, "ready", "is ready for " + epoch);
  }
  if (!report.started) return say(m, "connecting", "has not begun");
  if (stands(s, report)) {
    const char* where = report.finish ? "in finish, after step " : "at the boundary of step ";
    return say(m, "boundary", where + std::to_string(report.step));
  }
  const OpKey issued = report.issued;
  std::string detail = "in step " + std::to_string(m.step);
  if (issued.index > 0) detail += ", called " + to_string(OpKey{issued.step, issued.index - 1});
  const auto open = s.done.lower_bound({m.group, OpKey{}});  // the oldest that is not committed
  if (open != s.done.end() && open->first.first == m.group) {
    const bool done = open->second.contains(m.peer);
    detail += (done ? ", done with " : ", not done with ") + to_string(open->first.second);
  }
  if (report.leaving) detail += ", wishes to leave";
  say(m, "running", std::move(detail));
}

void describe_waiting(const State& s, const PeerState& peer, const std::string& missing,
                      MemberStatus& m) {
  const std::uint64_t wait_s = must_wait_s(s, peer.member);
  if (peer.report.started) return say(m, "unknown", "of an epoch that the register does not know");
  if (!missing.empty()) return say(m, "incomplete", missing);
  if (s.proposal && contains(s.proposal->members, m.peer)) {
    return say(m, s.ready.contains(m.peer) ? "ready" : "connecting",
               "is to be admitted with epoch " + to_string(s.proposal->id));
  }
  if (own(s) == nullptr) return say(m, "founding", "waits for the founding of the run");
  if (wait_s > 0) {
    const bool origin = origin_waits_s(s, m.peer) > 0;
    return say(m, "penalty",
               std::string(origin ? "was not ready in time, or could not be reached"
                                  : "was lost too often lately") +
                   "; waits " + std::to_string(wait_s) + " s more");
  }
  if (!peer.at_door) return say(m, "arrived", "has not called refresh yet");
  const auto& members = own(s)->members;
  if (members.size() + peer.member.place.size > s.config.max_peers) {
    return say(m, "door",
               "the run is full (--max-peers " + std::to_string(s.config.max_peers) +
                   "); waits until there is room");
  }
  if (std::string why = why_tried(s, m.peer); !why.empty()) return say(m, "trying", std::move(why));
  const bool any = std::any_of(members.begin(), members.end(), [&](const Member& member) {
    return s.peers.contains(member.peer());
  });
  say(m, "door",
      any ? "waits for the members' next boundary"
          : "waits for members to come back, of which none is there now");
}

/// Of those connected, if a replica has several ranks.
std::string whole_replicas(const State& s) {
  std::vector<Member> here;
  bool several = false;
  for (const auto& [p, peer] : s.peers) {
    here.push_back(peer.member);
    several = several || peer.member.place.size > 1;
  }
  std::set<std::pair<std::string, std::uint64_t>> replicas;
  for (const Member& m : whole(std::move(here))) replicas.insert(replica_of(m));
  return several ? ", of " + count_of(replicas.size(), "whole replica") : "";
}

/// The members of which a master knows by the register alone, since it is not in charge.
void list_of_register(const State& s, Status& out) {
  const Epoch* epoch = own(s);
  if (epoch == nullptr) return;
  out.epoch = epoch->id;
  out.step = s.held->passed;
  out.replicas = static_cast<std::uint32_t>(replicas(epoch->members));
  out.member_count = static_cast<std::uint32_t>(epoch->members.size());
  std::map<std::uint32_t, std::uint32_t> ranks;  // of each peer group, so far
  for (const Member& member : epoch->members) {
    if (out.members.size() >= kStatusMembersMax) break;
    MemberStatus m = about(s, member, {});
    m.rank = ranks[member.place.rank]++;
    say(m, "away", "a member by the register; this master is not in charge");
    out.members.push_back(std::move(m));
  }
}

}  // namespace

OpKey came_to(const Report& report) {
  if (report.vote != VoteKind::none && report.step >= report.issued.step) {
    return OpKey{report.step, ~0ULL};
  }
  return report.issued;
}

Status status_of(const State& s, const std::map<PeerId, Seen>& seen) {
  Status out;
  out.run = s.config.run;
  out.min_peers = s.config.min_peers;
  out.hold_below = s.config.hold_below;
  if (!s.held || !s.holds) {
    out.state = "starting";
    if (s.held) list_of_register(s, out);
    return out;
  }
  const Epoch* epoch = own(s);
  std::map<PeerId, std::uint64_t> late;
  if (epoch != nullptr) {
    out.epoch = epoch->id;
    out.replicas = static_cast<std::uint32_t>(replicas(epoch->members));
    out.member_count = static_cast<std::uint32_t>(epoch->members.size());
    out.step = s.held->passed;  // of members that are away nothing else is known
    for (const auto& [group, mates] : s.groups) late.merge(lateness(s, mates));
    const std::map<PeerId, Topology::Slowest> slowest = s.topology.slowest();
    std::map<std::uint32_t, std::uint32_t> ranks;  // of each peer group, so far
    for (const Member& member : epoch->members) {
      MemberStatus m = about(s, member, seen);
      m.rank = ranks[member.place.rank]++;
      out.step = std::max(out.step, m.step);
      if (out.members.size() >= kStatusMembersMax) continue;
      describe_member(s, m);
      m.site = site_of(s, member);
      add_lines(s, slowest, m);
      if (s.running && m.doing == "running") m.late_s = late[m.peer];
      out.members.push_back(std::move(m));
    }
  }
  std::vector<const PeerState*> waiting;
  for (const auto& [p, peer] : s.peers) {
    if (!is_own_member(s, p)) waiting.push_back(&peer);
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const PeerState* a, const PeerState* b) { return a->arrived < b->arrived; });
  out.door_count = static_cast<std::uint32_t>(waiting.size());
  const std::map<PeerId, std::string> missing = incomplete(s);
  for (const PeerState* peer : waiting) {
    if (out.door.size() >= kStatusMembersMax) break;
    MemberStatus m = about(s, peer->member, seen);
    const auto lacks = missing.find(m.peer);
    describe_waiting(s, *peer, lacks == missing.end() ? "" : lacks->second, m);
    out.door.push_back(std::move(m));
  }
  if (s.held->ended) {
    out.state = "finished";
    out.step = s.held->ended->step;
    out.waits_for = ending_text(s, "the run");
    return out;
  }
  out.state = epoch == nullptr         ? "founding"
              : s.holding              ? "holding"
              : s.running              ? "running"
              : !standstill(s).empty() ? "lost"
                                       : "changing";
  return out;
}

std::string whom_a_run_waits_for(const State& s,
                                 const std::function<std::string(PeerId)>& remote_of) {
  if (s.running || !s.held) return "";
  const auto name = [&](const std::vector<Member>& members, const Member& member) {
    const std::string remote = remote_of(member.peer());
    return " " + name_of(members, member) + (remote.empty() ? "," : " at " + remote + ",");
  };
  if (!s.unknown.empty()) return text_of_unknown(s);
  if (std::string text = standstill(s); !text.empty()) return text;
  if (std::string text = founders_apart(s); !text.empty()) return text;
  if (s.proposal) {
    std::string text = "epoch " + to_string(s.proposal->id) + " waits until ready are:";
    for (const Member& member : s.proposal->members) {
      if (!s.ready.contains(member.peer())) text += name(s.proposal->members, member);
    }
    text.pop_back();
    return text;
  }
  if (s.held->ended) return "";
  if (s.holding && !awaits(s)) {
    return "waiting for replicas: " + std::to_string(s.holds_with) +
           (s.holds_with == 1 ? " is" : " are") + " here, and the run goes on with " +
           std::to_string(s.config.hold_below) + " (--hold-below)";
  }
  if (!s.held->epoch || s.held->over) {
    return "waiting for " + count_of(s.config.min_peers, "replica") + " to found the run; " +
           count_of(s.peers.size(), "peer") + " connected" + whole_replicas(s);
  }
  std::string text = "waiting for members of epoch " + to_string(s.held->epoch->id) + ":";
  const std::size_t nobody = text.size();
  for (const Member& member : s.held->epoch->members) {
    if (!s.peers.contains(member.peer())) text += name(s.held->epoch->members, member);
  }
  if (text.size() == nobody) return "";
  text.pop_back();
  return text;
}

}  // namespace pccl::master
