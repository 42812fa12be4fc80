#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(Exchange, GivesTheSumAtEveryRankInEveryInterleaving) {
  run_all({.kind = OpKind::all_reduce}, exchange_all_reduce);
}

TEST(Exchange, DividesAnAverageOnce) {
  run_all({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg}, exchange_all_reduce);
}

TEST(Exchange, EvaluatesTheSameExpressionAtAllRanks) {
  for (const bool in_place : {false, true}) {
    expect_one_expression({.kind = OpKind::all_reduce, .in_place = in_place, .counts = {13}},
                          exchange_all_reduce);
  }
}

TEST(Exchange, TakesOneTurnAndScratchOnlyBehindTheSecondRank) {
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    const CollectiveArgs args =
        args_of({.kind = OpKind::all_reduce, .size = 5, .counts = {90}}, rank);
    const Schedule schedule = exchange_all_reduce(args);
    EXPECT_EQ(schedule.scratch_bytes, rank > 1 ? 90 * 8U : 0U);
    for (const Step& step : schedule.steps) EXPECT_LE(step.turn, 1U);
  }
}

}  // namespace
}  // namespace pccl::test
