// Calls of a newcomer that wait to be let in.
#include "engine/door.h"

#include <gtest/gtest.h>

namespace pccl::testing {
namespace {

struct DoorCalls {
  std::shared_ptr<Ticket> call(std::uint64_t own_timeout_ms = 0) {
    auto ticket = std::make_shared<Ticket>();
    OpRequest request;
    request.timeout_ms = own_timeout_ms;
    door.push(std::move(request), ticket);
    return ticket;
  }
  Tickets expired(std::uint64_t elapsed_ms, std::uint64_t timeout_ms) {
    Tickets tickets;
    for (const Door::Call& call : door.expired(elapsed_ms, timeout_ms)) {
      tickets.push_back(call.ticket);
    }
    return tickets;
  }
  Tickets left() {
    Tickets tickets;
    for (const Door::Call& call : door.take()) tickets.push_back(call.ticket);
    return tickets;
  }
  Door door;
};

TEST(Door, each_call_has_its_own_time_whatever_stands_before_it) {
  DoorCalls calls;
  const auto first = calls.call();
  const auto second = calls.call(100);
  const auto third = calls.call(300);
  const auto fourth = calls.call(100);
  EXPECT_EQ(calls.expired(99, 1000), Tickets{});
  EXPECT_EQ(calls.expired(1, 1000), (Tickets{second, fourth}));
  EXPECT_EQ(calls.expired(200, 1000), Tickets{third});
  EXPECT_EQ(calls.expired(699, 1000), Tickets{});
  EXPECT_EQ(calls.expired(1, 1000), Tickets{first});
  EXPECT_TRUE(calls.door.empty());
}

TEST(Door, a_call_without_any_time_waits_on) {
  DoorCalls calls;
  const auto call = calls.call();
  const auto timed = calls.call(1);
  EXPECT_EQ(calls.expired(1'000'000, 0), Tickets{timed});
  EXPECT_EQ(calls.expired(1'000'000, 0), Tickets{});
  EXPECT_EQ(calls.left(), Tickets{call});
}

TEST(Door, calls_come_in_in_their_order) {
  DoorCalls calls;
  const Tickets three{calls.call(), calls.call(10), calls.call()};
  EXPECT_EQ(calls.left(), three);
  EXPECT_TRUE(calls.door.empty());
}

}  // namespace
}  // namespace pccl::testing
