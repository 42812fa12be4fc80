#include "engine/ticket.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

std::shared_ptr<Ticket> ticket() { return std::make_shared<Ticket>(); }

TEST(Tickets, all_done_is_said_once_after_the_last_of_them_whatever_their_outcomes) {
  const Tickets tickets{ticket(), ticket(), ticket()};
  int calls = 0;
  tickets[1]->complete({});
  on_all_done(tickets, [&] { ++calls; });
  EXPECT_EQ(calls, 0);
  tickets[2]->complete({ErrorCode::peer_lost, "lost"});
  EXPECT_EQ(calls, 0);
  tickets[0]->complete({});
  EXPECT_EQ(calls, 1);
}

TEST(Tickets, none_are_all_done_at_once) {
  int calls = 0;
  on_all_done({}, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace pccl
