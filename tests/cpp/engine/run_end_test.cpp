// A process's part in its run ends once.
#include "engine/run_end.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

TEST(RunEnd, the_first_end_stays) {
  RunEnd end;
  EXPECT_FALSE(end.over() || end.failed() || end.in_order() || end.error().failed());
  end.leave();
  end.fail({ErrorCode::evicted, "late"});
  end.finish("later");
  EXPECT_EQ(end.how(), RunEnd::How::left);
  EXPECT_TRUE(end.over() && end.in_order() && !end.failed());
  EXPECT_EQ(end.error(), (Error{ErrorCode::closed, "this replica has left the run"}));
}

TEST(RunEnd, a_failure_is_no_end_in_good_order_and_keeps_its_error) {
  RunEnd end;
  end.fail({ErrorCode::evicted, "silent for 10 s"});
  end.leave();
  EXPECT_TRUE(end.over() && end.failed() && !end.in_order());
  EXPECT_EQ(end.error(), (Error{ErrorCode::evicted, "silent for 10 s"}));
}

TEST(RunEnd, calls_after_a_finished_run_hear_when_it_was_finished) {
  RunEnd end;
  end.finish("the run was finished at step 7");
  EXPECT_EQ(end.how(), RunEnd::How::finished);
  EXPECT_TRUE(end.in_order());
  EXPECT_EQ(end.error(), (Error{ErrorCode::closed, "the run was finished at step 7"}));
}

}  // namespace
}  // namespace pccl
