#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(RingAllReduce, GivesTheSumAtEveryRankInEveryInterleaving) {
  run_all({.kind = OpKind::all_reduce}, ring_all_reduce);
}

TEST(RingAllReduce, DividesAnAverageOnce) {
  run_all({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg}, ring_all_reduce);
}

TEST(RingAllReduce, EvaluatesTheSameExpressionAtAllRanks) {
  expect_one_expression({.kind = OpKind::all_reduce, .counts = {41}}, ring_all_reduce);
}

TEST(RingAllReduce, SendsAsFewBytesAsIsPossible) {
  constexpr std::uint32_t kSize = 5;
  const std::uint64_t count = 100;
  const CollectiveArgs args =
      args_of({.kind = OpKind::all_reduce, .size = kSize, .counts = {count}}, 2);
  const Schedule schedule = ring_all_reduce(args);
  std::uint64_t sent = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::send) sent += step.from.bytes;
  }
  EXPECT_EQ(sent, 2 * 8 * count * (kSize - 1) / kSize);
  EXPECT_EQ(schedule.scratch_bytes, 0U);
}

TEST(RingAllReduce, NothingWaitsForAWholeStep) {
  const CollectiveArgs args = args_of({.kind = OpKind::all_reduce, .size = 4, .counts = {100}}, 1);
  for (const Step& step : ring_all_reduce(args).steps) EXPECT_TRUE(step.after.empty());
}

}  // namespace
}  // namespace pccl::test
