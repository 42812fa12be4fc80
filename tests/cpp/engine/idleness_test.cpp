#include "engine/idleness.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

constexpr std::uint64_t kTimeout = 1000;

TEST(Idleness, a_program_that_calls_nothing_for_its_time_out_is_overdue) {
  Idleness idle;
  idle.tick(50, OpKey{1, 3}, true, true);
  idle.tick(999, OpKey{1, 3}, false, true);
  EXPECT_FALSE(idle.op_overdue(kTimeout));
  idle.tick(1, OpKey{1, 3}, false, true);
  EXPECT_TRUE(idle.op_overdue(kTimeout));
  EXPECT_TRUE(idle.step_overdue(kTimeout));
  idle.tick(50, OpKey{1, 4}, false, true);  // an operation that began and ended in between
  EXPECT_FALSE(idle.op_overdue(kTimeout));
}

TEST(Idleness, who_waits_for_others_or_for_an_epoch_is_not_overdue) {
  Idleness idle;
  for (int i = 0; i < 100; ++i) idle.tick(50, OpKey{1, 3}, true, true);
  for (int i = 0; i < 100; ++i) idle.tick(50, OpKey{1, 3}, false, false);
  EXPECT_FALSE(idle.op_overdue(kTimeout));
}

TEST(Idleness, boundaries_have_a_time_out_of_their_own) {
  Idleness idle;
  idle.at_boundary(300);
  idle.tick(50, OpKey{1, 0}, true, true);
  idle.tick(300, OpKey{1, 0}, false, true);
  EXPECT_TRUE(idle.step_overdue(kTimeout));
  EXPECT_FALSE(idle.op_overdue(kTimeout));
}

TEST(Idleness, who_has_no_time_out_says_that_it_may_be_late) {
  Idleness idle;
  EXPECT_TRUE(idle.op_overdue(0));
  EXPECT_TRUE(idle.step_overdue(0));
  idle.tick(50, OpKey{1, 0}, true, true);
  EXPECT_FALSE(idle.op_overdue(0)) << "it waits for others";
  EXPECT_FALSE(idle.step_overdue(0));
}

}  // namespace
}  // namespace pccl
