#include "engine/ticket.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

std::shared_ptr<Ticket> ticket() { return std::make_shared<Ticket>(); }

TEST(Ticket, that_completes_after_others_waits_for_the_last_of_them_whatever_their_outcomes) {
  const Tickets those{ticket(), ticket(), ticket()};
  const auto then = ticket();
  those[1]->complete({});
  complete_after(those, then);
  EXPECT_FALSE(then->done());
  those[2]->complete({ErrorCode::peer_lost, "lost"});
  EXPECT_FALSE(then->done());
  those[0]->complete({});
  ASSERT_TRUE(then->done());
  EXPECT_FALSE(then->error().failed());
}

TEST(Ticket, that_completes_after_none_does_so_at_once) {
  const auto then = ticket();
  complete_after({}, then);
  EXPECT_TRUE(then->done());
}

}  // namespace
}  // namespace pccl
