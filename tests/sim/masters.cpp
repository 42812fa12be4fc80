// The masters of a simulated world and the register that they share: the server's duties around the
// master's core, as its header states them, and a register that changes by compare-and-write. A
// request may reach the register long after its master has given it up.
#include <algorithm>

#include "base/assert.h"
#include "membership/master_rules.h"
#include "membership/members.h"
#include "wire/codec.h"
#include "world.h"

namespace pccl::sim {

const master::State* World::in_office() const {
  for (const MasterWorld& world : masters) {
    if (world.core && world.core->holds && world.core->held->incarnation == held.incarnation) {
      return &*world.core;
    }
  }
  return nullptr;
}

master::State World::fresh_master() const {
  master::State state;
  state.config.min_peers = rules.founders;
  state.config.hold_below = rules.hold_below;
#ifdef PCCL_PLANTED_BUGS
  state.config.planted = rules.planted;
#endif
  state.config.shared = rules.masters > 1;
  return state;
}

void World::to_master(int m, const master::Event& event) {
  MasterWorld& world = master(m);
  if (!world.core) return;
  if (world.woke && !world.core->writing) {
    world.woke = false;
    to_master(m, master::Woke{});
  }
  const auto before = world.core->accusations;
  try {
    act_master(m, master::step(*world.core, event));
  } catch (const BrokenInvariant& e) {
    broken = crashed = std::string("master: ") + e.what();
  } catch (const std::out_of_range& e) {
    broken = crashed = std::string("master: ") + e.what();
  }
  if (world.core->accusations != before) world.beats.clear();
}

void World::deliver_to_master(int m, int p, bool last) {
  auto& queue = net_[{p, node(m)}];
  const Item item = last ? queue.back() : queue.front();
  if (last) {
    queue.clear();
  } else {
    queue.pop_front();
  }
  auto& conns = master(m).conns;
  const auto conn = conns.find(id(p));
  if (const auto* message = std::get_if<PeerToMaster>(&item.message)) {
    if (const auto* hello = std::get_if<Hello>(message)) {
      if (conn != conns.end() && conn->second > item.conn) return;  // of a connection before
      conns[id(p)] = item.conn;
      to_master(m, master::PeerConnected{*hello});
    } else if (conn != conns.end() && conn->second == item.conn) {
      to_master(m, master::PeerMessage{id(p), *message});
    }
  } else if (conn != conns.end() && conn->second <= item.conn) {
    conns.erase(conn);
    to_master(m, master::PeerDisconnected{id(p)});
  }
}

void World::close_from_master(int m, int p) {
  auto& conns = master(m).conns;
  const auto conn = conns.find(id(p));
  if (conn == conns.end()) return;
  put(node(m), p, conn->second, std::monostate{});
  conns.erase(conn);
}

/// With a liar: what a master says is within the limits of the wire.
void World::judge(int m, const master::Send& send) {
  static_cast<void>(encode(send.message));  // asserts the limits
  const auto* evicted = std::get_if<Evicted>(&send.message);
  const int p = index(send.peer);
  if (evicted != nullptr && !goes_with_liar(p)) judge_eviction(m, p, evicted->text);
}

/// A sound member is evicted. Of two that contradict each other nobody can tell which one lies; but
/// of more nobody is evicted for lateness while no program hangs, and where nothing but lies goes
/// wrong a liar costs one sound replica its place, of two that cannot reach each other, and no
/// second one.
void World::judge_eviction(int m, int p, const std::string& why) {
  const auto begins = [&](const char* words) { return why.starts_with(words); };
  const bool behind = begins("it has not come to");
  const bool late = behind || begins("it waits in") || begins("it stands at");
  const auto& epoch = master(m).core->held->epoch;
  if (!epoch || master(m).core->held->over) return;
  if (why == "left" && peer(p).leaving) return;  // comes back to hear what has become of its wish
  if (why.ends_with(") said goodbye")) return;   // a rank of its replica, which may be at its end
  const bool hangs =
      std::any_of(peers.begin(), peers.end(), [](const PeerWorld& world) { return world.hung; });
  const std::size_t most = late && !behind ? 2 * static_cast<std::size_t>(rules.ranks) : 2;
  const bool unjust = late && !hangs && epoch->members.size() > most;
  std::set<int> sound;  // replicas of the epoch
  for (const Member& member : epoch->members) {
    if (!goes_with_liar(index(member.peer()))) sound.insert(replica(index(member.peer())));
  }
  // A member that comes back after it had to go does not hear why.
  if (begins("the run has gone on") || why.find(" cannot reach ") != std::string::npos) {
    parted.insert(replica(p));
    if (parted.size() < 2) sound.clear();
  }
  if (unjust || (rules.only_lies && !contested && sound.size() > 1)) {
    crashed = "peer " + std::to_string(p) + " does not lie, and was evicted: " + why;
  }
}

void World::act_master(int m, master::Actions actions) {
  MasterWorld& world = master(m);
  std::optional<EpochId> starts;
  const auto on = [&](auto& action) {
    using T = std::decay_t<decltype(action)>;
    if constexpr (std::is_same_v<T, master::Send>) {
      if (!world.core->holds) broken = "a master that is not in office speaks";
      if (rules.liar >= 0) judge(m, action);
      if (const auto* start = std::get_if<Start>(&action.message)) starts = start->epoch;
      const bool left = starts && std::holds_alternative<Left>(action.message);
      if (left && !epochs.at(*starts).boundary &&
          !contains(epochs.at(*starts).members, action.peer)) {
        at_once[*starts].insert(action.peer);
        changed = true;
      }
      if (const auto* propose = std::get_if<Propose>(&action.message)) note(propose->epoch);
      const auto conn = world.conns.find(action.peer);
      if (conn != world.conns.end()) {
        put(node(m), index(action.peer), conn->second, std::move(action.message));
      }
    } else if constexpr (std::is_same_v<T, master::SendAll>) {
      master::Actions each;
      for (const PeerId p : action.peers) each.push_back(master::Send{p, action.message});
      if (const auto* start = std::get_if<Start>(&action.message)) starts = start->epoch;
      act_master(m, std::move(each));
    } else if constexpr (std::is_same_v<T, master::WriteRegister>) {
      world.write = ++write_numbers_;
      writes_.push_back(Write{world.write, m, std::move(action.from), std::move(action.to), false,
                              false, world.refounds || world.core->config.refound});
    } else if constexpr (std::is_same_v<T, master::Close>) {
      close_from_master(m, index(action.peer));
    } else if constexpr (std::is_same_v<T, master::StartTimer>) {
      if (action.kind == master::TimerKind::absence) {
        world.absences.insert(action.peer);
      } else {
        world.timers.insert(action.kind);
      }
    } else if constexpr (std::is_same_v<T, master::StopTimer>) {
      if (action.kind == master::TimerKind::absence) {
        world.absences.erase(action.peer);
      } else {
        world.timers.erase(action.kind);
      }
    } else if constexpr (std::is_same_v<T, master::Say>) {
      if (tracing) log.push_back("      master " + std::to_string(m) + ": " + action.text);
    } else if constexpr (std::is_same_v<T, master::Deposed>) {
      depose(m, action.why);
    }
  };
  for (master::Action& action : actions) std::visit(on, action);
}

void World::depose(int m, const std::string& why) {
  MasterWorld& world = master(m);
  for (int p = 0; p < rules.peers; ++p) close_from_master(m, p);
  world.timers.clear();
  world.absences.clear();
  world.beats.clear();
  world.read.reset();
  world.write = 0;
  if (tracing) log.push_back("      master " + std::to_string(m) + ": deposed: " + why);
}

void World::crash_master(int m) {
  master(m) = MasterWorld{};
  for (int p = 0; p < rules.peers; ++p) {
    net_.erase({p, node(m)});
    if (peer(p).connected && peer(p).master == m) put(node(m), p, peer(p).conn, std::monostate{});
  }
}

/// A router fails at the master, until the absence of all who were connected is over. No peer has a
/// fault.
void World::outage(int m) {
  const auto conns = master(m).conns;
  for (const auto& [p, conn] : conns) {
    std::erase_if(net_[{index(p), node(m)}],
                  [last = conn](const Item& item) { return item.conn <= last; });
    if (master(m).core->writing) {  // it hears of it after the answer
      put(index(p), node(m), conn, std::monostate{});
      put(node(m), index(p), conn, std::monostate{});
      continue;
    }
    close_from_master(m, index(p));
    to_master(m, master::PeerDisconnected{p});
  }
  for (const auto& [p, conn] : conns) {
    if (master(m).core->writing || master(m).absences.erase(p) == 0) continue;
    to_master(m, master::PeerGone{p, "not back in time"});
  }
}

/// Only while those who know better are there and will come, and do not just end their programs: of
/// a register that was set back nobody else can tell. And one master, of which the operator knows.
bool World::may_lose_register() const {
  if (rules.masters > 1 || !rules.boundaries || lost || started.empty() || !held.epoch || held.over)
    return false;
  const EpochId newest = started.rbegin()->first;
  if (held.epoch->id != newest || !writes_.empty()) return false;
  bool known = false;
  for (int p = 0; p < rules.peers; ++p) {
    const PeerWorld& world = peer(p);
    if (world.life == Life::stopped || world.foreign) return false;
    if (!up(p) || world.over) continue;
    if (!joined(p, node(0))) return false;
    if (world.core.started && world.core.started->id != newest) return false;
    known = known || world.core.started;
  }
  return known;
}

void World::lose_register() {
  const master::Register other =
      random_.below(2) == 0 ? master::Register{} : history_[random_.below(history_.size())];
  lost = !other.epoch || other.epoch->id != started.rbegin()->first;
  // A master that sees all members of the older epoch to have ended waits for nobody else.
  const auto is_up = [this](const Member& m) { return up(index(m.peer())); };
  lost = lost && (!other.epoch ||
                  std::any_of(other.epoch->members.begin(), other.epoch->members.end(), is_up));
  if (!lost) return;
  was_lost = true;
  refounds_ = !other.epoch && random_.below(2) == 0;
  held = other;
  if (tracing) log.push_back("      the register is lost, or set back");
  for (std::size_t i = 0; i < kFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    const bool harmless = fault == Fault::reset || fault == Fault::flap || fault == Fault::repeat ||
                          fault == Fault::mcrash || fault == Fault::mstop || fault == Fault::wish;
    if (!harmless) rules.budget[i] = 0;
  }
}

/// A run that nobody has finished ends when all members that are here leave. Where none is here,
/// each of them is known to be gone, or they have had time to come back: what the master has lost
/// is its connections.
std::string World::wrong_end(const Write& write) const {
  const bool ends = write.to.over && !write.from.over && !write.to.ended;
  if (!ends || write.waited || !write.from.epoch) return "";
  if (rules.liar >= 0) return ends_by_a_lie(write);
  std::set<int> gone;  // replicas: they go as a whole
  for (const Member& m : write.from.epoch->members) {
    const PeerWorld& member = at(m.peer());
    if (member.leaving) return "";
    if (member.life == Life::dead || member.over || member.said_bye) {
      gone.insert(replica(index(m.peer())));
    }
  }
  for (const Member& m : write.from.epoch->members) {
    const int p = index(m.peer());
    if (!gone.contains(replica(p))) {
      return "the run is over, and " + std::to_string(p) + " may come back";
    }
  }
  return "";
}

/// A liar may say that its replica leaves, and that is the end where no other one goes on.
std::string World::ends_by_a_lie(const Write& write) const {
  const auto& core = master(write.master).core;
  if (!core) return "";
  std::set<int> gone;  // replicas: they go as a whole
  for (int p = 0; p < rules.peers; ++p) {
    const bool ends = goes_with_liar(p) || !up(p) || peer(p).leaving || peer(p).said_bye;
    if (ends) gone.insert(replica(p));
  }
  for (const Member& m : master::survivors(*core)) {
    const int p = index(m.peer());
    if (!gone.contains(replica(p))) {
      return "the run is over, and " + std::to_string(p) + " goes on";
    }
  }
  return "";
}

/// Compare and write.
void World::write_register(Write& write) {
  write.answered = true;
  write.ok = held == write.from || planted(rules.planted, "blind_write");
  if (write.ok) {
    const bool none = !held.epoch || held.over;
    const bool same = held.epoch == write.to.epoch && held.over == write.to.over;
    const bool answered = adopts_ || given_up != EpochId{};
    if (lost && !same && !answered) broken = "the run goes on by itself, and its register was lost";
    const bool adopted = lost && !same && adopts_;
    const bool opens = held.ended && !write.to.ended;
    if (std::string wrong = wrong_end(write); !wrong.empty()) broken = std::move(wrong);
    if (opens && !lost && !adopts_ && !refounds_) broken = "a run that was finished goes on";
    if (!same) lost = false;
    history_.push_back(held);
    held = write.to;
    if (held.epoch && !held.over && !same && !adopted) {
      note(*held.epoch);
      if (none) foundings.insert(held.epoch->id);
    }
    changed = true;
  } else if (planted(rules.planted, "read_back")) {
    write.ok = held == write.to;  // another's, of the same value
  }
  const bool awaited = master(write.master).write == write.number;
  if (!awaited) {
    std::erase_if(writes_, [n = write.number](const Write& w) { return w.number == n; });
  }
}

bool World::apply_at_master(const Move& move) {
  const int m = move.m;
  const int p = move.a;
  const auto write = [&] {
    return std::find_if(writes_.begin(), writes_.end(),
                        [&](const Write& w) { return w.number == move.number; });
  };
  switch (move.what) {
    case What::register_writes:
      write_register(*write());
      return true;
    case What::register_answers: {
      const Write answer = *write();
      writes_.erase(write());
      master(m).write = 0;
      to_master(m, master::RegisterWritten{answer.to, answer.ok});
      const auto in_office = [](const MasterWorld& w) { return w.core && w.core->holds; };
      if (std::count_if(masters.begin(), masters.end(), in_office) > 1) contested = true;
      changed = true;
      return true;
    }
    case What::gives_up_write:
      if (write() != writes_.end() && write()->answered) writes_.erase(write());
      master(m).write = 0;
      to_master(m, master::RegisterUnanswered{"the register did not answer"});
      return true;
    case What::boots:
      master(m).core = fresh_master();
      return true;
    case What::operator_answers:
      crash_master(m);
      master(m).core = fresh_master();
      if (refounds_) {
        master(m).core->config.refound = true;
        given_up = started.rbegin()->first;
      } else {
        master(m).core->config.adopt = adopts_ = true;
      }
      return true;
    case What::reads:
      master(m).read = held;
      return true;
    case What::takes_over: {
      const master::Register read = *master(m).read;
      master(m).read.reset();
      to_master(m, master::TakenOver{read});
      return true;
    }
    case What::ousted:
      depose(m, "the lease is another's");
      master(m).core = fresh_master();
      return true;
    case What::master_silent: {
      auto& queue = net_[{p, node(m)}];
      const std::uint64_t conn = master(m).conns.at(id(p));
      std::erase_if(queue, [&](const Item& item) { return item.conn <= conn; });
      close_from_master(m, p);
      to_master(m, master::PeerGone{id(p), "silent"});
      return true;
    }
    case What::patience:
      master(m).timers.erase(master::TimerKind::patience);
      to_master(m, master::PatienceOver{});
      return true;
    case What::founding:
      master(m).timers.erase(master::TimerKind::founding);
      to_master(m, master::FoundingOver{});
      return true;
    case What::refound:
      master(m).timers.erase(master::TimerKind::refound);
      master(m).refounds = true;
      to_master(m, master::RefoundOver{});
      master(m).refounds = false;
      return true;
    case What::sees_death:
      to_master(m, master::PeerDied{id(p)});
      return true;
    case What::absence:
      master(m).absences.erase(id(p));
      to_master(m, master::PeerGone{id(p), "not back in time"});
      return true;
    case What::master_wakes:
      master(m).life = Life::up;
      master(m).woke = true;
      return true;
    case What::mcrash:
      crash_master(m);
      if (has_left(Fault::lose) && may_lose_register() && random_.below(2) == 0) lose_register();
      return true;
    case What::mstop:
      master(m).life = Life::stopped;
      return true;
    case What::founders_again:
      to_master(
          m, master::Clock{std::max(master(m).core->now_s + 1, master(m).core->apart_again_s), 0});
      return true;
    case What::newcomers_again:
      to_master(m, master::Clock{next_retry_s(*master(m).core), 0});
      return true;
    case What::has_measured:
      ++master(m).measurings;
      to_master(m, master::Clock{master(m).core->now_s + 1, 0});
      return true;
    case What::outage:
      outage(m);
      return true;
    default:
      return false;
  }
}

}  // namespace pccl::sim
