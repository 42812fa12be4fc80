// Traffic and epochs: what comes before its epoch waits for it, what comes after its epoch is
// nobody's, and a change of ranks in the middle of one changes nothing.
#include "engine/epoch_run.h"

#include "engines.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

constexpr PeerId kA{10};
constexpr PeerId kB{20};
constexpr PeerId kC{30};
constexpr EpochId kFirst = EpochId::make(1, 1);
constexpr EpochId kSecond = EpochId::make(1, 2);
constexpr EpochId kThird = EpochId::make(1, 3);
constexpr std::size_t kLarge = 3U << 18;  // floats: announced, three segments

class Epochs : public ::testing::Test {
 protected:
  Epochs() {
    for (Node* node : {&a, &b}) {
      node->group->number({kA, kB});
      node->group->start(kFirst, {kA, kB});
    }
  }
  static std::vector<float> filled(std::size_t count, float first) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i % 1000);
    return values;
  }
  void start(Node& node, EpochId epoch) {
    node.group->stop();
    node.group->start(epoch, {kA, kB});
  }
  void accept(Node& node, EpochId epoch) {
    node.group->stop();
    node.group->accept(epoch, {kA, kB});
  }

  Node a{kA};
  Node b{kB};
};

TEST_F(Epochs, what_is_sent_in_an_epoch_that_the_receiver_has_accepted_only_arrives) {
  for (const std::size_t count : {std::size_t{10}, kLarge}) {
    const EpochId next = count == 10 ? kSecond : kThird;
    accept(b, next);
    start(a, next);
    auto out = filled(count, 1);
    std::vector<float> in(count);
    const auto sent = a.post(message(OpKind::send, 1, out));
    deliver(a, b);  // b has not heard of the start yet
    b.group->start(next, {kA, kB});
    const auto received = b.post(message(OpKind::recv, 0, in));
    settle(a, b);
    expect_success(received);
    expect_success(sent);
    EXPECT_EQ(in, out);
  }
}

TEST_F(Epochs, a_receive_between_two_epochs_belongs_to_the_next) {
  accept(b, kSecond);
  std::vector<float> in(10);
  const auto received = b.post(message(OpKind::recv, 0, in));
  EXPECT_FALSE(received->done());
  start(a, kSecond);
  auto out = filled(10, 5);
  const auto sent = a.post(message(OpKind::send, 1, out));
  settle(a, b);
  EXPECT_FALSE(received->done());
  b.group->start(kSecond, {kA, kB});
  settle(a, b);
  expect_success(received);
  expect_success(sent);
  EXPECT_EQ(in, out);
}

TEST_F(Epochs, segments_of_an_epoch_that_has_ended_never_land_in_a_receive_of_the_next) {
  auto old = filled(kLarge, 1);
  std::vector<float> in(kLarge);
  const auto lost = a.post(message(OpKind::send, 1, old));
  const auto first = b.post(message(OpKind::recv, 0, in));
  deliver(a, b);
  deliver(b, a);  // accepted: the segments leave, and are long on their way
  std::vector<FakeLinks::Sent> late(a.links.sent.begin(), a.links.sent.end());
  ASSERT_EQ(late.size(), 3U);
  start(a, kSecond);
  start(b, kSecond);
  EXPECT_EQ(outcome(lost).code, ErrorCode::peer_lost);
  EXPECT_EQ(outcome(first).code, ErrorCode::peer_lost);
  EXPECT_EQ(in, std::vector<float>(kLarge)) << "as it was before the call";

  auto out = filled(kLarge, 7);
  const auto sent = a.post(message(OpKind::send, 1, out));
  const auto received = b.post(message(OpKind::recv, 0, in));
  deliver(a, b);
  deliver(b, a);
  for (const FakeLinks::Sent& segment : late) b.gets(kA, segment.header, segment.payload);
  EXPECT_FALSE(received->done());
  settle(a, b);
  expect_success(received);
  expect_success(sent);
  EXPECT_EQ(in, out);
  EXPECT_TRUE(b.links.given_up.empty()) << "lateness is no lie";
}

TEST_F(Epochs, new_ranks_in_the_middle_of_an_epoch_lose_and_double_no_message) {
  for (Node* node : {&a, &b}) node->group->number({kC, kA, kB});
  auto small = filled(10, 1);
  auto large = filled(kLarge, 2);
  auto third = filled(10, 3);
  const auto one = a.post(message(OpKind::send, 2, small));
  const auto two = a.post(message(OpKind::send, 2, large));
  deliver(a, b);
  for (Node* node : {&a, &b}) node->group->number({kA, kB});  // the return of an operation does it
  const auto three = a.post(message(OpKind::send, 1, third));
  std::vector<float> in_small(10);
  std::vector<float> in_large(kLarge);
  std::vector<float> in_third(10);
  const auto first = b.post(message(OpKind::recv, 0, in_small));
  const auto second = b.post(message(OpKind::recv, -1, in_large));
  const auto last = b.post(message(OpKind::recv, 0, in_third));
  settle(a, b);
  for (const auto& ticket : {one, two, three, first, second, last}) expect_success(ticket);
  EXPECT_EQ(in_small, small);
  EXPECT_EQ(in_large, large);
  EXPECT_EQ(in_third, third);
  EXPECT_EQ(second->seen<ReceiveResult>().source, 0);
}

