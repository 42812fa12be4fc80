// Newcomers that die on their way in, as real engines: the members go on with each other, and
// another newcomer is admitted. So does one whose source of the state dies.
#include <atomic>
#include <future>

#include "elastic_run.h"

namespace pccl::testing {
namespace {

/// Members that pass boundaries together, each with its own copy of the state.
class Members {
 public:
  explicit Members(std::uint32_t count) : run(count) {
    for (std::uint32_t i = 0; i < count; ++i) states.emplace_back(kCount, 1.25F);
    boundary();
  }
  /// Returns how many have passed it.
  std::size_t boundary() {
    std::vector<std::future<Result<BoundaryEvent>>> ends;
    for (std::size_t i = 0; i < run.peers.size(); ++i) {
      ends.push_back(std::async(std::launch::async, [this, i] {
        return refresh(*run.peers[i].engine, states[i], revision);
      }));
    }
    std::size_t passed = 0;
    for (auto& e : ends) passed += e.get().ok() ? 1 : 0;
    ++revision;
    return passed;
  }
  [[nodiscard]] int size() const { return run.peers[0].engine->view(run.group).size; }
  void expect_sum_of(std::size_t contributors) {
    std::vector<std::vector<float>> values(run.peers.size(), std::vector<float>(1000, 1.0F));
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t i = 0; i < run.peers.size(); ++i)
      tickets.push_back(run.peers[i].engine->post(run.group, all_reduce(values[i])));
    for (const auto& ticket : tickets) expect_success(ticket);
    for (const auto& value : values)
      EXPECT_EQ(value, std::vector<float>(1000, static_cast<float>(contributors)));
  }
  void expect_nobody_evicted() const {
    for (const Peer& p : run.peers) EXPECT_FALSE(p.engine->view(run.group).evicted);
  }

  static constexpr std::size_t kCount = 100000;
  Founded run;
  std::vector<std::vector<float>> states;
  std::uint64_t revision = 1;
};

TEST(Admission, a_newcomer_that_names_a_rank_hears_that_it_has_not_been_admitted) {
  Members members(2);
  Peer newcomer = start_peer(members.run.master.address);
  expect_success(newcomer.joined);
  EXPECT_EQ(newcomer.engine->view(members.run.group).size, 3);
  std::vector<float> values(10);
  for (const OpKind kind : {OpKind::broadcast, OpKind::recv}) {
    OpRequest request;
    request.descriptor = {kind, ReduceOp::none, DType::f32, kind == OpKind::recv ? -1 : 1,
                          values.size()};
    request.peer = kind == OpKind::recv ? 1 : -1;
    request.outputs = {buffer(values)};
    const Error error = outcome(newcomer.engine->post(members.run.group, std::move(request)));
    EXPECT_EQ(error.code, ErrorCode::not_admitted) << error.text;
  }
}

TEST(Admission, a_newcomer_that_dies_on_its_way_in_costs_no_member_its_place) {
  Members members(2);
  using What = BoundaryEvent::What;
  for (const What dies_at : {What::hash, What::fetch, What::finished}) {
    Peer newcomer = start_peer(members.run.master.address);
    expect_success(newcomer.joined);
    std::vector<float> state(Members::kCount, 0.0F);
    std::atomic<bool> died = false;
    auto way_in = std::async(std::launch::async, [&] {
      return refresh(*newcomer.engine, state, 0, kTestMs, [&](const BoundaryEvent& event) {
        if (event.what != dies_at) return true;
        newcomer.engine->vanish();
        died = true;
        return false;
      });
    });
    if (dies_at == What::hash) way_in.wait();  // it does not come as far as the door
    while (!died) EXPECT_EQ(members.boundary(), 2U);
    EXPECT_FALSE(way_in.get().ok());
    members.expect_sum_of(2);
    members.expect_nobody_evicted();
  }
  EXPECT_EQ(members.boundary(), 2U);  // votes after the loss
  EXPECT_EQ(members.size(), 2);
  Peer last = start_peer(members.run.master.address);
  std::vector<float> state(Members::kCount, 0.0F);
  auto way_in = std::async(std::launch::async, [&] { return refresh(*last.engine, state, 0); });
  while (members.size() < 3) EXPECT_EQ(members.boundary(), 2U);
  ASSERT_TRUE(way_in.get().ok());
  EXPECT_EQ(state, members.states[0]);
  members.run.peers.push_back(last);
  members.states.push_back(state);
  members.expect_sum_of(3);
}

TEST(Admission, a_newcomer_whose_source_of_the_state_dies_gets_it_from_another_member) {
  Members members(3);
  Peer newcomer = start_peer(members.run.master.address);
  expect_success(newcomer.joined);
  std::vector<float> state(Members::kCount, 0.0F);
  std::atomic<std::size_t> source = 3;
  auto way_in = std::async(std::launch::async, [&] {
    return refresh(*newcomer.engine, state, 0, kTestMs, [&](const BoundaryEvent& event) {
      if (event.what != BoundaryEvent::What::fetch || source < 3) return true;
      const PeerId from = event.plan.sources.at(0);
      std::size_t at = 0;
      while (members.run.peers[at].engine->handle("127.0.0.1").peer != from) ++at;
      members.run.peers[at].engine->vanish();
      source = at;
      return true;
    });
  });
  std::size_t passed = 3;
  while (passed == 3) passed = members.boundary();
  EXPECT_EQ(passed, 2U);
  auto admitted = way_in.get();
  ASSERT_TRUE(admitted.ok()) << admitted.error().text;
  EXPECT_TRUE(admitted.value().admitted);
  EXPECT_EQ(state, std::vector<float>(Members::kCount, 1.25F));
  members.run.peers[source] = newcomer;
  members.expect_sum_of(3);
}

}  // namespace
}  // namespace pccl::testing
