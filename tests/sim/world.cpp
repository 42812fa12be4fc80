// What an event does to the simulated world: the engine's, the server's and the register's duties
// around the cores, as their headers state them. What can happen next is in moves.cpp, the
// program that a peer runs in program.cpp.
#include "world.h"

#include <algorithm>

#include "base/assert.h"
#include "membership/members.h"

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
  for (int p = 0; p < rules.peers; ++p) {
    PeerWorld& world = peer(p);
    Member& self = world.core.self;
    self.handle.peer = id(p);
    self.place.replica = "r" + std::to_string(replica(p));
    self.place.rank = static_cast<std::uint32_t>(group(p));
    self.place.size = static_cast<std::uint32_t>(rules.ranks);
    world.core.planted = rules.planted;
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
  if (to != kMaster && peer(to).life == Life::dead) return;
  if (to == kMaster && !master) return;
  net_[{from, to}].push_back(Item{conn, std::move(message)});
}

void World::to_peer(int p, const peer::Event& event) {
  try {
    act(p, peer::step(peer(p).core, event));
  } catch (const BrokenInvariant& e) {
    broken = std::string("peer: ") + e.what();
  }
}

void World::to_master(const master::Event& event) {
  if (!master) return;
  if (woke_ && !master->writing) {
    woke_ = false;
    to_master(master::Woke{});
  }
  const auto expiry = [&] { return std::pair(master->expired, master->expired_boundary); };
  const auto before = expiry();
  try {
    act_master(master::step(*master, event));
  } catch (const BrokenInvariant& e) {
    broken = std::string("master: ") + e.what();
  }
  if (expiry() != before) beats_.clear();
}

void World::deliver_to_master(int p, bool last) {
  auto& queue = net_[{p, kMaster}];
  const Item item = last ? queue.back() : queue.front();
  if (last) {
    queue.clear();
  } else {
    queue.pop_front();
  }
  const auto conn = conns_.find(id(p));
  if (const auto* message = std::get_if<PeerToMaster>(&item.message)) {
    if (const auto* hello = std::get_if<Hello>(message)) {
      conns_[id(p)] = item.conn;
      to_master(master::PeerConnected{*hello});
    } else if (conn != conns_.end() && conn->second == item.conn) {
      to_master(master::PeerMessage{id(p), *message});
    }
  } else if (conn != conns_.end() && conn->second <= item.conn) {
    conns_.erase(conn);
    to_master(master::PeerDisconnected{id(p)});
  }
}

void World::deliver_to_peer(int p, bool last) {
  auto& queue = net_[{kMaster, p}];
  const Item item = last ? queue.back() : queue.front();
  if (last) {
    queue.clear();
  } else {
    queue.pop_front();
  }
  PeerWorld& world = peer(p);
  if (!world.connected || item.conn != world.conn) return;
  if (const auto* message = std::get_if<MasterToPeer>(&item.message)) {
    to_peer(p, peer::FromMaster{*message});
  } else {
    world.connected = false;
    to_peer(p, peer::MasterLost{});
  }
}

void World::close_from_master(int p) {
  const auto conn = conns_.find(id(p));
  if (conn == conns_.end()) return;
  put(kMaster, p, conn->second, std::monostate{});
  conns_.erase(conn);
}

void World::crash_master() {
  master.reset();
  master_life = Life::up;
  conns_.clear();
  write_.reset();
  timers_.clear();
  absences_.clear();
  beats_.clear();
  woke_ = false;
  for (int p = 0; p < rules.peers; ++p) {
    net_.erase({p, kMaster});
    if (peer(p).connected) put(kMaster, p, peer(p).conn, std::monostate{});
  }
}

// ------------------------------------------------------------------------------ actions of a core

