#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(Direct, ReduceScattersInEveryInterleaving) {
  run_all({.kind = OpKind::reduce_scatter}, direct_reduce_scatter);
}

TEST(Direct, DividesAnAverageOnce) {
  run_all({.kind = OpKind::reduce_scatter, .reduce = ReduceOp::avg}, direct_reduce_scatter);
}

TEST(Direct, GathersAtAllInEveryInterleaving) {
  run_all({.kind = OpKind::all_gather}, direct_all_gather);
}

TEST(Direct, GathersAtTheRootInEveryInterleaving) {
  run_all({.kind = OpKind::gather}, direct_gather);
}

TEST(Direct, ScattersFromTheRootInEveryInterleaving) {
  run_all({.kind = OpKind::scatter}, direct_scatter);
}

TEST(Direct, BroadcastsReducesAndMeetsInEveryInterleaving) {
  run_all({.kind = OpKind::broadcast}, direct_broadcast);
  run_all({.kind = OpKind::reduce}, direct_reduce);
  run_all({.kind = OpKind::reduce, .reduce = ReduceOp::avg}, direct_reduce);
  run_all({.kind = OpKind::barrier}, direct_barrier);
}

TEST(Direct, ReducesAtAllInEveryInterleaving) {
  run_all({.kind = OpKind::all_reduce}, direct_all_reduce);
}

TEST(Direct, AnAllReduceDividesAnAverageOnce) {
  run_all({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg}, direct_all_reduce);
}

TEST(Direct, AnAllReduceEvaluatesTheSameExpressionAtAllRanks) {
  expect_one_expression({.kind = OpKind::all_reduce, .counts = {40}}, direct_all_reduce);
}

TEST(Direct, AnAllReduceTakesTwoTurns) {
  const CollectiveArgs args = args_of({.kind = OpKind::all_reduce, .size = 9, .counts = {90}}, 4);
  std::uint64_t sent = 0;
  for (const Step& step : direct_all_reduce(args).steps) {
    EXPECT_LE(step.turn, 2U);
    if (step.kind == StepKind::send) sent += step.from.bytes;
  }
  EXPECT_EQ(sent, 2 * 8 * 80U);
}

}  // namespace
}  // namespace pccl::test
