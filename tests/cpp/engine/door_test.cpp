// Calls of a newcomer that wait to be let in.
#include "engine/door.h"

#include <gtest/gtest.h>

namespace pccl::testing {
namespace {

struct Waits {
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
  Waits waits;
  const auto first = waits.call();
  const auto second = waits.call(100);
  const auto third = waits.call(300);
  const auto fourth = waits.call(100);
  EXPECT_EQ(waits.expired(99, 1000), Tickets{});
  EXPECT_EQ(waits.expired(1, 1000), (Tickets{second, fourth}));
  EXPECT_EQ(waits.expired(200, 1000), Tickets{third});
  EXPECT_EQ(waits.expired(699, 1000), Tickets{});
  EXPECT_EQ(waits.expired(1, 1000), Tickets{first});
  EXPECT_TRUE(waits.door.empty());
}

TEST(Door, a_call_without_any_time_waits_on) {
  Waits waits;
  const auto call = waits.call();
  const auto timed = waits.call(1);
  EXPECT_EQ(waits.expired(1'000'000, 0), Tickets{timed});
  EXPECT_EQ(waits.expired(1'000'000, 0), Tickets{});
  EXPECT_EQ(waits.left(), Tickets{call});
}

TEST(Door, calls_come_in_in_their_order) {
  Waits waits;
  const Tickets calls{waits.call(), waits.call(10), waits.call()};
  EXPECT_EQ(waits.left(), calls);
  EXPECT_TRUE(waits.door.empty());
}

}  // namespace
}  // namespace pccl::testing
