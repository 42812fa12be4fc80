// Sends and receives of a fixed group: how they find each other, and what becomes of them when one
// side leaves or gives up.
#include "engines.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

constexpr std::size_t kAnnounced = 1U << 21;  // floats: announced, and many segments

std::shared_ptr<Ticket> post(FixedWorld& world, std::size_t at, OpRequest request) {
  return world.engines[at]->post(world.group, std::move(request));
}

void expect_lost(const std::shared_ptr<Ticket>& ticket, const std::string& words) {
  const Error error = outcome(ticket);
  EXPECT_EQ(error.code, ErrorCode::peer_lost) << error.text;
  EXPECT_NE(error.text.find(words), std::string::npos) << error.text;
}

TEST(PointToPoint, sends_and_receives_match_by_tag_and_order) {
  FixedWorld world(3);
  std::vector<float> small(3, 1.0F);
  std::vector<float> large(kAnnounced, 2.0F);
  std::vector<float> tagged(3, 3.0F);
  std::vector<std::shared_ptr<Ticket>> tickets;
  tickets.push_back(post(world, 0, message(OpKind::send, 1, small)));
  tickets.push_back(post(world, 0, message(OpKind::send, 1, large)));
  tickets.push_back(post(world, 0, message(OpKind::send, 1, tagged, 9)));
  std::vector<float> in_small(3);
  std::vector<float> in_large(kAnnounced);
  std::vector<float> in_tagged(3);
  tickets.push_back(post(world, 1, message(OpKind::recv, 0, in_tagged, 9)));
  tickets.push_back(post(world, 1, message(OpKind::recv, 0, in_small)));
  tickets.push_back(post(world, 1, message(OpKind::recv, -1, in_large)));
  for (const auto& ticket : tickets) expect_success(ticket);
  EXPECT_EQ(in_small, small);
  EXPECT_EQ(in_large, large);
  EXPECT_EQ(in_tagged, tagged);
  EXPECT_EQ(tickets.back()->seen<ReceiveResult>().source, 0);
}

TEST(PointToPoint, what_a_rank_has_sent_arrives_after_it_has_left) {
  for (int i = 0; i < 10; ++i) {
    FixedWorld world(2);
    std::vector<float> small(3, 1.0F);
    std::vector<float> large(kAnnounced, 2.0F);
    std::vector<float> in_small(3);
    std::vector<float> in_large(kAnnounced);
    const auto received = post(world, 1, message(OpKind::recv, 0, in_large, 9));
    expect_success(post(world, 0, message(OpKind::send, 1, small)));
    expect_success(post(world, 0, message(OpKind::send, 1, large, 9)));
    world.engines[0]->close(world.group);  // its farewell overtakes what is on other lanes
    world.engines[0]->shutdown();
    expect_success(received);
    EXPECT_EQ(in_large, large);
    expect_success(post(world, 1, message(OpKind::recv, 0, in_small)));
    EXPECT_EQ(in_small, small);
  }
}

TEST(PointToPoint, nobody_waits_for_a_rank_that_has_left) {
  FixedWorld world(3);
  std::vector<float> values(3);
  const auto before = post(world, 2, message(OpKind::recv, 1, values));
  const auto anybody = post(world, 2, message(OpKind::recv, -1, values));
  world.engines[1]->close(world.group);
  expect_lost(before, "recv from rank 1");
  expect_lost(post(world, 2, message(OpKind::recv, 1, values)), "rank 1");
  expect_lost(post(world, 2, message(OpKind::send, 1, values)), "rank 1");
  EXPECT_FALSE(anybody->wait(50)) << "rank 0 is there";
  world.engines[0]->close(world.group);
  expect_lost(anybody, "has left the group");
  expect_lost(post(world, 2, message(OpKind::recv, 1, values)), "rank 1");
  expect_lost(post(world, 2, message(OpKind::recv, 0, values)), "rank 0");
  expect_lost(post(world, 2, message(OpKind::recv, -1, values)), "has left the group");
}

