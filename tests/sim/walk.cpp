// See walk.h.
#include "walk.h"

#include <algorithm>
#include <cstdio>

#include "invariants.h"
#include "world.h"

namespace pccl::sim {
namespace {

constexpr std::uint64_t kStepsMax = 8000;  // a walk that is longer turns in circles
constexpr std::uint32_t kEpochsMax = 120;  // so does an incarnation with more proposals
constexpr int kRemindersMax = 3;           // then repeating leads nowhere

template <typename T>
T pick(Random& random, std::initializer_list<T> choices) {
  return *(choices.begin() + random.below(choices.size()));
}

Rules shape(Random& random, const PlantedBugs& planted) {
  Rules rules;
  rules.planted = planted;
  rules.ranks = pick(random, {1, 1, 1, 1, 1, 1, 1, 2, 2, 3});
  const int replicas = 2 + static_cast<int>(random.below(rules.ranks == 1 ? 4 : 2));
  rules.peers = replicas * rules.ranks;
  rules.founders =
      1 + static_cast<std::uint32_t>(random.below(static_cast<std::uint64_t>(replicas)));
  if (random.below(8) == 0) rules.hold_below = 2;
  rules.boundaries = random.below(5) != 0;
  rules.window = 1 + random.below(3);
  rules.eager = random.below(6) == 0;
  rules.masters = pick(random, {1, 1, 2, 2, 3});
  const std::uint64_t steps = 1 + random.below(6);
  const std::string kinds = pick<const char*>(random, {"RRRBX", "RRRBX", "RX", "R", "B", "RB"});
  for (std::uint64_t step = 0; step < steps; ++step) {
    std::string ops;
    for (std::uint64_t n = random.below(5); n > 0 || (ops.empty() && !rules.boundaries); --n) {
      ops += rules.ranks > 1 ? 'R' : kinds[random.below(kinds.size())];
      if (n == 0) break;
    }
    // Where newcomers join, the program calls refresh before its first operation.
    const bool newcomers = static_cast<int>(rules.founders) < replicas;
    if (step == 0 && rules.boundaries && newcomers) ops.clear();
    rules.program.push_back(ops);
    if (step > 0 && random.below(8) == 0) rules.resumes.insert(step);
    if (random.below(8) == 0) rules.verifies.insert(step);
  }
  const std::pair<Fault, int> most[] = {
      {Fault::crash, 2}, {Fault::stop, 1},     {Fault::reset, 3},     {Fault::cut, 1},
      {Fault::link, 3},  {Fault::heal, 1},     {Fault::flap, 2},      {Fault::hang, 1},
      {Fault::wish, 2},  {Fault::bye, 1},      {Fault::mismatch, 1},  {Fault::mcrash, 2},
      {Fault::mstop, 1}, {Fault::cut_half, 1}, {Fault::link_half, 1}, {Fault::repeat, 3}};
  for (const auto& [name, number] : most) {
    const int some = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(number)));
    rules.budget[static_cast<std::size_t>(name)] = pick(random, {0, 0, some, number});
  }
  const std::pair<Fault, int> rare[] = {
      {Fault::cut_register, 2}, {Fault::partition, 1}, {Fault::foreign, 1}};
  for (const auto& [name, number] : rare) {
    if (random.below(5) == 0) rules.budget[static_cast<std::size_t>(name)] = number;
  }
  rules.unaware = random.below(2) == 0;
  const std::pair<Fault, int> several[] = {{Fault::lease, 4},
                                           {Fault::stray, 2},
                                           {Fault::move_on, 4},
                                           {Fault::mstop, 2},
                                           {Fault::mcrash, 3}};
  for (const auto& [name, number] : several) {
    if (rules.masters > 1 && random.below(2) == 0)
      rules.budget[static_cast<std::size_t>(name)] = number;
  }
  // A register that is lost, where one master is all there are, and time is not short.
  if (rules.masters == 1 && random.below(4) == 0) {
    rules.eager = false;
    rules.budget[static_cast<std::size_t>(Fault::lose)] = 1;
    rules.budget[static_cast<std::size_t>(Fault::foreign)] = 0;
    rules.budget[static_cast<std::size_t>(Fault::mcrash)] = 2;
  }
  return rules;
}

