// Reduce-scatter of ranks that read each other's memory.
#include "area_waits.h"
#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

Schedule scatter_in_small_segments(const CollectiveArgs& args) {
  return area_reduce_scatter(args, Case{}.segment_bytes);
}

TEST(AreaReduceScatter, GivesEachRankItsSumInEveryInterleaving) {
  run_equal_parts({.kind = OpKind::reduce_scatter}, scatter_in_small_segments);
  run_equal_parts({.kind = OpKind::reduce_scatter, .reduce = ReduceOp::avg},
                  scatter_in_small_segments);
}

TEST(AreaReduceScatter, EveryWaitForAFreeSlotIsNeeded) {
  expect_every_wait_is_needed(many_segments(OpKind::reduce_scatter), scatter_in_small_segments, 3);
}

TEST(AreaReduceScatter, ARankThatDoesNotWaitForTheLastReadersIsSeen) {
  expect_the_last_readers_are_waited_for(many_segments(OpKind::reduce_scatter),
                                         scatter_in_small_segments, 1);
}

TEST(AreaReduceScatter, ASlotLessIsTooFew) {
  expect_a_slot_less_is_too_few(many_segments(OpKind::reduce_scatter), scatter_in_small_segments);
}

TEST(AreaReduceScatter, HoldsAsManySlotsAsAreUnderWayWhateverTheSize) {
  const auto in_real_segments = [](const CollectiveArgs& args) {
    return area_reduce_scatter(args);
  };
  expect_few_slots(OpKind::reduce_scatter, in_real_segments, kAreaRanksMax - 1);
}

}  // namespace
}  // namespace pccl::test
