// Sends and receives by the thousand: how many a sender announces, what their bookkeeping costs,
// and how often the log names them.
#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "engines.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

template <typename Message>
std::size_t count(const Node& node) {
  return static_cast<std::size_t>(
      std::count_if(node.links.sent.begin(), node.links.sent.end(), [](const auto& sent) {
        if (sent.control.empty()) return false;
        const auto message = decode_peer_to_peer(sent.control);
        return message.ok() && std::holds_alternative<Message>(message.value());
      }));
}

class ManySends : public ::testing::Test {
 protected:
  static constexpr PeerId kA{10};
  static constexpr PeerId kB{20};
  static constexpr std::size_t kLarge = 1U << 15;  // floats: always announced

  ManySends() {
    set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
    for (Node* node : {&a, &b}) {
      node->group->number({kA, kB});
      node->group->start(EpochId::make(0, 1), {kA, kB});
    }
  }
  ~ManySends() override { set_log_sink(nullptr); }

  std::vector<std::shared_ptr<Ticket>> send(std::size_t number, std::uint64_t tag = 0) {
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t i = 0; i < number; ++i) {
      tickets.push_back(a.post(message(OpKind::send, 1, out, tag)));
    }
    return tickets;
  }
  std::shared_ptr<Ticket> receive(std::vector<float>& into, std::uint64_t tag = 0) {
    return b.post(message(OpKind::recv, 0, into, tag));
  }
  /// As if all but so many sends were announced to B by another group.
  void leave_room_for(std::size_t sends) {
    a.context.windows.of(kB).announced_sends = kAnnouncedSendsMax - sends;
  }
  [[nodiscard]] std::size_t lines_with(std::string_view words) const {
    return static_cast<std::size_t>(std::count_if(
        lines.begin(), lines.end(),
        [&](const std::string& line) { return line.find(words) != std::string::npos; }));
  }

  std::vector<std::string> lines;
  std::vector<float> out = std::vector<float>(4, 1.0F);
  std::vector<float> in = std::vector<float>(4);
  Node a{kA, GroupKind::fixed};
  Node b{kB, GroupKind::fixed};
};

TEST_F(ManySends, a_sender_announces_no_more_than_its_receiver_keeps) {
  const std::size_t number = kEagerSendsMax + kAnnouncedSendsMax + 3;
  const auto sent = send(number);
  EXPECT_EQ(count<Announce>(a), kAnnouncedSendsMax);
  settle(a, b);
  EXPECT_TRUE(b.links.given_up.empty()) << b.links.given_up.front().second;
  EXPECT_FALSE(sent.back()->done());
  for (std::size_t i = 0; i < number; ++i) {
    const auto received = receive(in);
    settle(a, b);
    ASSERT_TRUE(received->done()) << i;
  }
  EXPECT_TRUE(sent.back()->done());
  EXPECT_TRUE(a.context.windows.of(kB) == Window{});
}

TEST_F(ManySends, those_that_wait_begin_in_their_order_as_receives_are_called) {
  leave_room_for(2);
  std::vector<std::vector<float>> sent;
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t i = 0; i < 6; ++i) {
    sent.emplace_back(i == 4 ? 4 : kLarge, static_cast<float>(i));  // one could go at once
    tickets.push_back(a.post(message(OpKind::send, 1, sent.back(), i % 2)));
  }
  settle(a, b);
  EXPECT_EQ(b.context.kept_bytes.of(kA), 2 * kKeptMessageBytes);
  std::vector<float> odd(kLarge);
  std::vector<float> even(kLarge);
  std::vector<float> small(4);
  const auto first_odd = receive(odd, 1);
  settle(a, b);
  expect_success(first_odd);
  EXPECT_EQ(odd, sent[1]);
  for (const std::size_t i : {0, 2}) {
    const auto next = receive(even, 0);
    settle(a, b);
    expect_success(next);
    EXPECT_EQ(even, sent[i]);
  }
  const auto fourth = receive(small, 0);
  settle(a, b);
  expect_success(fourth);
  EXPECT_EQ(small, sent[4]);
  for (const std::size_t i : {3, 5}) {
    const auto next = receive(odd, 1);
    settle(a, b);
    expect_success(next);
    EXPECT_EQ(odd, sent[i]);
  }
  for (const auto& ticket : tickets) expect_success(ticket);
}