/// What one walk likes: its own faults, a time for them, and its own speeds. Links, peers and the
/// master are slow for a while, then others.
class Taste {
 public:
  explicit Taste(Random& random) : random_(random) {
    first_ = pick<std::uint64_t>(random, {0, 0, random.below(150)});
    end_ = first_ + pick<std::uint64_t>(random, {40, 80, 160, 300});
    faults_ = pick(random, {0.01, 0.03, 0.1, 0.3});
    maybes_ = pick(random, {0.1, 0.5, 1.0});
    timers_ = pick(random, {0.01, 0.1, 1.0});
    slow_ = pick(random, {0.0, 0.1, 0.3, 0.6});
    changes_ = pick<std::uint64_t>(random, {20, 50, 200});
    arrivals_ = pick(random, {1.0, 0.1, 0.02, 0.005});
    issues_ = pick(random, {1.0, 1.0, 1.0, 0.05});
  }

  [[nodiscard]] std::uint64_t end() const { return end_; }

  /// The index of a move; nothing if only faults are left, and their time is over.
  std::optional<std::size_t> choose(const std::vector<Move>& moves, std::uint64_t step) {
    if (slow_ > 0 && random_.below(changes_) == 0) weights_.clear();
    sums_.clear();
    double sum = 0;
    for (const Move& move : moves) sums_.push_back(sum += weight(move, step));
    if (sum <= 0) return std::nullopt;
    const auto at = std::upper_bound(sums_.begin(), sums_.end(), random_.unit() * sum);
    return std::min<std::size_t>(static_cast<std::size_t>(at - sums_.begin()), sums_.size() - 1);
  }

 private:
  double weight(const Move& move, std::uint64_t step) {
    const bool time = first_ <= step && step < end_;
    if ((move.sort == Sort::fault || move.sort == Sort::maybe) && !time) return 0;
    if (move.what == What::issue && issues_ < 1) return issues_;  // it computes for long
    // Fair moves are as fast as the message's way or the peer is; each fault has its own liking.
    const bool message = move.what == What::peer_to_master || move.what == What::master_to_peer;
    const int kind = move.sort == Sort::fair && !message ? 99 : static_cast<int>(move.what);
    const auto key = std::tuple(static_cast<int>(move.sort), kind, move.a, move.m);
    const auto known = weights_.find(key);
    if (known != weights_.end()) return known->second;
    double weight = 1;
    if (move.sort == Sort::fault) weight = faults_ * pick(random_, {1.0, 0.3, 3.0});
    if (move.sort == Sort::maybe) weight = maybes_;
    if (move.what == What::gives_up_write) weight *= 0.2;  // or no master comes far
    if (move.sort == Sort::timer) weight = timers_;
    if (move.what == What::arrive) return arrivals_;
    if (move.sort == Sort::fair && random_.unit() < slow_) {
      weight = pick(random_, {0.1, 0.01, 0.001});
    }
    return weights_[key] = weight;
  }

  Random& random_;
  std::uint64_t first_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t changes_ = 1;  // steps until other links are slow, on average
  double faults_ = 0, maybes_ = 0, timers_ = 0, slow_ = 0, arrivals_ = 0, issues_ = 1;
  std::map<std::tuple<int, int, int, int>, double> weights_;
  std::vector<double> sums_;
};

/// How the world stands when nothing happens any more.
std::string describe(const World& world) {
  std::string text = "register: epoch " +
                     (world.held.epoch ? to_string(world.held.epoch->id) : std::string("none")) +
                     (world.held.over ? ", over" : "");
  for (const MasterWorld& one : world.masters) {
    if (!one.core) continue;
    const auto& m = *one.core;
    text += std::string("\nmaster:") + (m.running ? " running" : "") + (m.holds ? "" : " standby") +
            (m.held ? " incarnation " + std::to_string(m.held->incarnation) : "") +
            (m.patient ? " patient" : "") + (m.holding ? " holding" : "") +
            (m.proposal ? " proposal " + to_string(m.proposal->id) : "") + " ready " +
            std::to_string(m.ready.size()) + " unknown " + std::to_string(m.unknown.size());
    for (const auto& [p, seat] : m.seats) {
      if (seat.awaited) text += "\n  awaits " + std::to_string(World::index(p));
      if (seat.expelled) text += "\n  has expelled " + std::to_string(World::index(p));
    }
    for (const auto& [p, peer] : m.peers) {
      text += "\n  " + std::to_string(World::index(p)) + " step " +
              std::to_string(peer.report.step) +
              (peer.report.vote != VoteKind::none ? " votes" : "") + " passed " +
              std::to_string(peer.report.passed) + (peer.report.leaving ? " leaving" : "") +
              (peer.at_door ? " at the door" : "");
    }
  }
  for (const PeerWorld& peer : world.peers) {
    text += "\n" + std::to_string(&peer - world.peers.data()) + ": life " +
            std::to_string(static_cast<int>(peer.life)) + (peer.over ? " over" : "") +
            (peer.connected ? " connected to " + std::to_string(peer.master) : "") +
            (peer.hung ? " hung" : "") + " step " + std::to_string(peer.step) +
            (peer.core.stopped ? " stopped" : "") +
            (peer.core.vote != VoteKind::none ? " votes" : "") +
            (peer.core.accepted ? " accepted " + to_string(peer.core.accepted->id) : "") +
            (peer.core.preparing ? " prepares " + to_string(peer.core.preparing->epoch.id) : "");
  }
  return text;
}

}  // namespace