void World::set_outcome(int p, OpKey op, bool failed) {
  PeerWorld& world = peer(p);
  const auto at = world.ops.find(op);
  if (at == world.ops.end()) {
    broken = "operation " + to_string(op) + ": an outcome that nobody waits for";
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
    if (at->second.dirty)
      broken = "operation " + to_string(op) + " failed, its tensor was not restored";
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
  world.committed.clear();
  changed = true;
  if (!world.ops.empty()) broken = "a step was entered with operations in flight";
  if (action.root.present && action.root != root_of(world.content)) {
    broken = "peer " + std::to_string(p) + " entered step " + std::to_string(action.step) +
             " with another state than agreed";
  }
}

void World::act(int p, peer::Actions actions) {
  PeerWorld& world = peer(p);
  const auto on = [&](auto& action) {
    using T = std::decay_t<decltype(action)>;
    if constexpr (std::is_same_v<T, peer::ToMaster>) {
      if (world.connected) put(p, kMaster, world.conn, std::move(action.message));
    } else if constexpr (std::is_same_v<T, peer::StopData>) {
      world.stopped_data = true;
    } else if constexpr (std::is_same_v<T, peer::Connect>) {
      world.connect = std::move(action);
      world.fetch.reset();
    } else if constexpr (std::is_same_v<T, peer::HashState>) {
      world.hash = true;
    } else if constexpr (std::is_same_v<T, peer::Fetch>) {
      world.fetch = std::move(action);
    } else if constexpr (std::is_same_v<T, peer::Configure>) {
      world.configured = action.epoch;
      world.mates = std::move(action.members);
      world.stopped_data = false;
      if (world.first_epoch == EpochId{}) world.first_epoch = action.epoch;
      started[action.epoch].insert(id(p));
      changed = true;
    } else if constexpr (std::is_same_v<T, peer::RunOp>) {
      if (world.stopped_data) broken = "RunOp while no epoch is in force";
      OpWorld& op = world.ops.at(action.op);
      data_.emplace(p, world.configured, action.op, !op.dirty);
      op.active = op.dirty = true;
      op.result.reset();
    } else if constexpr (std::is_same_v<T, peer::RestoreOp>) {
      OpWorld& op = world.ops.at(action.op);
      op.active = op.dirty = false;
      op.result.reset();
    } else if constexpr (std::is_same_v<T, peer::CommitOp>) {
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
    put(p, kMaster, world.conn, std::monostate{});
    world.connected = false;
    net_.erase({kMaster, p});
  }
}

void World::act_master(master::Actions actions) {
  const auto on = [&](auto& action) {
    using T = std::decay_t<decltype(action)>;
    if constexpr (std::is_same_v<T, master::Send>) {
      if (const auto* propose = std::get_if<Propose>(&action.message)) note(propose->epoch);
      const auto conn = conns_.find(action.peer);
      if (conn != conns_.end()) {
        put(kMaster, index(action.peer), conn->second, std::move(action.message));
      }
    } else if constexpr (std::is_same_v<T, master::WriteRegister>) {
      write_ = Write{std::move(action.from), std::move(action.to), false, false};
    } else if constexpr (std::is_same_v<T, master::Close>) {
      close_from_master(index(action.peer));
    } else if constexpr (std::is_same_v<T, master::StartTimer>) {
      if (action.kind == master::TimerKind::absence) {
        absences_.insert(action.peer);
      } else {
        timers_.insert(action.kind);
      }
    } else if constexpr (std::is_same_v<T, master::StopTimer>) {
      if (action.kind == master::TimerKind::absence) {
        absences_.erase(action.peer);
      } else {
        timers_.erase(action.kind);
      }
    } else if constexpr (std::is_same_v<T, master::Say>) {
      if (tracing) log.push_back("      master: " + action.text);
    } else if constexpr (std::is_same_v<T, master::Deposed>) {
      for (int p = 0; p < rules.peers; ++p) close_from_master(p);
      timers_.clear();
      absences_.clear();
      write_.reset();
      if (tracing) log.push_back("      master: deposed: " + action.why);
    }
  };
  for (master::Action& action : actions) std::visit(on, action);
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

void World::heal() {
  for (const auto& [a, b] : std::set<Pair>(cuts_)) {
    if (a != kMaster) flap(a, b);
  }
  cuts_.clear();
  for (PeerWorld& world : peers) {
    if (world.life == Life::stopped) world.life = Life::up;
  }
  if (master_life == Life::stopped) {
    master_life = Life::up;
    woke_ = true;
  }
}

void World::apply(const Move& move) {
  const int a = move.a;
  const int b = move.b;
  if (move.sort == Sort::fault) {
    static const std::map<What, std::string> kNames = {
        {What::crash, "crash"}, {What::stop, "stop"},         {What::reset, "reset"},
        {What::cut, "cut"},     {What::link, "link"},         {What::heal, "heal"},
        {What::flap, "flap"},   {What::hang, "hang"},         {What::wish, "wish"},
        {What::bye, "bye"},     {What::mismatch, "mismatch"}, {What::mcrash, "mcrash"},
        {What::mstop, "mstop"}};
    --rules.budget[kNames.at(move.what)];
    if (move.what != What::wish && a >= 0) faulty.insert(a);
    if (b >= 0) faulty.insert(b);
  }
  switch (move.what) {
    case What::arrive:
    case What::wakes:
      peer(a).life = Life::up;
      break;
    case What::connect:
      net_.erase({kMaster, a});
      ++peer(a).conn;
      peer(a).connected = true;
      to_peer(a, peer::MasterConnected{});
      break;
    case What::peer_silent:
      net_.erase({kMaster, a});
      put(a, kMaster, peer(a).conn, std::monostate{});
      peer(a).connected = false;
      to_peer(a, peer::MasterLost{});
      break;
    case What::peer_to_master:
      deliver_to_master(a, false);
      break;
    case What::master_to_peer:
      deliver_to_peer(a, false);
      break;
    case What::rest_lost:
      if (b == kMaster) {
        deliver_to_master(a, true);
      } else {
        deliver_to_peer(b, true);
      }
      break;
    case What::register_writes:
      write_->answered = true;
      write_->ok = held == write_->from;
      if (write_->ok) {
        const bool none = !held.epoch || held.over;
        held = write_->to;
        if (held.epoch && !held.over) {
          note(*held.epoch);
          if (none) foundings.insert(held.epoch->id);
        }
        changed = true;
      }
      break;
    case What::register_answers: {
      const Write write = *write_;
      write_.reset();
      to_master(master::RegisterWritten{write.to, write.ok});
      break;
    }
    case What::gives_up_write:
      write_.reset();
      to_master(master::RegisterUnanswered{});
      break;
    case What::boots:
      master.emplace();
      master->config.min_peers = rules.founders;
      master->config.hold_below = rules.hold_below;
      master->config.planted = rules.planted;
      break;
    case What::takes_over:
      to_master(master::TakenOver{held});
      break;
    case What::master_silent: {
      auto& queue = net_[{a, kMaster}];
      const std::uint64_t conn = conns_.at(id(a));
      std::erase_if(queue, [&](const Item& item) { return item.conn <= conn; });
      close_from_master(a);
      to_master(master::PeerGone{id(a), "silent"});
      break;
    }
    case What::patience:
      timers_.erase(master::TimerKind::patience);
      to_master(master::PatienceOver{});
      break;
    case What::founding:
      timers_.erase(master::TimerKind::founding);
      to_master(master::FoundingOver{});
      break;
    case What::refound:
      timers_.erase(master::TimerKind::refound);
      to_master(master::RefoundOver{});
      break;
    case What::absence:
      absences_.erase(id(a));
      to_master(master::PeerGone{id(a), "not back in time"});
      break;
    case What::links_up: {
      const EpochId epoch = peer(a).connect->epoch;
      peer(a).connect.reset();
      to_peer(a, peer::LinksUp{epoch});
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
    case What::fetched: {
      const EpochId epoch = peer(a).fetch->epoch;
      peer(a).fetch.reset();
      peer(a).content = peer(b).content;
      to_peer(a, peer::Fetched{epoch, root_of(peer(a).content)});
      break;
    }
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
      to_peer(a, peer::WantsToLeave{});
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
      if (peer(a).committed.contains(move.op)) to_peer(a, peer::Returned{move.op});
      break;
    case What::times_out:
      ++timeouts_[{a, peer(a).configured, move.op}];
      to_peer(a, peer::TimedOut{move.op});
      break;
    case What::heartbeat:
      ++beats_[a];
      put(a, kMaster, peer(a).conn, PeerToMaster{Heartbeat{peer::next_key(peer(a).core)}});
      break;
    case What::finds_mismatch:
      peer(a).mismatch_said.emplace(peer(a).configured, move.op);
      to_peer(a, peer::FoundMismatch{move.op, "rank 0 called barrier"});
      break;
    case What::master_wakes:
      master_life = Life::up;
      woke_ = true;
      break;
    case What::crash:
      peer(a).life = Life::dead;
      net_.erase({kMaster, a});
      if (peer(a).connected) put(a, kMaster, peer(a).conn, std::monostate{});
      for (int p = 0; p < rules.peers; ++p) {
        if (p == a || group(p) != group(a) || random_.below(4) == 0) continue;
        peer(p).link_events.push_back(LinkEvent{id(a), false, random_.below(2) == 0});
      }
      break;
    case What::stop:
      peer(a).life = Life::stopped;
      break;
    case What::reset:
      put(a, kMaster, peer(a).conn, std::monostate{});
      put(kMaster, a, peer(a).conn, std::monostate{});
      break;
    case What::cut:
      cuts_.insert(ordered(a, kMaster));
      break;
    case What::link:
      cuts_.insert(ordered(a, b));
      for (const auto& [p, q] : {Pair(a, b), Pair(b, a)}) {
        peer(p).link_events.push_back(LinkEvent{id(q), false, false});
      }
      break;
    case What::heal:
      for (const auto& [p, q] : std::set<Pair>(cuts_)) {
        if (p != kMaster) flap(p, q);
      }
      cuts_.clear();
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
    case What::mcrash:
      crash_master();
      break;
    case What::mstop:
      master_life = Life::stopped;
      break;
  }
  if (data_.size() > 400) {
    EpochId oldest{~std::uint64_t{0}};
    for (const PeerWorld& world : peers) {
      if (world.life != Life::dead && !world.over && world.core.started) {
        oldest = std::min(oldest, world.configured);
      }
    }
    std::erase_if(data_, [&](const auto& d) { return std::get<1>(d) < oldest; });
  }
}

}  // namespace pccl::sim