TEST_F(ManySends, one_that_is_given_up_before_it_began_holds_up_nobody) {
  leave_room_for(1);
  std::vector<float> large(kLarge, 1.0F);
  std::vector<float> into(kLarge);
  const auto first = a.post(message(OpKind::send, 1, large));
  OpRequest late = message(OpKind::send, 1, large);
  late.timeout_ms = 100;
  const auto given_up = a.post(std::move(late));
  std::vector<float> other(kLarge, 2.0F);
  const auto third = a.post(message(OpKind::send, 1, other));
  a.group->tick(100);
  EXPECT_EQ(outcome(given_up).code, ErrorCode::timed_out);
  for (const auto* values : {&large, &other}) {
    const auto received = receive(into);
    settle(a, b);
    expect_success(received);
    EXPECT_EQ(into, *values);
  }
  expect_success(first);
  expect_success(third);
}

TEST_F(ManySends, room_that_another_group_makes_is_seen_at_the_next_tick) {
  leave_room_for(0);
  std::vector<float> large(kLarge, 1.0F);
  a.post(message(OpKind::send, 1, large));
  EXPECT_EQ(count<Announce>(a), 0U);
  a.group->tick(kSayWaitingMs);
  EXPECT_EQ(lines_with("has been waiting for 5 s: so many earlier ones"), 1U);
  leave_room_for(1);
  a.group->tick(1);
  EXPECT_EQ(count<Announce>(a), 1U);
}

TEST_F(ManySends, a_barrier_waits_for_those_that_begin_and_not_for_those_that_cannot) {
  leave_room_for(1);
  std::vector<float> large(kLarge, 1.0F);
  std::vector<float> into(kLarge);
  std::vector<std::shared_ptr<Ticket>> received;
  for (int i = 0; i < 2; ++i) received.push_back(receive(into));
  for (int i = 0; i < 4; ++i) a.post(message(OpKind::send, 1, large));
  const auto at_a = a.post(barrier());
  const auto at_b = b.post(barrier());
  settle(a, b);
  for (const auto& ticket : {at_a, at_b}) EXPECT_TRUE(ticket->done());
  for (const auto& ticket : received) EXPECT_TRUE(ticket->done());
  received.clear();
  for (int i = 0; i < 2; ++i) received.push_back(receive(into));
  settle(a, b);
  for (const auto& ticket : received) EXPECT_TRUE(ticket->done());
}

TEST_F(ManySends, withdrawn_ones_are_forgotten_in_the_end) {
  for (std::uint64_t i = 0; i < 10 * Matcher::kWithdrawnMax; ++i) {
    b.hears(kA, PeerToPeer{Withdraw{GroupId{1}, EpochId::make(0, 1), 0, i, {}}});
  }
  EXPECT_EQ(b.context.kept_bytes.of(kA), Matcher::kWithdrawnMax * kKeptMessageBytes);
}

TEST_F(ManySends, of_many_that_wait_the_log_names_a_few) {
  send(500);
  a.group->tick(kSayWaitingMs);
  for (int i = 0; i < 500; ++i) receive(in, 9);
  b.group->tick(kSayWaitingMs);
  EXPECT_EQ(lines_with("send to rank 1 (tag 0, 16 bytes) has been waiting for 5 s"),
            kSaidAtOnceMax);
  EXPECT_EQ(lines_with("recv from rank 0 (tag 9, 16 bytes) has been waiting for 5 s"),
            kSaidAtOnceMax);
  EXPECT_EQ(lines_with("more sends and receives have been waiting for as long"), 2U);
  EXPECT_EQ(lines_with("(497), one of them recv from rank 0 (tag 9, 16 bytes)"), 1U);
  lines.clear();
  for (int i = 0; i < 190; ++i) {  // one after the other
    receive(in, 7);
    b.group->tick(50);
  }
  EXPECT_EQ(lines_with("recv from rank 0 (tag 7, 16 bytes) has been waiting for 5 s"),
            kSaidAtOnceMax);
  EXPECT_EQ(lines_with("more sends and receives"), 0U);
  b.group->tick(kSayWaitingMs);
  EXPECT_EQ(lines_with("(184), one of them recv from rank 0 (tag 7, 16 bytes)"), 1U);
}

}  // namespace
}  // namespace pccl::testing
