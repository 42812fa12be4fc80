// A barrier ends after all that its rank has called before it on that group, at every rank, and
// never waits for what is called after it.
#include <algorithm>

#include "elastic_run.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

constexpr std::size_t kBulk = 1U << 21;  // floats: announced, and many segments
constexpr std::uint64_t kNotYetMs = 50;

using Engines = std::vector<std::shared_ptr<Engine>>;
using Tickets = std::vector<std::shared_ptr<Ticket>>;

Tickets at_all(const Engines& engines, GroupId group,
               const std::function<OpRequest(std::size_t)>& request) {
  Tickets tickets;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    tickets.push_back(engines[i]->post(group, request(i)));
  }
  return tickets;
}

Tickets barriers(const Engines& engines, GroupId group) {
  return at_all(engines, group, [](std::size_t) { return barrier(); });
}

/// Inputs that the device of a rank computes when the test says so.
struct Held {
  void hold(OpRequest& request) {
    bytes = total_bytes(request.inputs);
    request.gate = gate;
  }
  void open(Engine& engine, GroupId group) const {
    gate->bytes.store(bytes);
    engine.inputs_came(group, gate);
  }
  std::shared_ptr<InputGate> gate = std::make_shared<InputGate>();
  std::uint64_t bytes = 0;
};

/// Two all-reduces, of which rank 0 holds back the older one, then a barrier.
void barrier_waits_for_collectives(const Engines& engines, GroupId group) {
  std::vector<std::vector<float>> late(engines.size(), std::vector<float>(kBulk, 1.0F));
  std::vector<std::vector<float>> soon(engines.size(), std::vector<float>(10, 1.0F));
  Held held;
  Tickets before = at_all(engines, group, [&](std::size_t i) {
    OpRequest request = all_reduce(late[i]);
    if (i == 0) held.hold(request);
    return request;
  });
  for (auto& ticket : at_all(engines, group, [&](std::size_t i) { return all_reduce(soon[i]); })) {
    before.push_back(ticket);
  }
  const Tickets ends = barriers(engines, group);
  for (const auto& end : ends) EXPECT_FALSE(end->wait(kNotYetMs));
  held.open(*engines[0], group);
  for (const auto& end : ends) expect_success(end);
  for (const auto& ticket : before) EXPECT_TRUE(ticket->done());
  for (const auto& values : late) {
    EXPECT_EQ(values, std::vector<float>(kBulk, static_cast<float>(engines.size())));
  }
}

/// Rank 1 receives what rank 0 has sent, and rank 0 holds it back.
void barrier_waits_for_receives(const Engines& engines, GroupId group) {
  std::vector<float> out(kBulk, 3.0F);
  std::vector<float> in(kBulk);
  Held held;
  const auto received = engines[1]->post(group, message(OpKind::recv, 0, in));
  OpRequest request = message(OpKind::send, 1, out);
  held.hold(request);
  const auto sent = engines[0]->post(group, std::move(request));
  const Tickets ends = barriers(engines, group);
  for (const auto& end : ends) EXPECT_FALSE(end->wait(kNotYetMs));
  held.open(*engines[0], group);
  expect_success(ends[1]);
  EXPECT_TRUE(received->done());
  EXPECT_EQ(in, out);
  expect_success(ends[0]);
  EXPECT_TRUE(sent->done());
}

/// What is called after a barrier may be what something from before it waits for.
void barrier_passes_what_needs_a_later_call(const Engines& engines, GroupId group) {
  for (const std::size_t count : {std::size_t{10}, kBulk}) {
    std::vector<float> out(count, 3.0F);
    std::vector<float> in(count);
    const auto sent_before = engines[0]->post(group, message(OpKind::send, 1, out, 1));
    const auto receives_later = engines[1]->post(group, message(OpKind::recv, 0, in, 2));
    for (const auto& end : barriers(engines, group)) expect_success(end);
    std::vector<float> other(count);
    const auto sent_later = engines[0]->post(group, message(OpKind::send, 1, out, 2));
    const auto received_after = engines[1]->post(group, message(OpKind::recv, 0, other, 1));
    for (const auto& ticket : {sent_before, receives_later, sent_later, received_after}) {
      expect_success(ticket);
    }
    EXPECT_EQ(in, out);
    EXPECT_EQ(other, out);
  }
}

void barriers_are_right(const Engines& engines, GroupId group) {
  barrier_waits_for_collectives(engines, group);
  barrier_waits_for_receives(engines, group);
  barrier_passes_what_needs_a_later_call(engines, group);
  barrier_waits_for_receives(engines, group);
}

TEST(Barrier, orders_calls_of_a_fixed_group) {
  FixedWorld world(3);
  barriers_are_right(world.engines, world.group);
}

/// In rank order.
Engines ranked(const Founded& run) {
  Engines engines(run.peers.size());
  for (const Peer& peer : run.peers) {
    engines.at(static_cast<std::size_t>(peer.engine->view(run.group).rank)) = peer.engine;
  }
  return engines;
}

TEST(Barrier, orders_calls_of_an_elastic_group) {
  Founded run(3);
  barriers_are_right(ranked(run), run.group);
}

