// Everything that can happen next in a simulated world, and how a trace names it.
#include <algorithm>

#include "membership/members.h"
#include "membership/peer_ops.h"
#include "world.h"

namespace pccl::sim {
namespace {

constexpr int kMeasuringsMax = 24;

constexpr const char* kWhat[] = {"arrives",
                                 "connects",
                                 "finds silent",
                                 "-> master:",
                                 "<- master:",
                                 "rest lost -> master",
                                 "rest lost <- master",
                                 "register writes",
                                 "register answers",
                                 "gives up its write",
                                 "is started again with --adopt",
                                 "boots",
                                 "reads the register",
                                 "takes over",
                                 "finds its lease another's",
                                 "is silent to",
                                 "patience is over",
                                 "founding delay is over",
                                 "refound delay is over",
                                 "absence is over",
                                 "is seen to have ended by",
                                 "links up",
                                 "cannot reach",
                                 "has a link to",
                                 "tries in vain",
                                 "fetched from",
                                 "adopts",
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
                                 "wakes",
                                 "crashes",
                                 "is stopped",
                                 "connection breaks to",
                                 "cut from",
                                 "link down to",
                                 "network heals",
                                 "link flaps to",
                                 "program hangs",
                                 "wants to leave",
                                 "says goodbye",
                                 "calls another operation",
                                 "crashes",
                                 "is stopped",
                                 "cut from the register",
                                 "network falls apart",
                                 "of another run arrives",
                                 "asks a standby",
                                 "moves on from",
                                 "repeats ->",
                                 "repeats <-",
                                 "loses all its connections",
                                 "lets founders try again",
                                 "lets newcomers try again",
                                 "has links measured"};

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
  const std::string name = "master " + std::to_string(move.m);
  if (move.a < 0 && move.m >= 0) text += name + " ";
  text += kWhat[static_cast<std::size_t>(move.what)];
  if (move.a >= 0 && move.m >= 0) text += " " + name;
  if (move.b >= 0) text += " " + std::to_string(move.b);
  if (move.op != OpKey{} || move.what == What::complete || move.what == What::issue) {
    text += " " + to_string(move.op);
  }
  if (move.way != Way::both) text += move.way == Way::there ? ", this way" : ", the other way";
  const auto look = [&](int from, int to) {
    const auto queue = net_.find({from, to});
    if (queue != net_.end() && !queue->second.empty()) {
      text += " " + kind_of(queue->second.front().message);
    }
  };
  if (move.what == What::peer_to_master || move.what == What::repeat_up) {
    look(move.a, node(move.m));
  }
  if (move.what == What::master_to_peer || move.what == What::repeat_down) {
    look(node(move.m), move.a);
  }
  return text;
}

/// First the master of its epoch, then round the list.
void World::connect_moves(int p, std::vector<Move>& out) const {
  const PeerWorld& world = peer(p);
  if (world.connected) {
    const int m = world.master;
    const bool deaf = !reaches(node(m), p) || master(m).life == Life::stopped;
    if (deaf || !reaches(p, node(m))) {
      out.push_back({What::peer_silent, deaf ? Sort::fair : Sort::maybe, p, -1, {}, m});
    }
    return;
  }
  bool first = true;
  for (int i = 0; i < rules.masters; ++i) {
    const int m = (world.home + i) % rules.masters;
    if (!master_up(m) || !joined(p, node(m))) continue;
    if (master(m).core->holds) {
      out.push_back({What::connect, first ? Sort::fair : Sort::maybe, p, -1, {}, m});
      first = false;
    } else if (has_left(Fault::stray)) {
      out.push_back({What::strays, Sort::fault, p, -1, {}, m});
    }
  }
}

void World::link_moves(int p, std::vector<Move>& out) const {
  const PeerWorld& world = peer(p);
  const auto& core = world.core;
  if (world.connect) {
    const auto& others = world.connect->members;
    const bool reached = std::all_of(others.begin(), others.end(), [&](const Member& m) {
      return up(index(m.peer())) && linked(world.connect->epoch, p, index(m.peer()));
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
  const auto queue = net_.find({p, node(world.master)});
  const bool said = queue != net_.end() && holds<Cannot>(queue->second);
  const auto& its = master_of(p).core;
  if (newest == nullptr || !world.connected || said || !its) return;
  const Epoch* own = its->held && its->held->epoch ? &*its->held->epoch : nullptr;
  const bool counts = (its->proposal && its->proposal->id == newest->id) ||
                      (its->running && own != nullptr && own->id == newest->id);
  for (const Member& m : newest->members) {
    const int q = index(m.peer());
    if (q == p || group(q) != group(p) || !counts) continue;
    if (!linked(*newest, p, q)) {
      // Who hears nothing knows; the other may, when nothing is acknowledged.
      const bool relayed = relay_of(*newest, p, q) >= 0;
      const Sort sort = !relayed && reaches(q, p) ? Sort::maybe : Sort::fair;
      out.push_back({What::link_fails, sort, p, q, {}});
    } else if (peer(q).life == Life::dead && world.connect) {
      out.push_back({What::link_fails, Sort::maybe, p, q, {}});
    }
  }
}

/// Links that the master has asked for, beside those of the epoch.
void World::try_moves(int p, std::vector<Move>& out) const {
  for (const auto& [peer, said] : peer(p).tries) {
    const int q = index(peer);
    if (joined(p, q) && up(q)) {
      if (!said) out.push_back({What::tried_up, Sort::fair, p, q, {}});
      continue;
    }
    const bool knows = !said && !joined(p, q) && !reaches(q, p);
    out.push_back({What::tried_in_vain, knows ? Sort::fair : Sort::maybe, p, q, {}});
  }
}

/// The next time at which newcomers are tried again; 0: none wait for it.
std::uint64_t World::next_retry_s(const master::State& core) {
  std::uint64_t next = 0;
  const auto add = [&](std::uint64_t when) {
    if (when > core.now_s && (next == 0 || when < next)) next = when;
  };
  for (const auto& [p, held] : core.unreachable) {
    if (core.peers.contains(p)) add(held.retry_s);
  }
  for (const auto& [name, origin] : core.origins) add(origin.until_s);
  if (core.trials_later) add(core.now_s + 1);
  return next;
}

void World::peer_moves(int p, std::vector<Move>& out) const {
  const PeerWorld& world = peer(p);
  const auto& core = world.core;
  connect_moves(p, out);
  if (world.foreign) return;
  link_moves(p, out);
  try_moves(p, out);
  if (world.adopting) {
    out.push_back({What::adopts, Sort::fair, p, -1, {}});
  } else if (world.fetch) {
    for (const PeerId source : world.fetch->plan.sources) {
      const int q = index(source);
      if (q == p || !up(q) || !linked(world.fetch->epoch, p, q)) continue;
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
  const MasterWorld& its = master_of(p);
  const auto beats = [&](int q) { return its.beats.contains(q) ? its.beats.at(q) : 0; };
  const bool asked = its.core && !its.core->accusations.empty();
  bool turn = asked && world.connected && core.started && beats(p) < kBeatsMax;
  for (int q = 0; turn && q < rules.peers; ++q) {
    const bool here = up(q) && peer(q).connected && peer(q).master == world.master;
    turn = beats(p) <= beats(q) || !here || !peer(q).core.started || peer(q).foreign;
  }
  const auto queue = net_.find({p, node(world.master)});
  // Somebody wishes to leave at once: once for each that it has issued.
  const auto is_quiet = [&] {
    const auto seat = its.core->seats.find(id(p));
    return seat != its.core->seats.end() && seat->second.quiet;
  };
  if (its.core && its.core->wishes && its.core->running && !is_quiet()) {
    const auto beat = std::tuple(world.conn, world.configured, peer::next_key(core));
    turn = turn || (world.connected && core.started && world.beat != beat);
  }
  if (turn && (queue == net_.end() || !holds<Heartbeat>(queue->second))) {
    out.push_back({What::heartbeat, Sort::fair, p, -1, {}});
  }
}

/// The lease of a master that is dead, stopped or cut off from the register ends; that of another
/// one only by a fault, and safety does not need it.
bool World::may_take_over(int m) const {
  for (int other = 0; other < rules.masters; ++other) {
    if (other == m || !master_up(other) || !master(other).core->holds) continue;
    if (joined(node(other), kRegister)) return false;
  }
  return true;
}

void World::register_moves(std::vector<Move>& out) const {
  for (const Write& write : writes_) {
    const int m = write.master;
    const bool awaited = master(m).write == write.number;
    const auto add = [&](What what, Sort sort) {
      out.push_back({what, sort, -1, -1, {}, m, Way::both, write.number});
    };
    if (!write.answered && reaches(node(m), kRegister)) {
      add(What::register_writes, awaited ? Sort::fair : Sort::maybe);
    } else if (write.answered && awaited && master_up(m) && reaches(kRegister, node(m))) {
      add(What::register_answers, Sort::fair);
    }
    if (awaited && master_up(m)) {
      add(What::gives_up_write, joined(node(m), kRegister) ? Sort::maybe : Sort::fair);
    }
  }
}

void World::master_moves(int m, std::vector<Move>& out, std::vector<Move>& timers) const {
  const MasterWorld& world = master(m);
  const auto add = [&](What what, Sort sort) { out.push_back({what, sort, -1, -1, {}, m}); };
  if (world.life == Life::stopped) return;
  if (!world.core) return add(What::boots, Sort::fair);
  if (world.core->writing) return;
  if (world.read) return add(What::takes_over, Sort::fair);
  if (!world.core->held) {
    if (!joined(node(m), kRegister)) return;
    if (may_take_over(m)) {
      add(What::reads, Sort::fair);
    } else if (has_left(Fault::lease)) {
      add(What::reads, Sort::fault);
    }
    return;
  }
  // Who runs an epoch goes on with it, until it needs the register or hears of the other.
  const bool ousted = held.incarnation != world.core->held->incarnation;
  if (ousted && joined(node(m), kRegister) && (healed_ || !rules.unaware)) {
    add(What::ousted, healed_ || !world.core->running ? Sort::fair : Sort::maybe);
  }
  for (const auto& [q, conn] : world.conns) {
    const int p = index(q);
    const bool deaf = !reaches(p, node(m)) || peer(p).life == Life::stopped;
    if (!deaf && reaches(node(m), p)) continue;
    out.push_back({What::master_silent, deaf ? Sort::fair : Sort::maybe, p, -1, {}, m});
  }
  for (const master::TimerKind kind : world.timers) {
    const What what = kind == master::TimerKind::patience   ? What::patience
                      : kind == master::TimerKind::founding ? What::founding
                                                            : What::refound;
    timers.push_back({what, Sort::timer, -1, -1, {}, m});
  }
  const bool answered = world.core->config.adopt || world.core->config.refound;
  if (lost && !answered && !world.core->unknown.empty()) {
    timers.push_back({What::operator_answers, Sort::timer, -1, -1, {}, m});
  }
  if (world.core->found_later || !master::founders_apart(*world.core).empty()) {
    timers.push_back({What::founders_again, Sort::timer, -1, -1, {}, m});
  }
  if (next_retry_s(*world.core) > 0) {
    timers.push_back({What::newcomers_again, Sort::timer, -1, -1, {}, m});
  }
  if (world.core->running && world.core->topology.lacks() && world.measurings < kMeasuringsMax) {
    out.push_back({What::has_measured, Sort::fair, -1, -1, {}, m});
  }
  for (const PeerId p : world.absences) {
    timers.push_back({What::absence, Sort::timer, index(p), -1, {}, m});
  }
  for (const auto& [q, seat] : world.core->seats) {
    const int p = index(q);
    const bool here = m == 0 && p < rules.local && peer(p).life == Life::dead;
    if (here && !seat.dead && !world.core->peers.contains(q)) {
      out.push_back({What::sees_death, Sort::fair, p, -1, {}, m});
    }
  }
}

/// Somebody's program hangs: the time-outs of those who wait for it.
void World::timeout_moves(std::vector<Move>& timers) const {
  const bool hangs = std::any_of(peers.begin(), peers.end(),
                                 [](const PeerWorld& world) { return world.hung && !world.over; });
  for (int p = 0; hangs && p < rules.peers; ++p) {
    const PeerWorld& world = peer(p);
    if (!up(p) || world.over || !world.connected || world.stopped_data || world.foreign) continue;
    const MasterWorld& its = master_of(p);
    if (!master_up(world.master) || !its.core->running || its.core->writing) continue;
    if (world.ops.empty() && world.core.vote == VoteKind::none) continue;
    const OpKey op = world.ops.empty() ? peer::next_key(world.core) : world.ops.begin()->first;
    const auto said = timeouts_.find({p, world.configured, op});
    if (said != timeouts_.end() && said->second >= kTimeoutsMax) continue;
    timers.push_back({What::times_out, Sort::timer, p, -1, op});
  }
}

void World::network_faults(std::vector<Move>& out) const {
  const auto add = [&](What what, int a, int b, int m, Way way) {
    out.push_back({what, Sort::fault, a, b, {}, m, way});
  };
  const auto ways = [&](Fault whole, Fault half, What what, int a, int b, int m) {
    if (has_left(whole)) add(what, a, b, m, Way::both);
    if (!has_left(half)) return;
    add(what, a, b, m, Way::there);
    add(what, a, b, m, Way::back);
  };
  for (int p = 0; p < rules.peers; ++p) {
    if (!up(p) || peer(p).over) continue;
    for (int m = 0; m < rules.masters; ++m) {
      const bool here = peer(p).connected && peer(p).master == m;
      if ((here || rules.masters > 1) && joined(p, node(m))) {
        ways(Fault::cut, Fault::cut_half, What::cut, p, -1, m);
      }
    }
    for (int q = p + 1; q < rules.peers; ++q) {
      if (!up(q) || group(q) != group(p) || !joined(p, q)) continue;
      ways(Fault::link, Fault::link_half, What::link, p, q, -1);
      if (has_left(Fault::flap) && peer(p).core.started && peer(q).core.started) {
        add(What::flap, p, q, -1, Way::both);
      }
    }
  }
  for (int m = 0; m < rules.masters; ++m) {
    if (!joined(node(m), kRegister)) continue;
    ways(Fault::cut_register, Fault::cut_register, What::cut_register, -1, -1, m);
  }
  if (has_left(Fault::partition)) add(What::partition, -1, -1, -1, Way::both);
  if (!cuts_.empty() && has_left(Fault::heal)) add(What::heal, -1, -1, -1, Way::both);
  if (!has_left(Fault::repeat)) return;
  for (const auto& [ends, queue] : net_) {
    if (queue.empty() || std::holds_alternative<std::monostate>(queue.front().message)) continue;
    const auto* up_to = std::get_if<PeerToMaster>(&queue.front().message);
    if (up_to != nullptr && std::holds_alternative<Hello>(*up_to)) continue;
    const auto [from, to] = ends;
    if (from >= 0) {
      add(What::repeat_up, from, -1, node(to), Way::both);
    } else {
      add(What::repeat_down, to, -1, node(from), Way::both);
    }
  }
}

void World::fault_moves(std::vector<Move>& out) const {
  const auto add = [&](Fault name, What what, int a, OpKey op = {}, int m = -1) {
    if (has_left(name)) out.push_back({what, Sort::fault, a, -1, op, m});
  };
  for (int p = 0; p < rules.peers; ++p) {
    const PeerWorld& world = peer(p);
    if (world.life == Life::stopped) out.push_back({What::wakes, Sort::maybe, p, -1, {}});
    if (world.life == Life::absent && !foundings.empty()) add(Fault::foreign, What::foreign, p);
    if (world.over || world.life == Life::absent || world.life == Life::dead) continue;
    if (!world.connected && !world.core.started) continue;
    add(Fault::crash, What::crash, p);
    if (!up(p)) continue;
    if (world.connected) {
      add(Fault::stop, What::stop, p);
      add(Fault::reset, What::reset, p);
      for (int m = 0; m < rules.masters; ++m) {
        if (m != world.master && master_up(m) && master(m).core->holds) {
          add(Fault::move_on, What::moves_on, p, {}, world.master);
        }
      }
    }
    if (world.foreign) continue;
    if (world.core.started && !world.hung) add(Fault::hang, What::hang, p);
    if (world.core.started && !world.leaving) add(Fault::wish, What::wish, p);
    if (world.core.started && world.connected) add(Fault::bye, What::bye, p);
    for (const auto& [key, op] : world.ops) {
      if (op.active && rules.ranks == 1) add(Fault::mismatch, What::mismatch, p, key);
    }
  }
  network_faults(out);
  for (int m = 0; m < rules.masters; ++m) {
    if (master_up(m)) {
      add(Fault::mcrash, What::mcrash, -1, {}, m);
      add(Fault::mstop, What::mstop, -1, {}, m);
      if (!master(m).conns.empty() && !master(m).core->writing) {
        add(Fault::outage, What::outage, -1, {}, m);
      }
    }
    if (master(m).core && master(m).life == Life::stopped) {
      out.push_back({What::master_wakes, Sort::maybe, -1, -1, {}, m});
    }
  }
}

void World::net_moves(std::vector<Move>& out) const {
  for (const auto& [ends, queue] : net_) {
    if (queue.empty()) continue;
    const auto [from, to] = ends;
    if (!reaches(from, to)) continue;
    const bool to_master = to < 0;
    const int p = to_master ? from : to;
    const int m = node(to_master ? to : from);
    if (to_master && (!master_up(m) || master(m).core->writing)) continue;
    if (!to_master && !up(to)) continue;
    out.push_back(
        {to_master ? What::peer_to_master : What::master_to_peer, Sort::fair, p, -1, {}, m});
    // A connection that breaks may take with it what it had not delivered.
    const bool newest =
        std::all_of(queue.begin(), queue.end(),
                    [&, &all = queue](const Item& item) { return item.conn <= all.back().conn; });
    if (queue.size() > 1 && newest &&
        std::holds_alternative<std::monostate>(queue.back().message)) {
      out.push_back(
          {to_master ? What::rest_lost_up : What::rest_lost_down, Sort::maybe, p, -1, {}, m});
    }
  }
}

std::vector<Move> World::moves() const {
  std::vector<Move> out;
  std::vector<Move> timers;
  net_moves(out);
  for (int p = 0; p < rules.peers; ++p) {
    if (peer(p).life == Life::absent) {
      // Newcomers come while the run is on, or when nobody else comes any more.
      const bool founder = replica(p) < static_cast<int>(rules.founders) || !foundings.empty();
      (founder ? out : timers).push_back({What::arrive, Sort::fair, p, -1, {}});
    }
    if (!up(p) || peer(p).over) continue;
    peer_moves(p, out);
    if (!peer(p).foreign) program_moves(p, out);
  }
  register_moves(out);
  for (int m = 0; m < rules.masters; ++m) master_moves(m, out, timers);
  timeout_moves(timers);
  const bool busy =
      std::any_of(out.begin(), out.end(), [](const Move& m) { return m.sort == Sort::fair; });
  if (rules.eager || !busy) {
    for (Move& timer : timers) timer.sort = Sort::timer;
    out.insert(out.end(), timers.begin(), timers.end());
  }
  if (!healed_) fault_moves(out);
  return out;
}

}  // namespace pccl::sim
