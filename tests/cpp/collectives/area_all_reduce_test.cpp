#include "area_waits.h"
#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

Schedule in_small_segments(const CollectiveArgs& args) {
  return area_all_reduce(args, Case{}.segment_bytes);
}

/// Parts of many more segments than are under way.
Case large() { return {.kind = OpKind::all_reduce, .size = 4, .counts = {400}}; }

TEST(AreaAllReduce, AddsInEveryInterleaving) {
  run_all({.kind = OpKind::all_reduce}, in_small_segments);
  run_all({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg}, in_small_segments);
}

TEST(AreaAllReduce, AddsPartsOfManySegmentsInEveryInterleaving) {
  for (Case c = large(); c.seed <= 20; ++c.seed) {
    c.size = 2 + static_cast<std::uint32_t>(c.seed) % 4;
    c.in_place = c.seed % 2 == 0;
    run_and_check(c, in_small_segments);
    if (HasFatalFailure()) return;
  }
}

TEST(AreaAllReduce, EvaluatesTheSameExpressionAtAllRanks) {
  expect_one_expression({.kind = OpKind::all_reduce, .counts = {400}}, in_small_segments);
}

TEST(AreaAllReduce, HoldsAsManySlotsAsAreUnderWayWhateverTheSize) {
  for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1} << 32}) {
    const CollectiveArgs args =
        args_of({.kind = OpKind::all_reduce, .size = 4, .counts = {count}}, 1);
    const Schedule schedule = area_all_reduce(args);
    EXPECT_EQ(schedule.area_rows, 4U);
    EXPECT_EQ(schedule.scratch_bytes, 0U);
    EXPECT_EQ(schedule.steps.size(), 23U);
  }
  EXPECT_LE(kAreaRanksMax * kAreaDepth, kAreaSlots) << "an area holds one at least";
}

TEST(AreaAllReduce, EveryWaitForAFreeSlotIsNeeded) {
  expect_every_wait_is_needed(large(), in_small_segments, 3 * 2 + 4);
}

TEST(AreaAllReduce, ARankThatDoesNotWaitForTheLastReadersIsSeen) {
  expect_the_last_readers_are_waited_for(large(), in_small_segments, 2);
}

}  // namespace
}  // namespace pccl::test