TEST(PointToPoint, who_gives_up_a_send_tells_its_receiver) {
  FixedWorld world(2);
  std::vector<float> large(kAnnounced);
  std::vector<float> into(kAnnounced);
  const auto half_sent = [&](std::uint64_t timeout_ms) {
    OpRequest send = message(OpKind::send, 1, large);
    const auto gate = std::make_shared<InputGate>();
    gate->bytes.store(kAnnounced);  // a quarter, and no more comes
    send.gate = gate;
    send.timeout_ms = timeout_ms;
    return post(world, 0, std::move(send));
  };
  const auto late = half_sent(300);
  const Error error = outcome(post(world, 1, message(OpKind::recv, 0, into)));
  EXPECT_EQ(error.code, ErrorCode::timed_out);
  EXPECT_NE(error.text.find("rank 0 has given up its send"), std::string::npos) << error.text;
  EXPECT_EQ(outcome(late).code, ErrorCode::timed_out);

  const auto closed = half_sent(0);
  const auto received = post(world, 1, message(OpKind::recv, 0, into));
  const auto moves = [&] {
    return world.engines[1]->counters().value().bytes_received > 3 * kAnnounced / 2;
  };
  EXPECT_TRUE(wait_until(moves));
  world.engines[0]->close(world.group);
  expect_lost(received, "rank 0 has given up its send: it has left the group");
  EXPECT_EQ(outcome(closed).code, ErrorCode::closed);
}

/// Two members over links that the test holds.
struct Pair {
  explicit Pair(GroupKind kind) : a(kA, kind), b(kB, kind) {
    for (Node* node : {&a, &b}) {
      node->group->number({kA, kB});
      node->group->start(EpochId::make(1, 1), {kA, kB});
    }
  }
  OpRequest send(std::uint64_t timeout_ms) {
    OpRequest request = message(OpKind::send, 1, out);
    request.timeout_ms = timeout_ms;
    return request;
  }
  std::shared_ptr<Ticket> receive() { return b.post(message(OpKind::recv, 0, in)); }
  std::uint64_t window() { return a.context.windows.of(kB).eager_sends; }

  static constexpr PeerId kA{10};
  static constexpr PeerId kB{20};
  Node a, b;
  std::vector<float> out = std::vector<float>(3, 1.0F);
  std::vector<float> in = std::vector<float>(3);
};

TEST(PointToPoint, a_small_send_that_is_given_up_and_accepted_gives_its_place_back_once) {
  for (const GroupKind kind : {GroupKind::fixed, GroupKind::elastic}) {
    Pair pair(kind);
    const auto late = pair.a.post(pair.send(1000));
    const auto second = pair.a.post(pair.send(0));
    EXPECT_EQ(pair.window(), 2U);
    // The kernel has taken it, and has not said so.
    const FakeLinks::Sent first = pair.a.links.sent.front();
    pair.a.links.sent.pop_front();
    pair.b.gets(Pair::kA, first.header, first.payload);
    expect_success(pair.receive());
    pair.a.group->tick(1000);
    EXPECT_EQ(outcome(late).code, ErrorCode::timed_out);
    EXPECT_EQ(pair.window(), 1U);
    EXPECT_TRUE(deliver(pair.b, pair.a));
    EXPECT_EQ(pair.window(), 1U) << "the second send's place, which is not received";
    settle(pair.a, pair.b);
    EXPECT_EQ(pair.window(), 1U);
    expect_success(pair.receive());
    settle(pair.a, pair.b);
    expect_success(second);
    EXPECT_EQ(pair.window(), 0U);
  }
}

TEST(PointToPoint, a_small_send_that_is_given_up_after_it_has_left_gives_its_place_back) {
  Pair pair(GroupKind::elastic);  // in a fixed group it is done by then
  const auto late = pair.a.post(pair.send(1000));
  settle(pair.a, pair.b);
  pair.a.group->tick(1000);
  EXPECT_EQ(outcome(late).code, ErrorCode::timed_out);
  EXPECT_EQ(pair.window(), 1U) << "the receiver keeps it";
  expect_success(pair.receive());
  settle(pair.a, pair.b);
  EXPECT_EQ(pair.window(), 0U);
}

}  // namespace
}  // namespace pccl::testing
