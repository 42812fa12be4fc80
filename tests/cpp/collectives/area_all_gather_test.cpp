// All-gather of ranks that read each other's memory.
#include "area_waits.h"
#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

Schedule gather_in_small_segments(const CollectiveArgs& args) {
  return area_all_gather(args, Case{}.segment_bytes);
}

TEST(AreaAllGather, GivesEveryPartToEveryRankInEveryInterleaving) {
  run_equal_parts({.kind = OpKind::all_gather}, gather_in_small_segments);
}

TEST(AreaAllGather, EveryWaitForAFreeSlotIsNeeded) {
  expect_every_wait_is_needed(many_segments(OpKind::all_gather), gather_in_small_segments, 3);
}

TEST(AreaAllGather, ARankThatDoesNotWaitForTheLastReadersIsSeen) {
  expect_the_last_readers_are_waited_for(many_segments(OpKind::all_gather),
                                         gather_in_small_segments, 1);
}

TEST(AreaAllGather, ASlotLessIsTooFew) {
  expect_a_slot_less_is_too_few(many_segments(OpKind::all_gather), gather_in_small_segments);
}

TEST(AreaAllGather, HoldsAsManySlotsAsAreUnderWayWhateverTheSize) {
  const auto in_real_segments = [](const CollectiveArgs& args) { return area_all_gather(args); };
  expect_few_slots(OpKind::all_gather, in_real_segments, 1);
}

}  // namespace
}  // namespace pccl::test
