// Elastic runs in one process: a master on a thread, peers that are engines, and `refresh` as
// Python does it.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "engines.h"
#include "master_thread.h"

namespace pccl::testing {

inline RunOptions master_of(std::uint32_t min_peers) {
  RunOptions options;
  options.min_peers = min_peers;
  options.silence_ms = 30000;  // no test is about silence, and a busy machine is slow
  options.heartbeat_ms = 200;
  return options;
}

/// A peer: an engine that has joined, or is about to.
struct Peer {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Ticket> joined;
};

inline Peer start_peer(const std::string& address, EngineOptions options = {}) {
  options.links.listen_hosts = {"127.0.0.1"};
  options.goodbye_timeout_ms = 2000;
  auto engine = Engine::create(options);
  EXPECT_TRUE(engine.ok()) << engine.error().text;
  Peer peer{std::move(engine).value(), nullptr};
  JoinOptions join;
  join.masters = {address};
  peer.joined = peer.engine->run().join(join);
  return peer;
}

/// A master and the `size` peers that have founded its run.
struct Founded {
  explicit Founded(std::uint32_t size, const EngineOptions& options = {})
      : master(master_of(size)) {
    for (std::uint32_t i = 0; i < size; ++i) peers.push_back(start_peer(master.address, options));
    for (const Peer& p : peers) expect_success(p.joined);
    group = kElasticGroup;
  }
  MasterThread master;
  std::vector<Peer> peers;
  GroupId group;
};

/// refresh with a state of one float vector, as Python does it but without names.
inline Result<BoundaryEvent> refresh(
    Engine& engine, std::vector<float>& state, std::uint64_t revision,
    std::uint64_t timeout_ms = kTestMs,
    const std::function<bool(const BoundaryEvent&)>& goes_on = nullptr) {
  Run& run = engine.run();
  const auto root_of = [&] {
    StateRoot root{true, revision, {}};
    for (std::size_t i = 0; i < state.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &state[i], 4);
      for (std::size_t b = 0; b < 4; ++b)
        root.digest[(i * 4 + b) % 32] ^= static_cast<std::uint8_t>(bits >> (8 * b));
    }
    return root;
  };
  const auto snapshot = [&](const StateRoot& root) {
    Snapshot s;
    s.digest = root.digest;
    s.items = {buffer(state)};
    return s;
  };
  Error error = run.boundary_begin({VoteKind::refresh, false, timeout_ms});
  if (error.failed()) return error;
  for (;;) {
    auto next = run.boundary_next(kTestMs);
    if (!next) return {ErrorCode::timed_out, "no event at the boundary"};
    if (!next->ok()) return next->error();
    const BoundaryEvent& event = next->value();
    if (goes_on && !goes_on(event)) return {ErrorCode::closed, "as the test wants it"};
    if (event.what == BoundaryEvent::What::finished) return event;
    if (event.what == BoundaryEvent::What::hash) {
      const StateRoot root = root_of();
      run.boundary_root(root, snapshot(root));
    } else {
      std::vector<float> staged(state.size());
      const auto pulled =
          run.pull(event.plan.sources.at(0), event.plan.root.digest, 0, buffer(staged));
      if (!pulled->wait(kTestMs) || pulled->error().failed())
        continue;  // the next proposal says more
      const auto answer = run.boundary_adopt(event.plan.root);
      if (!answer->wait(kTestMs) || !answer->seen<AdoptionResult>().adopted) continue;
      revision = event.plan.root.revision;
      std::copy(staged.begin(), staged.end(), state.begin());
      const StateRoot root = root_of();
      run.boundary_fetched(root, snapshot(root));
    }
  }
}

}  // namespace pccl::testing
