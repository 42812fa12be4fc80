// Everything that can happen next in a simulated world, and how a trace names it.
#include <algorithm>

#include "membership/members.h"
#include "membership/peer_ops.h"
#include "world.h"

namespace pccl::sim {
namespace {

constexpr const char* kWhat[] = {"arrives",
                                 "connects",
                                 "finds the master silent",
                                 "-> master:",
                                 "<- master:",
                                 "rest lost",
                                 "register writes",
                                 "register answers",
                                 "master gives up its write",
                                 "master boots",
                                 "master takes over",
                                 "is silent to the master",
                                 "patience is over",
                                 "founding delay is over",
                                 "refound delay is over",
                                 "absence is over",
                                 "links up",
                                 "cannot reach",
                                 "fetched from",
                                 "hashed",
                                 "link event of",
                                 "issues",
                                 "at boundary",
                                 "completes",
                                 "at the door",
                                 "leaves",
                                 "leaves at the end",
                                 "says goodbye at the end",
                                 "returned",
                                 "timed out",
                                 "heartbeat",
                                 "finds a mismatch",
                                 "wakes",
                                 "master wakes",
                                 "crashes",
                                 "is stopped",
                                 "connection to master breaks",
                                 "cut from master",
                                 "link down to",
                                 "network heals",
                                 "link flaps to",
                                 "program hangs",
                                 "wants to leave",
                                 "says goodbye",
                                 "calls another operation",
                                 "master crashes",
                                 "master is stopped"};

constexpr int kBeatsMax = 3;     // enough for all to be heard after the first
constexpr int kTimeoutsMax = 3;  // of one operation in one epoch, at one peer

std::string epoch_of(const auto& message) {
  if constexpr (requires { message.epoch.id; }) {
    return " " + to_string(message.epoch.id);
  } else if constexpr (requires { message.epoch; }) {
    return " " + to_string(message.epoch);
  } else {
    return "";
  }
}

std::string kind_of(const Message& message) {
  if (const auto* up = std::get_if<PeerToMaster>(&message)) {
    return std::visit([](const auto& m) { return std::string(m.kName) + epoch_of(m); }, *up);
  }
  if (const auto* down = std::get_if<MasterToPeer>(&message)) {
    return std::visit([](const auto& m) { return std::string(m.kName) + epoch_of(m); }, *down);
  }
  return "closed";
}

template <typename T>
bool holds(const std::deque<Item>& queue) {
  return std::any_of(queue.begin(), queue.end(), [](const Item& item) {
    const auto* up = std::get_if<PeerToMaster>(&item.message);
    return up != nullptr && std::holds_alternative<T>(*up);
  });
}

}  // namespace

std::string World::label(const Move& move) const {
  std::string text;
  if (move.a >= 0) text += std::to_string(move.a) + " ";
  text += kWhat[static_cast<std::size_t>(move.what)];
  if (move.b >= 0) text += " " + std::to_string(move.b);
  if (move.op != OpKey{} || move.what == What::complete || move.what == What::issue) {
    text += " " + to_string(move.op);
  }
  const auto look = [&](int from, int to) {
    const auto queue = net_.find({from, to});
    if (queue != net_.end() && !queue->second.empty()) {
      text += " " + kind_of(queue->second.front().message);
    }
  };
  if (move.what == What::peer_to_master) look(move.a, kMaster);
  if (move.what == What::master_to_peer) look(kMaster, move.a);
  return text;
}

void World::peer_moves(int p, std::vector<Move>& out) const {
  const PeerWorld& world = peer(p);
  const auto& core = world.core;
  if (!world.connected) {
    if (master_up() && master->holds && !master->writing && joined(p, kMaster)) {
      out.push_back({What::connect, Sort::fair, p, -1, {}});
    }
  } else if (!joined(p, kMaster) || master_life == Life::stopped) {
    out.push_back({What::peer_silent, Sort::fair, p, -1, {}});
  }
  if (world.connect) {
    const auto& others = world.connect->members;
    const bool reached = std::all_of(others.begin(), others.end(), [&](const Member& m) {
      return up(index(m.peer())) && joined(p, index(m.peer()));
    });
    if (reached) out.push_back({What::links_up, Sort::fair, p, -1, {}});
  }
  // A link that is down: said once for each epoch of which the master may still make something.
  const Epoch* newest = core.started ? &*core.started : nullptr;
  if (core.accepted && (newest == nullptr || core.accepted->id > newest->id)) {
    newest = &*core.accepted;
  }
  if (core.preparing && (newest == nullptr || core.preparing->epoch.id > newest->id)) {
    newest = &core.preparing->epoch;
  }
  const auto queue = net_.find({p, kMaster});
  const bool said = queue != net_.end() && holds<Cannot>(queue->second);
  if (newest != nullptr && world.connected && !said && master) {
    const Epoch* own = master->held && master->held->epoch ? &*master->held->epoch : nullptr;
    const bool counts = (master->proposal && master->proposal->id == newest->id) ||
                        (master->running && own != nullptr && own->id == newest->id);
    for (const Member& m : newest->members) {
      const int q = index(m.peer());
      if (q == p || group(q) != group(p) || !counts) continue;
      if (!joined(p, q)) {
        out.push_back({What::link_fails, Sort::fair, p, q, {}});
      } else if (peer(q).life == Life::dead && world.connect) {
        out.push_back({What::link_fails, Sort::maybe, p, q, {}});
      }
    }
  }
  if (world.fetch) {
    for (const PeerId source : world.fetch->plan.sources) {
      const int q = index(source);
      if (q == p || !up(q) || !joined(p, q)) continue;
      if (root_of(peer(q).content) != world.fetch->plan.root) continue;
      out.push_back({What::fetched, Sort::fair, p, q, {}});
    }
  }
  if (world.hash) out.push_back({What::hashed, Sort::fair, p, -1, {}});
  if (!world.link_events.empty()) {
    out.push_back({What::link_event, Sort::fair, p, index(world.link_events.front().peer), {}});
  }
  for (const auto& [key, op] : world.ops) {
    if (!op.active || world.stopped_data) continue;
    if (mismatched_.contains({run_of(world.configured), key})) {
      if (world.connected && !world.mismatch_said.contains({world.configured, key})) {
        out.push_back({What::finds_mismatch, Sort::fair, p, -1, key});
      }
      continue;
    }
    bool sure = false;
    bool clean = false;
    if (!data_is_there(p, key, sure, clean)) continue;
    out.push_back({What::complete, sure ? Sort::fair : Sort::maybe, p, -1, key});
  }
  const auto beats = [&](int q) { return beats_.contains(q) ? beats_.at(q) : 0; };
  const bool asked = master && (!master->expired.empty() || master->expired_boundary);
  bool turn = asked && world.connected && core.started && beats(p) < kBeatsMax;
  for (int q = 0; turn && q < rules.peers; ++q) {
    turn = beats(p) <= beats(q) || !up(q) || !peer(q).connected || !peer(q).core.started;
  }
  if (turn && (queue == net_.end() || !holds<Heartbeat>(queue->second))) {
    out.push_back({What::heartbeat, Sort::fair, p, -1, {}});
  }
}

void World::master_moves(std::vector<Move>& out, std::vector<Move>& timers) const {
  if (!master) {
    out.push_back({What::boots, Sort::fair, -1, -1, {}});
    return;
  }
  if (master_life == Life::stopped) return;
  if (write_) {
    out.push_back({write_->answered ? What::register_answers : What::register_writes,
                   Sort::fair,
                   -1,
                   -1,
                   {}});
    out.push_back({What::gives_up_write, Sort::maybe, -1, -1, {}});
    return;
  }
  if (!master->held) {
    out.push_back({What::takes_over, Sort::fair, -1, -1, {}});
    return;
  }
  for (const auto& [q, conn] : conns_) {
    const int p = index(q);
    if (peer(p).life == Life::stopped || !joined(p, kMaster)) {
      out.push_back({What::master_silent, Sort::fair, p, -1, {}});
    }
  }
  for (const master::TimerKind kind : timers_) {
    const What what = kind == master::TimerKind::patience   ? What::patience
                      : kind == master::TimerKind::founding ? What::founding
                                                            : What::refound;
    timers.push_back({what, Sort::timer, -1, -1, {}});
  }
  for (const PeerId p : absences_) timers.push_back({What::absence, Sort::timer, index(p), -1, {}});
  // Somebody's program hangs: the time-outs of those who wait for it.
  if (!master->running) return;
  const bool hangs = std::any_of(peers.begin(), peers.end(),
                                 [](const PeerWorld& world) { return world.hung && !world.over; });
  for (int p = 0; hangs && p < rules.peers; ++p) {
    const PeerWorld& world = peer(p);
    if (!up(p) || world.over || !world.connected || world.stopped_data) continue;
    if (world.ops.empty() && world.core.vote == VoteKind::none) continue;
    const OpKey op = world.ops.empty() ? peer::next_key(world.core) : world.ops.begin()->first;
    const auto said = timeouts_.find({p, world.configured, op});
    if (said != timeouts_.end() && said->second >= kTimeoutsMax) continue;
    timers.push_back({What::times_out, Sort::timer, p, -1, op});
  }
}

void World::fault_moves(std::vector<Move>& out) const {
  const auto left = [&](const char* name) {
    const auto budget = rules.budget.find(name);
    return budget != rules.budget.end() && budget->second > 0;
  };
  const auto add = [&](const char* name, What what, int a, int b, OpKey op = {}) {
    if (left(name)) out.push_back({what, Sort::fault, a, b, op});
  };
  for (int p = 0; p < rules.peers; ++p) {
    const PeerWorld& world = peer(p);
    if (world.life == Life::stopped) out.push_back({What::wakes, Sort::maybe, p, -1, {}});
    if (world.over || world.life == Life::absent || world.life == Life::dead) continue;
    if (!world.connected && !world.core.started) continue;
    add("crash", What::crash, p, -1);
    if (!up(p)) continue;
    if (world.connected) {
      add("stop", What::stop, p, -1);
      add("reset", What::reset, p, -1);
      if (joined(p, kMaster)) add("cut", What::cut, p, -1);
    }
    if (world.core.started && !world.hung) add("hang", What::hang, p, -1);
    if (world.core.started && !world.leaving && rules.boundaries) add("wish", What::wish, p, -1);
    if (world.core.started && world.connected) add("bye", What::bye, p, -1);
    for (const auto& [key, op] : world.ops) {
      if (op.active && rules.ranks == 1) add("mismatch", What::mismatch, p, -1, key);
    }
    for (int q = p + 1; q < rules.peers; ++q) {
      if (!up(q) || group(q) != group(p) || !joined(p, q)) continue;
      add("link", What::link, p, q);
      if (world.core.started && peer(q).core.started) add("flap", What::flap, p, q);
    }
  }
  if (!cuts_.empty()) add("heal", What::heal, -1, -1);
  if (master && master_life == Life::up) {
    add("mcrash", What::mcrash, -1, -1);
    add("mstop", What::mstop, -1, -1);
  }
  if (master && master_life == Life::stopped) {
    out.push_back({What::master_wakes, Sort::maybe, -1, -1, {}});
  }
}

std::vector<Move> World::moves() const {
  std::vector<Move> out;
  std::vector<Move> timers;
  for (const auto& [ends, queue] : net_) {
    if (queue.empty()) continue;
    const auto [from, to] = ends;
    const int p = from == kMaster ? to : from;
    if (!joined(p, kMaster)) continue;
    if (to == kMaster && (!master_up() || master->writing || !master->held)) continue;
    if (to != kMaster && !up(to)) continue;
    out.push_back(
        {to == kMaster ? What::peer_to_master : What::master_to_peer, Sort::fair, p, -1, {}});
    // A connection that breaks may take with it what it had not delivered.
    const bool newest =
        std::all_of(queue.begin(), queue.end(),
                    [&, &all = queue](const Item& item) { return item.conn <= all.back().conn; });
    if (queue.size() > 1 && newest &&
        std::holds_alternative<std::monostate>(queue.back().message)) {
      out.push_back({What::rest_lost, Sort::maybe, from, to, {}});
    }
  }
  for (int p = 0; p < rules.peers; ++p) {
    if (peer(p).life == Life::absent) {
      // Newcomers come while the run is on, or when nobody else comes any more.
      const bool founder = replica(p) < static_cast<int>(rules.founders) || !foundings.empty();
      (founder ? out : timers).push_back({What::arrive, Sort::fair, p, -1, {}});
    }
    if (!up(p) || peer(p).over) continue;
    peer_moves(p, out);
    program_moves(p, out);
  }
  master_moves(out, timers);
  const bool busy =
      std::any_of(out.begin(), out.end(), [](const Move& m) { return m.sort == Sort::fair; });
  if (rules.eager || !busy) {
    for (Move& timer : timers) timer.sort = Sort::timer;
    out.insert(out.end(), timers.begin(), timers.end());
  }
  fault_moves(out);
  return out;
}

}  // namespace pccl::sim
