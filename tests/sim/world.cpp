// What an event does to the simulated world: the engine's duties around the peer's core, as its
// header states them, and faults. What can happen next is in moves.cpp, the program that a peer
// runs in program.cpp, the masters' side in masters.cpp.
#include "world.h"

#include <algorithm>

#include "base/assert.h"
#include "liar.h"
#include "membership/members.h"
#include "wire/codec.h"

namespace pccl::sim {

StateRoot root_of(const Content& content) {
  std::uint64_t hash = content.tag * 0x9E3779B97F4A7C15ULL + content.revision;
  for (const auto& [op, epoch] : content.ops) {
    for (const std::uint64_t part : {op.step, op.index, epoch.value}) {
      hash = Random(hash ^ (part + 0x51)).next();
    }
  }
  StateRoot root{true, content.revision + content.ops.size(), {}};
  for (std::size_t i = 0; i < 8; ++i) {
    root.digest[i] = static_cast<std::uint8_t>((hash >> (8 * i)) & 255U);
  }
  return root;
}

World::World(Rules the_rules, Random& random) : rules(std::move(the_rules)), random_(random) {
  peers.resize(static_cast<std::size_t>(rules.peers));
  masters.resize(static_cast<std::size_t>(rules.masters));
  for (int p = 0; p < rules.peers; ++p) {
    PeerWorld& world = peer(p);
    Member& self = world.core.self;
    self.handle.peer = id(p);
    self.place.replica = "r" + std::to_string(replica(p));
    self.place.rank = static_cast<std::uint32_t>(group(p));
    self.place.size = static_cast<std::uint32_t>(rules.ranks);
#ifdef PCCL_PLANTED_BUGS
    world.core.planted = rules.planted;
#endif
    // Some begin with the same state, some have loaded another checkpoint.
    world.content.tag = random_.below(2);
    world.content.revision = random_.below(6) == 0 ? random_.below(60) : 0;
  }
}

EpochId World::run_of(EpochId epoch) const {
  const auto after = foundings.upper_bound(epoch);
  return after == foundings.begin() ? EpochId{} : *std::prev(after);
}

void World::note(const Epoch& epoch) {
  const auto [at, added] = epochs.try_emplace(epoch.id, epoch);
  if (!added && at->second != epoch) {
    broken = "epoch number " + to_string(epoch.id) + " used twice";
  }
}

// ------------------------------------------------------------------------------------- messages

void World::put(int from, int to, std::uint64_t conn, Message message) {
  if (to >= 0 && peer(to).life == Life::dead) return;
  if (to < 0 && !master(node(to)).core) return;
  net_[{from, to}].push_back(Item{conn, std::move(message)});
}

void World::to_peer(int p, const peer::Event& event) {
  try {
    act(p, peer::step(peer(p).core, event));
  } catch (const BrokenInvariant& e) {
    breaks(p, std::string("peer: ") + e.what());
    if (!lies(p)) crashed = broken;
  }
}

/// What a liar says is not what its core has told it to say, one time out of two.
void World::say(int p, PeerToMaster message) {
  const PeerWorld& world = peer(p);
  if (!world.connected) return;
  const auto send = [&](PeerToMaster m) {
    const auto* hello = std::get_if<Hello>(&m);
    const auto* ready = std::get_if<Ready>(&m);
    const bool fails = std::holds_alternative<Mismatch>(m) || (hello && hello->report.failure) ||
                       (ready && ready->report.failure);
    lied_of_failure = lied_of_failure || (lies(p) && fails);
    put(p, node(world.master), world.conn, std::move(m));
  };
  if (rules.liar >= 0 && !lies(p)) static_cast<void>(encode(message));  // asserts the limits
  if (!lies(p)) return send(std::move(message));
  Known known{world.configured, peer::next_key(world.core), {}};
  if (world.core.accepted) known.epoch = std::max(known.epoch, world.core.accepted->id);
  for (int q = 0; q < rules.peers; ++q) known.peers.push_back(id(q));
  const bool greets = std::holds_alternative<Hello>(message);
  send(random_.below(2) == 0 ? spoiled(std::move(message), known, random_) : std::move(message));
  if (!greets && random_.below(4) == 0) send(invented(known, random_));
}

void World::deliver_to_peer(int p, int m, bool last) {
  auto& queue = net_[{node(m), p}];
  const Item item = last ? queue.back() : queue.front();
  if (last) {
    queue.clear();
  } else {
    queue.pop_front();
  }
  PeerWorld& world = peer(p);
  if (!world.connected || world.master != m || item.conn != world.conn) return;
  if (const auto* message = std::get_if<MasterToPeer>(&item.message)) {
    to_peer(p, peer::FromMaster{*message});
  } else {
    world.connected = false;
    to_peer(p, peer::MasterLost{});
  }
}

// ------------------------------------------------------------------------------ actions of a core

void World::set_outcome(int p, OpKey op, bool failed) {
  PeerWorld& world = peer(p);
  const auto at = world.ops.find(op);
  if (at == world.ops.end()) {
    breaks(p, "operation " + to_string(op) + ": an outcome that nobody waits for");
    return;
  }
  Outcome outcome{op, EpochId{}, true, false};
  if (!failed) {
    outcome.clean = at->second.result && at->second.result->second;
    outcome.epoch = at->second.result ? at->second.result->first : EpochId{};
    if (outcome.epoch == EpochId{}) outcome.clean = false;
    auto& ops = world.content.ops;
    const auto entry = std::pair(op, outcome.epoch);
    ops.insert(std::upper_bound(ops.begin(), ops.end(), entry), entry);
    world.committed.insert(op);
  } else {
    if (at->second.dirty) {
      breaks(p, "operation " + to_string(op) + " failed, its tensor was not restored");
    }
    world.failed_step = true;
    outcome.closing = world.core.over;
  }
  world.outcomes.push_back(outcome);
  world.ops.erase(at);
  changed = true;
}

void World::enter_step(int p, const peer::EnterStep& action) {
  PeerWorld& world = peer(p);
  if (action.voted || world.entered) world.crossed.emplace_back(world.step, action.voted);
  world.entered = true;
  world.step = action.step;
  world.waited = 0;
  world.in_boundary = world.failed_step = false;
  world.fetch.reset();
  world.committed.clear();
  changed = true;
  if (!world.ops.empty()) breaks(p, "a step was entered with operations in flight");
  if (world.adopting) breaks(p, "a step was entered before a state was adopted");
  if (action.root.present && action.root != root_of(world.content)) {
    breaks(p, "peer " + std::to_string(p) + " entered step " + std::to_string(action.step) +
                  " with another state than agreed");
  }
}

void World::act(int p, peer::Actions actions) {
  PeerWorld& world = peer(p);
  std::vector<PeerId> measured;
  const auto on = [&](auto& action) {
    using T = std::decay_t<decltype(action)>;
    if constexpr (std::is_same_v<T, peer::ToMaster>) {
      if (const auto* ready = std::get_if<Ready>(&action.message); ready && world.core.next > 0) {
        world.ready_busy.insert(ready->epoch);
      }
      say(p, std::move(action.message));
    } else if constexpr (std::is_same_v<T, peer::StopData>) {
      world.stopped_data = true;
    } else if constexpr (std::is_same_v<T, peer::Connect>) {
      world.connect = std::move(action);
      if (!rules.slow_adoption) world.fetch.reset();  // else what is fetched may be late
    } else if constexpr (std::is_same_v<T, peer::TryLinks>) {
      for (const PeerId q : action.drop) world.tries.erase(q);
      for (const Handle& handle : action.open) world.tries[handle.peer] = false;
    } else if constexpr (std::is_same_v<T, peer::MeasureLink>) {
      measured.push_back(action.peer);
    } else if constexpr (std::is_same_v<T, peer::HashState>) {
      world.hash = true;
    } else if constexpr (std::is_same_v<T, peer::Fetch>) {
      world.fetch = std::move(action);
    } else if constexpr (std::is_same_v<T, peer::Adopt>) {
      world.adopting = true;
    } else if constexpr (std::is_same_v<T, peer::Configure>) {
      world.configured = action.epoch;
      world.home = world.master;
      check_ring(p, action);
      world.mates = std::move(action.members);
      for (const Member& m : world.mates) world.tries.erase(m.peer());
      world.stopped_data = false;
      if (world.first_epoch == EpochId{}) world.first_epoch = action.epoch;
      started[action.epoch].insert(id(p));
      changed = true;
    } else if constexpr (std::is_same_v<T, peer::RunOp>) {
      if (world.stopped_data) breaks(p, "RunOp while no epoch is in force");
      OpWorld& op = world.ops.at(action.op);
      data_.emplace(p, world.configured, action.op, !op.dirty);
      op.active = op.dirty = true;
      op.result.reset();
    } else if constexpr (std::is_same_v<T, peer::RestoreOp>) {
      OpWorld& op = world.ops.at(action.op);
      op.active = op.dirty = false;
      op.result.reset();
    } else if constexpr (std::is_same_v<T, peer::CommitOp>) {
      world.committed_in[action.op] = action.in;
      set_outcome(p, action.op, false);
    } else if constexpr (std::is_same_v<T, peer::FailOp>) {
      set_outcome(p, action.op, true);
    } else if constexpr (std::is_same_v<T, peer::EnterStep>) {
      enter_step(p, action);
    } else if constexpr (std::is_same_v<T, peer::Renumber>) {
      world.numbering = std::move(action.pinned);
      changed = true;
    } else if constexpr (std::is_same_v<T, peer::WasEvicted>) {
      world.over = world.evicted = true;
      if (action.text.find("which this peer has not completed") != std::string::npos) {
        breaks(p, "peer: " + action.text);
      }
      if (tracing) log.push_back("      evicted: " + action.text);
    } else if constexpr (std::is_same_v<T, peer::WasRefused>) {
      world.over = true;
      if (tracing) log.push_back("      refused: " + action.error.text);
    } else if constexpr (std::is_same_v<T, peer::HasLeft>) {
      world.over = true;
    } else if constexpr (std::is_same_v<T, peer::Greeted>) {
      world.welcomed = world.welcomed || action.welcome.founded;
    } else {
      if (tracing) log.push_back("      " + std::to_string(p) + ": " + action.text);
    }
  };
  for (peer::Action& action : actions) std::visit(on, action);
  if (world.over && world.connected) {
    put(p, node(world.master), world.conn, std::monostate{});
    world.connected = false;
    net_.erase({node(world.master), p});
  }
  for (const PeerId q : measured) {  // its own chances, so that other walks stay as they are
    Random rate(id(p).value * 1000 + q.value + 1'000'000 * world.step);
    to_peer(p, peer::LinkMeasured{q, rate.below(4) * rate.below(1'000'000'000), rate.below(99999)});
  }
}

/// All members of a peer group have the same ring and the same lines in an epoch, and the ring has
/// all of them.
void World::check_ring(int p, const peer::Configure& action) {
  const std::pair place{action.epoch, peer(p).core.self.place.rank};
  const auto& [entry, first] = rings.emplace(place, action.ring);
  if (entry->second != action.ring) breaks(p, "the members of an epoch have different rings");
  const auto& [lines, new_here] = lines_of_epochs.emplace(place, action.lines);
  if (lines->second != action.lines) breaks(p, "the members of an epoch have different lines");
  const std::set<PeerId> ring(action.ring.begin(), action.ring.end());
  const std::vector<PeerId> members = ids_of(action.members);
  if (action.ring.size() != members.size() ||
      ring != std::set<PeerId>(members.begin(), members.end())) {
    breaks(p, "a ring is not of the members of its epoch");
  }
}

// -------------------------------------------------------------------------------------- faults

void World::flap(int a, int b) {
  for (const int p : {a, b}) {
    const int q = p == a ? b : a;
    for (const auto& [key, op] : peer(p).ops) {
      if (op.active && random_.below(2) == 0) lost_.emplace(q, p, peer(p).configured, key);
    }
    // What it has not issued yet, but the other has sent.
    for (const auto& [sender, epoch, key, clean] : data_) {
      if (sender == q && epoch >= peer(p).configured && random_.below(2) == 0) {
        lost_.emplace(q, p, epoch, key);
      }
    }
    peer(p).link_events.push_back(LinkEvent{id(q), false, false});
    peer(p).link_events.push_back(LinkEvent{id(q), true, false});
  }
}

void World::close_links(int a, int b, bool sure) {
  for (const auto& [p, q] : {Pair(a, b), Pair(b, a)}) {
    if (!sure && random_.below(2) == 0) continue;
    peer(p).link_events.push_back(LinkEvent{id(q), false, false});
  }
}

int World::relay_of(const Epoch& epoch, int a, int b) {
  for (const Relay& relay : epoch.relays) {
    if (Pair(std::minmax(index(relay.a), index(relay.b))) == Pair(std::minmax(a, b))) {
      return index(relay.via);
    }
  }
  return -1;
}

bool World::linked(const Epoch& epoch, int a, int b) const {
  const int via = relay_of(epoch, a, b);
  if (via < 0) return joined(a, b);
  return up(via) && joined(a, via) && joined(via, b);
}

bool World::linked(EpochId epoch, int a, int b) const {
  const auto known = epochs.find(epoch);
  return known == epochs.end() ? joined(a, b) : linked(known->second, a, b);
}

void World::cut(int a, int b, Way way) {
  if (way != Way::back) cuts_.insert(Pair(a, b));
  if (way != Way::there) cuts_.insert(Pair(b, a));
}

/// Two halves that hear nothing of each other, or only one of the other.
void World::partition() {
  const std::uint64_t sides = random_.next();
  const Way way = random_.below(4) == 0 ? Way::there : Way::both;
  std::vector<int> here;
  std::vector<int> there;
  const auto place = [&](int n, int bit) { ((sides >> bit) & 1U ? here : there).push_back(n); };
  for (int p = 0; p < rules.peers; ++p) place(p, p);
  for (int m = 0; m < rules.masters; ++m) place(node(m), 32 + m);
  place(kRegister, 48);
  for (const int a : here) {
    for (const int b : there) {
      const bool peers_both = a >= 0 && b >= 0;
      if (peers_both && group(a) != group(b)) continue;
      if (peers_both && joined(a, b) && up(a) && up(b)) close_links(a, b, way == Way::both);
      cut(a, b, way);
      if (a >= 0) faulty.insert(a);
      if (b >= 0) faulty.insert(b);
    }
  }
}

/// A member of another run, which asks the wrong master.
void World::arrive_foreign(int p) {
  PeerWorld& world = peer(p);
  world.life = Life::up;
  world.foreign = true;
  Epoch epoch;
  const auto incarnation = static_cast<std::uint32_t>(1 + random_.below(3) * random_.below(100));
  epoch.id = EpochId::make(incarnation, static_cast<std::uint32_t>(1 + random_.below(5)));
  epoch.members = {world.core.self};
  peer::State& core = world.core;
  core.started = core.accepted = epoch;
  core.step = core.passed = random_.below(4);
  core.pinned = {id(p)};
  core.here = {id(p)};
  core.flags[core.step] = random_.below(2) == 0;
  if (random_.below(2) == 0) core.vote = VoteKind::refresh;
}

void World::heal() {
  std::set<Pair> links;
  for (const auto& [a, b] : cuts_) {
    if (a >= 0 && b >= 0) links.insert(std::minmax(a, b));
  }
  cuts_.clear();
  for (const auto& [a, b] : links) flap(a, b);
}

void World::settle() {
  healed_ = true;
  heal();
  if (rules.liar >= 0 && peer(rules.liar).life != Life::dead) {
    apply_fault({What::crash, Sort::fault, rules.liar, -1, {}});
    faulty.insert(rules.liar);
  }
  for (PeerWorld& world : peers) {
    if (world.life == Life::stopped) world.life = Life::up;
  }
  for (MasterWorld& world : masters) {
    if (world.life != Life::stopped) continue;
    world.life = Life::up;
    world.woke = true;
  }
}

void World::remind() {
  timeouts_.clear();
  for (MasterWorld& world : masters) world.beats.clear();
}

/// All that is not the masters'.
void World::apply_fault(const Move& move) {
  const int a = move.a;
  const int b = move.b;
  switch (move.what) {
    case What::crash:
      peer(a).life = Life::dead;
      for (int m = 0; m < rules.masters; ++m) net_.erase({node(m), a});
      if (peer(a).connected) put(a, node(peer(a).master), peer(a).conn, std::monostate{});
      for (int p = 0; p < rules.peers; ++p) {
        if (p == a || group(p) != group(a) || random_.below(4) == 0) continue;
        peer(p).link_events.push_back(LinkEvent{id(a), false, random_.below(2) == 0});
      }
      break;
    case What::stop:
      peer(a).life = Life::stopped;
      break;
    case What::reset:
      put(a, node(peer(a).master), peer(a).conn, std::monostate{});
      put(node(peer(a).master), a, peer(a).conn, std::monostate{});
      break;
    case What::cut:
      cut(a, node(move.m), move.way);
      break;
    case What::cut_register:
      cut(node(move.m), kRegister, move.way);
      break;
    case What::partition:
      partition();
      break;
    case What::link:
      cut(a, b, move.way);
      close_links(a, b, move.way == Way::both);
      break;
    case What::heal:
      heal();
      break;
    case What::flap:
      flap(a, b);
      break;
    case What::hang:
      peer(a).hung = true;
      break;
    case What::mismatch:
      mismatched_.emplace(run_of(peer(a).configured), move.op);
      break;
    case What::foreign:
      arrive_foreign(a);
      break;
    case What::repeat_up:
    case What::repeat_down: {
      const bool to_master = move.what == What::repeat_up;
      auto& queue = net_[to_master ? Pair(a, node(move.m)) : Pair(node(move.m), a)];
      // Once more at once, or behind what follows on the same connection.
      std::size_t last = 1;
      while (last < queue.size() && queue[last].conn == queue.front().conn &&
             !std::holds_alternative<std::monostate>(queue[last].message)) {
        ++last;
      }
      const Item again = queue.front();
      queue.insert(queue.begin() + static_cast<std::ptrdiff_t>(1 + random_.below(last)), again);
      break;
    }
    default:
      PCCL_ASSERT(false, "nobody applies this fault:", static_cast<int>(move.what));
  }
}

/// A fault is counted, and so are those who have it.
void World::spend(const Move& move) {
  static const std::map<What, Fault> kFault = {
      {What::crash, Fault::crash},         {What::stop, Fault::stop},
      {What::reset, Fault::reset},         {What::cut, Fault::cut},
      {What::link, Fault::link},           {What::heal, Fault::heal},
      {What::flap, Fault::flap},           {What::hang, Fault::hang},
      {What::wish, Fault::wish},           {What::bye, Fault::bye},
      {What::mismatch, Fault::mismatch},   {What::mcrash, Fault::mcrash},
      {What::mstop, Fault::mstop},         {What::cut_register, Fault::cut_register},
      {What::partition, Fault::partition}, {What::foreign, Fault::foreign},
      {What::reads, Fault::lease},         {What::strays, Fault::stray},
      {What::moves_on, Fault::move_on},    {What::repeat_up, Fault::repeat},
      {What::repeat_down, Fault::repeat},  {What::outage, Fault::outage}};
  static const std::set<What> kHarmless = {What::wish, What::strays, What::repeat_up,
                                           What::repeat_down};
  static const std::set<What> kContest = {What::reads, What::mstop, What::cut_register,
                                          What::partition, What::moves_on};
  Fault fault = kFault.at(move.what);
  if (move.way != Way::both && fault == Fault::cut) fault = Fault::cut_half;
  if (move.way != Way::both && fault == Fault::link) fault = Fault::link_half;
  --rules.budget[static_cast<std::size_t>(fault)];
  if (!kHarmless.contains(move.what) && move.a >= 0) faulty.insert(move.a);
  if (move.b >= 0) faulty.insert(move.b);
  if (rules.masters > 1 && kContest.contains(move.what)) contested = true;
}

void World::apply(const Move& move) {
  const int a = move.a;
  const int b = move.b;
  if (move.sort == Sort::fault) spend(move);
  if (apply_at_master(move)) return;
  switch (move.what) {
    case What::arrive:
    case What::wakes:
      peer(a).life = Life::up;
      break;
    case What::connect:
    case What::strays:
      net_.erase({node(move.m), a});
      ++peer(a).conn;
      peer(a).connected = true;
      peer(a).master = move.m;
      peer(a).tries.clear();
      to_peer(a, peer::MasterConnected{});
      break;
    case What::peer_silent:
    case What::moves_on:
      net_.erase({node(move.m), a});
      put(a, node(move.m), peer(a).conn, std::monostate{});
      peer(a).connected = false;
      to_peer(a, peer::MasterLost{});
      break;
    case What::peer_to_master:
      deliver_to_master(move.m, a, false);
      break;
    case What::master_to_peer:
      deliver_to_peer(a, move.m, false);
      break;
    case What::rest_lost_up:
      deliver_to_master(move.m, a, true);
      break;
    case What::rest_lost_down:
      deliver_to_peer(a, move.m, true);
      break;
    case What::links_up: {
      const EpochId epoch = peer(a).connect->epoch;
      peer(a).connect.reset();
      Random trip(id(a).value * 1000 + epoch.value);  // its own chances, as for rates
      const auto longest = static_cast<std::uint32_t>(trip.below(100'000));
      to_peer(a, peer::LinksUp{epoch, {longest, static_cast<std::uint32_t>(trip.below(100'000))}});
      break;
    }
    case What::link_fails: {
      const auto& core = peer(a).core;
      EpochId epoch = core.started ? core.started->id : EpochId{};
      if (core.accepted) epoch = std::max(epoch, core.accepted->id);
      if (core.preparing) epoch = std::max(epoch, core.preparing->epoch.id);
      to_peer(a, peer::LinkFailed{epoch, id(b), "no route"});
      break;
    }
    case What::tried_up:
      peer(a).tries[id(b)] = true;
      to_peer(a, peer::LinksTried{{{id(b), ""}}});
      break;
    case What::tried_in_vain:
      peer(a).tries.erase(id(b));
      to_peer(a, peer::LinksTried{{{id(b), "no route"}}});
      break;
    case What::fetched:
      peer(a).fetch.reset();
      peer(a).staged = peer(b).content;
      to_peer(a, peer::Verified{root_of(peer(a).staged)});
      if (rules.slow_adoption || !peer(a).adopting) break;
      [[fallthrough]];
    case What::adopts:
      peer(a).adopting = false;
      // One time in four nothing comes of it, and the program asks again.
      if (!rules.slow_adoption || random_.below(4) > 0) peer(a).content = peer(a).staged;
      to_peer(a, peer::Fetched{root_of(peer(a).content)});
      break;
    case What::hashed:
      peer(a).hash = false;
      to_peer(a, peer::RootKnown{root_of(peer(a).content)});
      break;
    case What::link_event: {
      const LinkEvent event = peer(a).link_events.front();
      peer(a).link_events.pop_front();
      const auto& core = peer(a).core;
      const bool mate = (core.started && contains(core.started->members, event.peer)) ||
                        (core.accepted && contains(core.accepted->members, event.peer)) ||
                        (core.preparing && contains(core.preparing->epoch.members, event.peer));
      if (!mate) break;
      if (event.back) {
        to_peer(a, peer::LinkBack{event.peer});
      } else {
        to_peer(a, peer::LinkClosed{event.peer, event.refused});
      }
      break;
    }
    case What::issue:
      issue(a);
      break;
    case What::door:
      joined_late = true;
      at_boundary(a);
      break;
    case What::boundary:
      at_boundary(a);
      break;
    case What::complete: {
      bool sure = false;
      bool clean = false;
      PCCL_ASSERT(data_is_there(a, move.op, sure, clean));
      peer(a).ops.at(move.op).active = false;
      peer(a).ops.at(move.op).result = std::pair(peer(a).configured, clean);
      to_peer(a, peer::Completed{move.op});
      break;
    }
    case What::wish:
    case What::leave:
      peer(a).leaving = true;
      to_peer(a, peer::WantsToLeave{random_.below(3) > 0});
      break;
    case What::bye:
    case What::end_bye:
    case What::end_leave:
      to_peer(a, peer::SaysBye{});
      peer(a).over = peer(a).said_bye = true;
      act(a, {});
      break;
    case What::returned:
      ++peer(a).waited;
      if (peer(a).committed.contains(move.op)) {
        to_peer(a, peer::Returned{move.op, peer(a).committed_in.at(move.op)});
      }
      break;
    case What::times_out:
      ++timeouts_[{a, peer(a).configured, move.op}];
      to_peer(a, peer::TimedOut{move.op});
      break;
    case What::heartbeat:
      ++master(peer(a).master).beats[a];
      peer(a).beat = std::tuple(peer(a).conn, peer(a).configured, peer::next_key(peer(a).core));
      put(a, node(peer(a).master), peer(a).conn,
          PeerToMaster{Heartbeat{peer::next_key(peer(a).core), peer(a).hung, peer(a).hung}});
      break;
    case What::finds_mismatch:
      peer(a).mismatch_said.emplace(peer(a).configured, move.op);
      to_peer(a, peer::FoundMismatch{move.op, "rank 0 called barrier"});
      break;
    default:
      apply_fault(move);
      break;
  }
  forget_data();
}

void World::forget_data() {
  if (data_.size() <= 400) return;
  EpochId oldest{~std::uint64_t{0}};
  for (const PeerWorld& world : peers) {
    if (world.life != Life::dead && !world.over && world.core.started && !world.foreign) {
      oldest = std::min(oldest, world.configured);
    }
  }
  std::erase_if(data_, [&](const auto& d) { return std::get<1>(d) < oldest; });
}

}  // namespace pccl::sim
