// Members that send under a low rate (EngineOptions::max_rate): no time-out for members that do
// not move takes them for dead.
#include "elastic_run.h"

namespace pccl::testing {
namespace {

/// A megabyte takes 3 s.
EngineOptions slow() {
  EngineOptions options;
  options.links.max_rate = 300'000;
  options.stall_timeout_ms = 2000;
  options.silence_timeout_ms = 8000;
  return options;
}

TEST(Capped, an_operation_of_a_run_takes_longer_than_a_stall_and_nobody_is_blamed) {
  MasterThread master(master_of(3));
  std::vector<Peer> peers;
  for (int i = 0; i < 3; ++i) peers.push_back(start_peer(master.address, slow()));
  for (const Peer& peer : peers) expect_success(peer.joined);
  std::vector<std::vector<float>> values(3, std::vector<float>(250'000, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < 3; ++i) {
    tickets.push_back(peers[i].engine->post(kElasticGroup, all_reduce(values[i])));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(3500));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(values[i], std::vector<float>(250'000, 3.0F));
    EXPECT_EQ(peers[i].engine->counters().value().ops_replayed, 0U);
    EXPECT_EQ(peers[i].engine->counters().value().epochs, 1U);
    EXPECT_GT(peers[i].engine->counters().value().rate_held_ms, 2000U);
  }
}

TEST(Capped, small_sends_and_small_operations_of_many_seconds_are_no_silence) {
  FixedWorld world(2, GroupId{77}, slow());
  constexpr std::size_t kSends = 80;  // of 40 kB
  std::vector<std::vector<float>> sent(kSends, std::vector<float>(10'000, 5.0F));
  std::vector<std::vector<float>> received(kSends, std::vector<float>(10'000));
  std::vector<std::vector<float>> reduced(2 * kSends, std::vector<float>(5'000, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  const auto post = [&](std::size_t rank, OpRequest request) {
    tickets.push_back(world.engines[rank]->post(world.group, std::move(request)));
  };
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kSends; ++i) {
    post(0, message(OpKind::send, 1, sent[i]));
    post(1, message(OpKind::recv, 0, received[i]));
    for (std::size_t rank = 0; rank < 2; ++rank) post(rank, all_reduce(reduced[2 * i + rank]));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(8500));
  for (const auto& values : received) EXPECT_EQ(values, sent[0]);
  for (const auto& values : reduced) EXPECT_EQ(values, std::vector<float>(5'000, 2.0F));
}

}  // namespace
}  // namespace pccl::testing
