// A broken invariant: every call of the process that waits ends with an error, and the other
// processes see its connections end at once.
#include <future>

#include "elastic_run.h"
#include "trust/secrets.h"

namespace pccl::testing {
namespace {

constexpr const char* kWhat = "planted by a test";

void expect_broken(const Error& error) {
  EXPECT_EQ(error.code, ErrorCode::broken) << error.text;
  EXPECT_NE(error.text.find(kWhat), std::string::npos) << error.text;
}

TEST(Broken, every_wait_of_a_fixed_group_ends_and_its_other_members_see_the_link_end) {
  FixedWorld world(2);
  Engine& broken = *world.engines[0];
  Engine& other = *world.engines[1];
  std::vector<float> x(100000, 1.0F);
  std::vector<float> y(1000000, 2.0F);
  std::vector<float> z(10, 3.0F);
  std::vector<float> theirs(10, 0.0F);
  std::vector<std::shared_ptr<Ticket>> pending{
      broken.post(world.group, all_reduce(x)), broken.post(world.group, barrier()),
      broken.post(world.group, message(OpKind::send, 1, y, 1)),
      broken.post(world.group, message(OpKind::recv, 1, z, 2)),
      broken.post(world.group, message(OpKind::recv, -1, z, 3))};
  const auto waits_there = other.post(world.group, message(OpKind::recv, 0, theirs, 4));
  std::vector<Handle> handles = handles_of(world.engines);
  handles[1].key = KeyPair::make().public_key();  // of nobody: its link never comes up
  handles[1].peer = peer_of(handles[1].key);
  handles[1].addresses = {"127.0.0.1:1"};
  pending.push_back(broken.configure_fixed(GroupId{78}, "never", handles, 0, 100 * kTestMs));
  std::atomic<bool> called = false;
  pending.back()->on_done([&] { called = true; });
  auto waiter =
      std::async(std::launch::async, [&] { return broken.wait(*pending[0], std::nullopt); });
  broken.break_invariant(kWhat);
  for (const auto& ticket : pending) expect_broken(outcome(ticket));
  EXPECT_TRUE(called);
  EXPECT_TRUE(waiter.get());
  // Evidence, not silence: these engines hear of silence after 10 s at the earliest.
  const Error seen = outcome(waits_there);
  EXPECT_EQ(seen.code, ErrorCode::peer_lost) << seen.text;
  EXPECT_EQ(seen.text.find("no sign of life"), std::string::npos) << seen.text;
  expect_broken(broken.view(world.group).failure);
}

TEST(Broken, every_call_after_it_fails_at_once_and_shutdown_returns) {
  FixedWorld world(2);
  Engine& broken = *world.engines[0];
  broken.break_invariant(kWhat);
  std::vector<float> x(1000000, 1.0F);
  std::vector<float> small(1, 1.0F);
  EXPECT_TRUE(wait_until([&] { return broken.view(world.group).failure.failed(); }));
  expect_broken(outcome(broken.post(world.group, all_reduce(x))));
  expect_broken(outcome(broken.post(world.group, all_reduce(small))));
  expect_broken(outcome(broken.post(world.group, message(OpKind::recv, -1, small))));
  expect_broken(outcome(broken.run().store({})));
  expect_broken(outcome(broken.run().join({{"127.0.0.1:1"}, "", {}, false, kTestMs})));
  expect_broken(
      outcome(broken.configure_fixed(GroupId{79}, "late", handles_of(world.engines), 0, kTestMs)));
  expect_broken(broken.run().boundary_begin({}));
  expect_broken(broken.in_flight(world.group).error());
  broken.close(world.group);
  broken.abort(world.group, "");
  broken.shutdown();
}

TEST(Broken, what_was_posted_and_has_not_run_yet_fails) {
  FixedWorld world(2);
  Engine& broken = *world.engines[0];
  std::vector<float> x(1000000, 1.0F);  // large: queued for the engine's thread
  std::vector<std::shared_ptr<Ticket>> pending;
  std::thread breaks([&] { broken.break_invariant(kWhat); });
  for (int i = 0; i < 200; ++i) pending.push_back(broken.post(world.group, all_reduce(x)));
  breaks.join();
  for (const auto& ticket : pending) expect_broken(outcome(ticket));
}

TEST(Broken, every_wait_of_an_elastic_group_ends_and_the_others_go_on) {
  Founded run(3);
  auto& [master, peers, group] = run;
  Engine& broken = *peers[0].engine;
  std::vector<std::vector<float>> values(3, std::vector<float>(500000, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t i = 0; i < 3; ++i)
    tickets.push_back(peers[i].engine->post(group, all_reduce(values[i])));
  for (const auto& t : tickets) expect_success(t);
  std::vector<float> z(10, 3.0F);
  StoreRequest never;
  never.op = StoreOp::wait;
  never.keys = {"never"};
  never.timeout_ms = 100 * kTestMs;
  const std::vector<std::shared_ptr<Ticket>> pending{
      broken.post(group, all_reduce(values[0])),
      broken.post(group, message(OpKind::recv, -1, z, 3)), broken.run().store(never)};
  std::vector<float> state(1000, 1.0F);
  auto boundary = std::async(std::launch::async, [&] { return refresh(broken, state, 1); });
  const EpochId before = peers[1].engine->view(group).epoch;
  broken.break_invariant(kWhat);
  for (const auto& ticket : pending) expect_broken(outcome(ticket));
  expect_broken(boundary.get().error());
  expect_broken(broken.view(group).failure);
  // The master knows it by the end of connections: silence counts after 30 s there.
  const auto began = std::chrono::steady_clock::now();
  tickets.clear();
  for (std::size_t i = 1; i < 3; ++i)
    tickets.push_back(peers[i].engine->post(group, all_reduce(values[i])));
  for (const auto& t : tickets) {
    expect_success(t);
    EXPECT_EQ(t->seen<CollectiveResult>().contributors.size(), 2U);
  }
  EXPECT_GT(peers[1].engine->view(group).epoch, before);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(25));
}

TEST(Broken, a_join_that_waits_for_the_founding_ends) {
  MasterThread master(master_of(2));
  Peer peer = start_peer(master.address);
  peer.engine->break_invariant(kWhat);
  expect_broken(outcome(peer.joined));
}

TEST(Broken, a_goodbye_under_way_ends) {
  for (int i = 0; i < 5; ++i) {  // the bug comes before the goodbye, or after it
    FixedWorld world(2);
    Engine& ends = *world.engines[0];
    std::vector<float> small(1, 1.0F);
    const auto waits_there = world.engines[1]->post(world.group, all_reduce(small));
    auto closing = std::async(std::launch::async, [&] { ends.shutdown(); });
    ends.break_invariant(kWhat);
    ASSERT_EQ(closing.wait_for(std::chrono::milliseconds(kTestMs)), std::future_status::ready);
    const ErrorCode end = ends.counters().error().code;
    EXPECT_TRUE(end == ErrorCode::broken || end == ErrorCode::closed) << static_cast<int>(end);
    EXPECT_EQ(outcome(waits_there).code, ErrorCode::peer_lost) << "the other one hears of it";
  }
}

}  // namespace
}  // namespace pccl::testing
