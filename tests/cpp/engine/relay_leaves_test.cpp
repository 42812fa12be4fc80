// Two members that reach each other over a third only, and the third one leaves.
#include <future>

#include "elastic_run.h"

namespace pccl::testing {
namespace {

/// Nobody listens where it says that it is: it can dial, and not be dialled.
Peer start_hidden(const std::string& address) {
  EngineOptions options;
  options.advertise = {"127.0.0.9"};
  options.connect_timeout_ms = 2000;
  return start_peer(address, options);
}

/// A barrier and a boundary of all of them.
std::vector<BoundaryEvent> step(const std::vector<Peer>& peers) {
  std::vector<std::future<Result<BoundaryEvent>>> all;
  for (const Peer& peer : peers) {
    all.push_back(std::async(std::launch::async, [&peer]() -> Result<BoundaryEvent> {
      Engine& engine = *peer.engine;
      const GroupId group = kElasticGroup;
      if (engine.view(group).admitted) expect_success(engine.post(group, barrier()));
      std::vector<float> state(10, 1.0F);
      return refresh(engine, state, 1);
    }));
  }
  std::vector<BoundaryEvent> events;
  for (auto& each : all) {
    auto event = each.get();
    EXPECT_TRUE(event.ok()) << event.error().text;
    if (event.ok()) events.push_back(event.value());
  }
  return events;
}

void send_over(const Peer& from, const Peer& to) {
  const GroupId group = kElasticGroup;
  std::vector<float> sent(100000, 1.0F);
  std::vector<float> received(sent.size());
  const auto one =
      from.engine->post(group, message(OpKind::send, to.engine->view(group).rank, sent));
  const auto two =
      to.engine->post(group, message(OpKind::recv, from.engine->view(group).rank, received));
  expect_success(one);
  expect_success(two);
  EXPECT_EQ(received, sent);
}

TEST(RelayLeaves, the_pair_has_its_next_way_before_the_epoch_begins) {
  MasterThread master(master_of(4));
  std::vector<Peer> peers;
  for (int i = 0; i < 2; ++i) peers.push_back(start_hidden(master.address));
  for (int i = 0; i < 2; ++i) peers.push_back(start_peer(master.address));
  for (const Peer& p : peers) expect_success(p.joined);
  ASSERT_EQ(step(peers).size(), 4U);
  send_over(peers[0], peers[1]);
  const bool first = peers[2].engine->counters().value().bytes_relayed > 0;
  if (!first) std::swap(peers[2], peers[3]);
  ASSERT_GT(peers[2].engine->counters().value().bytes_relayed, 0U);
  EXPECT_EQ(peers[3].engine->counters().value().bytes_relayed, 0U);

  const std::uint64_t epochs = peers[0].engine->counters().value().epochs;
  peers[2].engine->run().leave(/*at_once=*/false);
  bool left = false;
  for (int i = 0; i < 20 && !left; ++i) {
    const auto events = step(peers);
    ASSERT_EQ(events.size(), 4U);
    left = events[2].left;
  }
  ASSERT_TRUE(left);
  peers.erase(peers.begin() + 2);
  send_over(peers[0], peers[1]);
  EXPECT_GT(peers[2].engine->counters().value().bytes_relayed, 0U);
  ASSERT_EQ(step(peers).size(), 3U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(peers[i].engine->counters().value().epochs, epochs + 1)
        << "one that a lost link ended";
  }
}

}  // namespace
}  // namespace pccl::testing
