// Engines in one process, each with its own thread and sockets, under one master:
//   pccl_many PEERS...
// For each number: all join at once, reduce, a quarter is lost at once, a storm of newcomers comes,
// a quarter leaves. Every sum is checked. Prints what each took; the exit status is 1 if anything
// was wrong or not done in time.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../cpp/engine/master_thread.h"
#include "base/log.h"
#include "engine/engine.h"

namespace pccl {
namespace {

constexpr std::uint64_t kPatienceMs = 120000;
constexpr int kRounds = 50;
constexpr int kTogether = 8;

class Failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
void check(bool good, const std::string& what) {
  if (!good) throw Failed(what);
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

RunOptions master_of(std::uint32_t min_peers) {
  RunOptions options;
  options.min_peers = min_peers;
  options.silence_ms = 60000;  // all of them share the cores of this machine
  return options;
}

struct Peer {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Ticket> joined;
  std::vector<float> values = std::vector<float>(kTogether * 16, 1.0F);
};
using Peers = std::vector<std::unique_ptr<Peer>>;

std::unique_ptr<Peer> start_peer(const std::string& address) {
  EngineOptions options;
  options.links.listen_hosts = {"127.0.0.1"};
  options.connect_timeout_ms = 60000;
  auto engine = Engine::create(options);
  check(engine.ok(), "an engine did not start");
  auto peer = std::make_unique<Peer>();
  peer->engine = std::move(engine).value();
  JoinOptions join;
  join.masters = {address};
  join.timeout_ms = kPatienceMs;
  peer->joined = peer->engine->run().join(join);
  return peer;
}

void wait_for(const std::shared_ptr<Ticket>& ticket, const std::string& what) {
  check(ticket->wait(kPatienceMs), what + ": no outcome");
  check(!ticket->error().failed(), what + ": " + ticket->error().text);
}

BoundaryEvent refresh_one(Peer& peer) {
  Run& run = peer.engine->run();
  const Error error = run.boundary_begin({VoteKind::refresh, false, 0});
  check(!error.failed(), "boundary: " + error.text);
  for (;;) {
    const auto next = run.boundary_next(kPatienceMs);
    check(next.has_value(), "boundary: no event");
    check(next->ok(), "boundary: " + next->error().text);
    if (next->value().what == BoundaryEvent::What::finished) return next->value();
    run.boundary_root(StateRoot{}, Snapshot{});
  }
}

/// Each on a thread of its own, as programs do, until there are `size` members (0: once). Returns
/// how many have left, and the longest boundary of the first in seconds.
std::pair<std::size_t, double> refresh(const std::vector<Peer*>& peers, std::size_t size = 0) {
  std::vector<std::future<std::pair<bool, double>>> ends;
  for (Peer* peer : peers) {
    ends.push_back(std::async(std::launch::async, [peer, size] {
      double longest = 0;
      for (;;) {
        const auto began = Clock::now();
        const bool left = refresh_one(*peer).left;
        longest = std::max(longest, seconds_since(began));
        const GroupView view = peer->engine->view(kElasticGroup);
        if (left || static_cast<std::size_t>(view.size) >= size) return std::pair(left, longest);
      }
    }));
  }
  std::size_t left = 0;
  double longest = 0;
  for (auto& end : ends) {
    const auto [gone, took] = end.get();
    left += gone ? 1 : 0;
    if (longest == 0) longest = took;
  }
  return {left, longest};
}

/// `kRounds` times `together` small sums in flight; seconds for one round.
double reduce(const std::vector<Peer*>& peers, GroupId group, int together) {
  const auto began = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (Peer* peer : peers) {
      std::fill(peer->values.begin(), peer->values.end(), 1.0F);
      for (int i = 0; i < together; ++i) {
        OpRequest request;
        request.descriptor = {OpKind::all_reduce, ReduceOp::sum, DType::f32, -1, 16};
        const Buffer buffer{reinterpret_cast<std::byte*>(&peer->values[16U * i]), 64};
        request.inputs = request.outputs = {buffer};
        tickets.push_back(peer->engine->post(group, std::move(request)));
      }
    }
    for (const auto& ticket : tickets) wait_for(ticket, "a sum");
    for (const Peer* peer : peers) {
      check(peer->values[0] == static_cast<float>(peers.size()), "a sum is wrong");
    }
  }
  return seconds_since(began) / kRounds;
}

std::vector<Peer*> all(const Peers& peers) {
  std::vector<Peer*> list;
  for (const auto& peer : peers) list.push_back(peer.get());
  return list;
}

void walk(std::size_t count) {
  testing::MasterThread master(master_of(static_cast<std::uint32_t>(count)));
  Peers peers;
  auto began = Clock::now();
  for (std::size_t i = 0; i < count; ++i) peers.push_back(start_peer(master.address));
  for (const auto& peer : peers) wait_for(peer->joined, "joining");
  const GroupId group = kElasticGroup;
  refresh(all(peers));
  const double founded = seconds_since(began);
  const double alone = reduce(all(peers), group, 1);
  const double eight = reduce(all(peers), group, kTogether);

  // A quarter is lost at once, in the middle of an operation.
  const std::size_t lost = count / 4;
  double loss = 0;
  if (lost > 0) {
    std::vector<std::shared_ptr<Ticket>> tickets;
    std::fill(peers.back()->values.begin(), peers.back()->values.end(), 1.0F);
    for (std::size_t i = 0; i + lost < count; ++i) {
      std::fill(peers[i]->values.begin(), peers[i]->values.end(), 1.0F);
      OpRequest request;
      request.descriptor = {OpKind::all_reduce, ReduceOp::sum, DType::f32, -1, 16};
      const Buffer buffer{reinterpret_cast<std::byte*>(peers[i]->values.data()), 64};
      request.inputs = request.outputs = {buffer};
      tickets.push_back(peers[i]->engine->post(group, std::move(request)));
    }
    began = Clock::now();
    for (std::size_t i = count - lost; i < count; ++i) peers[i]->engine->vanish();
    for (const auto& ticket : tickets) wait_for(ticket, "a sum that is replayed");
    loss = seconds_since(began);
    check(peers[0]->values[0] == static_cast<float>(count - lost), "a replayed sum is wrong");
    peers.resize(count - lost);
    refresh(all(peers));
  }

  // As many newcomers, at once; the members pass boundaries until all are in.
  double admission = 0;
  if (lost > 0) {
    for (std::size_t i = 0; i < lost; ++i) peers.push_back(start_peer(master.address));
    for (std::size_t i = count - lost; i < count; ++i) wait_for(peers[i]->joined, "joining later");
    admission = refresh(all(peers), count).second;
    reduce(all(peers), group, 1);
  }

  // A quarter leaves, and nobody replays anything.
  std::uint64_t before = 0;
  for (std::size_t i = lost; i < count; ++i)
    before += peers[i]->engine->counters().value().ops_replayed;
  refresh(all(peers));  // the wish counts for a step of which nothing is committed yet
  for (std::size_t i = 0; i < lost; ++i) peers[i]->engine->run().leave(/*at_once=*/false);
  reduce(all(peers), group, 1);
  const std::size_t gone = refresh(all(peers)).first;
  check(gone == lost, std::to_string(gone) + " have left, not " + std::to_string(lost));
  peers.erase(peers.begin(), peers.begin() + static_cast<std::ptrdiff_t>(lost));
  reduce(all(peers), group, 1);
  std::uint64_t after = 0;
  for (const auto& peer : peers) after += peer->engine->counters().value().ops_replayed;
  check(after == before, "those who left have cost a replay");
  std::printf("| %zu | %.2f | %.2f | %.3f | %.0f | %.0f |\n", count, founded, alone * 1e3,
              eight * 1e3 / kTogether, loss * 1e3, admission * 1e3);
  std::fflush(stdout);
}

}  // namespace
}  // namespace pccl

int main(int argc, char** argv) {
  pccl::set_log_level(pccl::LogLevel::off);
  std::printf(
      "| peers | all join, s | a sum with its commit, ms | of eight in flight, each, ms | loss of "
      "a "
      "quarter to the replayed sum, ms | boundary that admits a quarter, ms |\n"
      "| --- | --- | --- | --- | --- | --- |\n");
  try {
    for (int i = 1; i < argc; ++i) pccl::walk(static_cast<std::size_t>(std::atoi(argv[i])));
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}