TEST(Barrier, a_loss_replays_it_behind_what_was_called_before_it) {
  Founded run(3);
  Engines engines = ranked(run);
  const auto victim = engines[2];
  engines.pop_back();
  std::vector<std::vector<float>> values(2, std::vector<float>(kBulk, 1.0F));
  std::vector<float> out(kBulk, 3.0F);
  std::vector<float> in(kBulk);
  Held held;
  const auto reduced = at_all(engines, run.group, [&](std::size_t i) {
    OpRequest request = all_reduce(values[i]);
    if (i == 0) held.hold(request);
    return request;
  });
  const auto sent = engines[0]->post(run.group, message(OpKind::send, 1, out));
  const Tickets ends = barriers(engines, run.group);
  victim->vanish();
  const auto replayed = [&] {
    return engines[0]->counters().value().ops_replayed > 0 &&
           engines[1]->counters().value().ops_replayed > 0;
  };
  EXPECT_TRUE(wait_until(replayed));
  for (const auto& end : ends) EXPECT_FALSE(end->wait(kNotYetMs));
  held.open(*engines[0], run.group);
  for (const auto& end : ends) expect_success(end);
  for (const auto& ticket : reduced) EXPECT_TRUE(ticket->done());
  EXPECT_EQ(values[1], std::vector<float>(kBulk, 2.0F));
  EXPECT_EQ(outcome(sent).code, ErrorCode::peer_lost) << "its epoch has ended";
}

TEST(Barrier, what_was_sent_before_it_arrives_though_the_sender_closes_the_group_after_it) {
  constexpr std::size_t kSome = kBulk / 4;  // twenty times, and slow under a sanitizer
  FixedWorld world(2);
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const GroupId group{100 + i};
    world.connect(group);
    std::vector<float> out(kSome, static_cast<float>(i));
    std::vector<float> in(kSome);
    std::vector<std::vector<float>> values(2, std::vector<float>(kSome, 1.0F));
    const auto received = world.engines[1]->post(group, message(OpKind::recv, 0, in));
    const auto reduced =
        at_all(world.engines, group, [&](std::size_t r) { return all_reduce(values[r]); });
    const auto sent = world.engines[0]->post(group, message(OpKind::send, 1, out));
    const Tickets ends = barriers(world.engines, group);
    expect_success(ends[0]);
    world.engines[0]->close(group);
    for (const auto& ticket : {ends[1], received, reduced[0], reduced[1], sent}) {
      expect_success(ticket);
    }
    EXPECT_EQ(in, out);
    EXPECT_EQ(values[1], std::vector<float>(kSome, 2.0F));
    world.engines[1]->close(group);
  }
}

class Asking : public ::testing::Test {
 protected:
  Asking() {
    for (Node* node : {&a, &b}) {
      node->group->number({kA, kB});
      node->group->start(kFirst, {kA, kB});
    }
  }
  static constexpr PeerId kA{10};
  static constexpr PeerId kB{20};
  static constexpr EpochId kFirst = EpochId::make(1, 1);
  static constexpr EpochId kSecond = EpochId::make(1, 2);
  static std::size_t segments(const Node& node) {
    return static_cast<std::size_t>(
        std::count_if(node.links.sent.begin(), node.links.sent.end(), [](const auto& sent) {
          return sent.control.empty() && sent.header.kind == SegmentKind::collective;
        }));
  }

  Node a{kA};
  Node b{kB};
};

TEST_F(Asking, a_barrier_sends_nothing_before_the_other_rank_has_what_was_sent_before) {
  std::vector<float> out(kBulk, 1.0F);
  std::vector<float> in(kBulk);
  const auto sent = a.post(message(OpKind::send, 1, out));
  const auto end = a.post(barrier());
  EXPECT_EQ(segments(a), 0U);
  while (deliver(a, b) || deliver(b, a)) {
  }
  EXPECT_EQ(segments(a), 0U) << "b has not called the barrier";
  const auto received = b.post(message(OpKind::recv, 0, in));
  const auto other = b.post(barrier());
  settle(a, b);
  for (const auto& ticket : {sent, received, end, other}) expect_success(ticket);
  EXPECT_EQ(in, out);
}

TEST_F(Asking, a_question_that_comes_before_its_epoch_is_answered_in_it) {
  std::vector<float> out(10, 1.0F);
  std::vector<float> in(10);
  for (Node* node : {&a, &b}) {
    node->group->stop();
    node->group->accept(kSecond, {kA, kB});
  }
  const auto received = b.post(message(OpKind::recv, 0, in));
  const auto other = b.post(barrier());
  const auto sent = a.post(message(OpKind::send, 1, out));
  const auto end = a.post(barrier());
  a.group->start(kSecond, {kA, kB});
  deliver(a, b);
  EXPECT_EQ(segments(a), 0U);
  b.group->start(kSecond, {kA, kB});
  settle(a, b);
  for (const auto& ticket : {sent, received, end, other}) expect_success(ticket);
  EXPECT_EQ(in, out);
}

TEST_F(Asking, a_rank_that_calls_something_else_answers_so_that_they_find_out) {
  std::vector<float> out(10, 1.0F);
  std::vector<float> values(10);
  static_cast<void>(a.post(message(OpKind::send, 1, out)));
  static_cast<void>(a.post(barrier()));
  static_cast<void>(b.post(all_reduce(values)));
  settle(a, b);
  EXPECT_FALSE(a.group->mismatches.empty() && b.group->mismatches.empty());
}

TEST_F(Asking, nobody_waits_for_more_sends_than_there_are_but_the_one_that_asks) {
  b.hears(kA, Flush{GroupId{1}, kFirst, {0, 0}, 1000});
  const auto end = b.post(barrier());
  const auto other = a.post(barrier());
  settle(a, b);
  expect_success(end);
  expect_success(other);
}

}  // namespace
}  // namespace pccl::testing
