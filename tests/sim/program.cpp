// The program that every peer of a simulated world runs: steps of operations, a boundary after
// each, and an end in good order. Also what its data does: an operation completes when its mates'
// parts are there.
#include "world.h"

namespace pccl::sim {

std::string World::letters(std::uint64_t step) const {
  if (step < rules.program.size()) return rules.program[step];
  return rules.boundaries ? "" : rules.program.back();
}

void World::issue(int p) {
  PeerWorld& world = peer(p);
  const OpKey key = peer::next_key(world.core);
  OpWorld op;
  op.kind = letters(key.step)[key.index];
  peer::Issued event;
  if (op.kind == 'B') {
    event.loss = peer::LossClass::needs_root;
    event.root = op.root = world.numbering.front();
  }
  if (op.kind == 'X') event.loss = peer::LossClass::needs_all;
  world.ops[key] = op;
  world.numbering_at[key] = world.numbering;
  changed = true;
  to_peer(p, event);
}

void World::at_boundary(int p) {
  PeerWorld& world = peer(p);
  peer::AtBoundary event;
  const std::uint64_t step = world.core.step;
  if (world.core.started) {
    if (!rules.boundaries || rules.resumes.contains(step)) event.kind = VoteKind::resume;
    event.verify = rules.verifies.contains(step);
    const bool at_end = rules.boundaries && step >= rules.program.size();
    if (at_end && rules.finishes) {
      event.kind = VoteKind::refresh;
      event.finish = true;
    } else if (at_end && !world.leaving) {
      world.leaving = true;
      to_peer(p, peer::WantsToLeave{random_.below(2) == 0});
    }
  }
  event.has_root = event.kind == VoteKind::refresh && random_.below(2) == 0;
  if (event.has_root) event.root = root_of(world.content);
  if (event.finish) {
    event.has_root = true;
    event.root = StateRoot{false, step, {}};
  }
  world.in_boundary = true;
  changed = true;
  to_peer(p, event);
}

bool World::data_is_there(int p, OpKey key, bool& sure, bool& clean) const {
  const PeerWorld& world = peer(p);
  const OpWorld& op = world.ops.at(key);
  sure = clean = true;
  for (const Member& m : world.mates) {
    const int q = index(m.peer());
    if (op.kind == 'B' && m.peer() != op.root) continue;
    if (lost_.contains({q, p, world.configured, key})) return false;
    if (!linked(world.configured, q, p)) return false;
    const bool dirty = data_.contains({q, world.configured, key, false});
    if (!dirty && !data_.contains({q, world.configured, key, true})) return false;
    clean = clean && !dirty;
    sure = sure && up(q);
  }
  return true;
}

/// The ranks of a replica end together: goodbyes take the whole replica out.
bool World::siblings_have_ended(int p) const {
  for (int q = 0; q < rules.peers; ++q) {
    const PeerWorld& other = peer(q);
    if (q == p || replica(q) != replica(p) || other.over || other.life == Life::dead) continue;
    const bool ended = other.core.started && other.ops.empty() &&
                       other.core.next == letters(other.core.step).size() &&
                       other.waited == other.core.next && !other.failed_step;
    if (!ended) return false;
  }
  return true;
}

void World::program_moves(int p, std::vector<Move>& out) const {
  const PeerWorld& world = peer(p);
  const auto& core = world.core;
  if (world.hung || world.in_boundary) return;
  if (!core.started) {
    if (rules.boundaries && world.welcomed) out.push_back({What::door, Sort::fair, p, -1, {}});
    return;
  }
  const std::string ops = letters(core.step);
  const OpKey first{core.step, world.waited};
  if (core.next < ops.size() && core.next - world.waited < rules.window) {
    out.push_back(
        {What::issue, world.failed_step ? Sort::maybe : Sort::fair, p, -1, peer::next_key(core)});
  } else if (world.waited < core.next && !world.ops.contains(first)) {
    out.push_back({What::returned, Sort::fair, p, -1, first});
  }
  if (!world.ops.empty()) return;
  const bool ended = core.next == ops.size() && world.waited == core.next;
  if (rules.boundaries || world.failed_step) {
    if (ended || world.failed_step) out.push_back({What::boundary, Sort::fair, p, -1, {}});
  } else if (ended && siblings_have_ended(p)) {
    out.push_back({What::end_bye, Sort::fair, p, -1, {}});
  }
}

}  // namespace pccl::sim