WalkResult walk(std::uint64_t seed, const PlantedBugs& planted, bool trace, bool liar) {
  Random random(seed * 0x2545F4914F6CDD1DULL + 1);
  Rules rules = shape(random, planted);
  // Two walks of five: the others stay those that seeds.txt and kRare name.
  rules.slow_adoption = seed % 5 == 0 || seed % 5 == 3;
  rules.finishes = seed % 7 == 1 || seed % 7 == 4;
  const int local[] = {0, 0, rules.peers, rules.peers / 2};
  rules.local = local[seed % 4];
  const bool outages_only = seed % 11 == 9;
  if (outages_only) {
    rules.budget.fill(0);
    rules.eager = false;
  }
  const bool outages = outages_only || seed % 11 == 6;
  rules.budget[static_cast<std::size_t>(Fault::outage)] = outages ? 2 : 0;
  if (liar) rules.liar = static_cast<int>(seed % static_cast<std::uint64_t>(rules.peers));
  rules.only_lies = liar && seed % 3 == 0;
  if (rules.only_lies) {
    rules.budget.fill(0);
    rules.eager = false;
  }
  World world(std::move(rules), random);
  Taste taste(random);
  world.tracing = trace;
  if (trace) {
    std::printf(
        "%d masters, %d peers of %d ranks, founders %u, hold below %u, %s, window %d%s, program",
        world.rules.masters, world.rules.peers, world.rules.ranks, world.rules.founders,
        world.rules.hold_below, world.rules.boundaries ? "boundaries" : "no boundaries",
        static_cast<int>(world.rules.window), world.rules.eager ? ", eager" : "");
    for (const std::string& ops : world.rules.program) std::printf(" '%s'", ops.c_str());
    std::printf("\n");
  }
  WalkResult result;
  bool healed = false;
  int reminders = 0;
  const auto settle = [&] {
    healed = true;
    world.settle();
    if (trace) std::printf("---- the faults are over\n");
  };
  for (; result.steps < kStepsMax; ++result.steps) {
    if (!healed && result.steps >= taste.end()) settle();
    const std::vector<Move> moves = world.moves();
    std::optional<std::size_t> chosen = taste.choose(moves, healed ? taste.end() : result.steps);
    if (!chosen && !healed) {
      settle();
      continue;
    }
    if (!chosen && reminders++ < kRemindersMax) {
      world.remind();
      continue;
    }
    if (!chosen) {
      if (trace) std::printf("%s\n", describe(world).c_str());
      result.violation = liveness(world);
      return result;
    }
    const Move move = moves[*chosen];
    if (trace) std::printf("%4d %s\n", static_cast<int>(result.steps), world.label(move).c_str());
    world.apply(move);
    for (const std::string& line : world.log) std::printf("%s\n", line.c_str());
    world.log.clear();
    result.violation = world.crashed;
    if (!result.violation.empty()) return result;
    if (liar) result.violation = overfull(world);
    if (!result.violation.empty()) return result;
    if (liar && world.was_lost) continue;
    if (world.changed || !world.broken.empty()) {
      world.changed = false;
      result.violation = safety(world);
      if (!result.violation.empty()) return result;
    }
    for (const MasterWorld& one : world.masters) {
      if (!one.core || one.core->counter <= kEpochsMax || liar) continue;
      result.violation = "livelock: proposals without end";
      return result;
    }
  }
  result.violation = "livelock: the walk does not end";
  return result;
}

}  // namespace pccl::sim