TEST_F(Epochs, a_call_of_a_numbering_that_is_over_means_the_peers_that_it_meant) {
  const Numbering before = std::make_shared<const std::vector<PeerId>>(std::vector{kC, kA, kB});
  auto out = filled(10, 4);
  std::vector<float> in(10);
  OpRequest send = message(OpKind::send, 2, out);
  OpRequest receive = message(OpKind::recv, 1, in);
  send.numbering = receive.numbering = before;
  const auto sent = a.post(std::move(send));
  const auto received = b.post(std::move(receive));
  settle(a, b);
  expect_success(sent);
  expect_success(received);
  EXPECT_EQ(in, out);
  EXPECT_EQ(received->seen<ReceiveResult>().source, 1) << "the rank that the caller knows";

  const auto gather = [&](std::vector<float>& own, std::vector<std::vector<float>>& all) {
    OpRequest request;
    request.descriptor = {OpKind::all_gather, ReduceOp::none, DType::f32, -1, own.size()};
    request.inputs = {buffer(own)};
    for (auto& part : all) request.outputs.push_back(buffer(part));
    return request;
  };
  auto own = filled(5, 8);
  std::vector<std::vector<float>> old_all(3, std::vector<float>(5, -1));
  std::vector<std::vector<float>> new_all(2, std::vector<float>(5, -1));
  OpRequest stale = gather(own, old_all);
  stale.numbering = before;
  const auto one = a.post(std::move(stale));
  const auto two = b.post(gather(own, new_all));
  settle(a, b);
  expect_success(one);
  expect_success(two);
  EXPECT_EQ(old_all, (std::vector{std::vector<float>(5, -1), own, own}));

  OpRequest root_gone = message(OpKind::broadcast, -1, own);
  root_gone.inputs = {buffer(own)};
  root_gone.outputs = {buffer(own)};
  root_gone.descriptor.root = 0;
  root_gone.numbering = before;
  EXPECT_EQ(outcome(a.post(std::move(root_gone))).code, ErrorCode::invalid);
  EXPECT_EQ(outcome(a.post(message(OpKind::send, 2, out))).code, ErrorCode::invalid)
      << "there is no rank 2";
  EXPECT_EQ(outcome(a.post(gather(own, old_all))).code, ErrorCode::invalid) << "3 of 2";
}

TEST_F(Epochs, collective_segments_and_wants_of_an_accepted_epoch_are_there_when_it_starts) {
  accept(b, kSecond);
  start(a, kSecond);
  constexpr std::size_t kCount = 20U << 18;  // 20 MiB, five of them: more than the window
  std::vector<std::vector<float>> ours(5, filled(kCount, 1));
  std::vector<std::vector<float>> theirs(5, filled(kCount, 2));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (auto& values : ours) tickets.push_back(a.post(all_reduce(values)));
  deliver(a, b);
  EXPECT_LE(b.context.kept_bytes.of(kA), kUngrantedBytesMax + kKeptMessageBytes * 16);
  b.group->start(kSecond, {kA, kB});
  for (auto& values : theirs) tickets.push_back(b.post(all_reduce(values)));
  settle(a, b);
  for (const auto& ticket : tickets) expect_success(ticket);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(ours[i], theirs[i]);
  EXPECT_EQ(b.context.kept_bytes.of(kA), 0U);
  EXPECT_EQ(a.context.windows.of(kB).ungranted_bytes, 0U);
}

TEST_F(Epochs, who_sends_in_an_epoch_that_cannot_have_started_loses_its_link) {
  b.hears(kA, Announce{GroupId{1}, kSecond, 0, 0, 4});
  ASSERT_EQ(b.links.given_up.size(), 1U);
  EXPECT_NE(b.links.given_up.at(0).second.find("has not started"), std::string::npos);
  b.hears(kC, Announce{GroupId{1}, kFirst, 0, 0, 4});
  std::vector<float> in(1);
  EXPECT_FALSE(b.post(message(OpKind::recv, -1, in))->done()) << "of a stranger nothing is taken";
}

}  // namespace
}  // namespace pccl::testing
