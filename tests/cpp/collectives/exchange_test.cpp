#include "base/limits.h"
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

TEST(Exchange, OfTwoSendsPiecesAndOverwritesEachOnlyWhenItHasBeenSent) {
  constexpr std::uint64_t kCount = (5U << 17) + 3;  // 5 MiB and three elements of 8 bytes
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const CollectiveArgs args =
        args_of({.kind = OpKind::all_reduce, .size = 2, .counts = {kCount}}, rank);
    const Schedule schedule = exchange_all_reduce(args);
    ASSERT_EQ(schedule.steps.size(), 12U);
    EXPECT_EQ(schedule.scratch_bytes, 0U);
    std::uint64_t sent = 0;
    for (std::size_t i = 0; i < schedule.steps.size(); i += 2) {
      const Step& send = schedule.steps[i];
      const Step& receive = schedule.steps[i + 1];
      EXPECT_EQ(send.kind, StepKind::send);
      EXPECT_EQ(send.from.offset, sent);
      EXPECT_LE(send.from.bytes, kSegmentBytesMax);
      EXPECT_EQ(receive.kind, StepKind::recv_reduce);
      EXPECT_EQ(receive.to.offset, sent);
      EXPECT_EQ(receive.after, std::vector<std::uint32_t>{static_cast<std::uint32_t>(i)});
      EXPECT_EQ(receive.turn, 1U);
      sent += send.from.bytes;
    }
    EXPECT_EQ(sent, kCount * 8);
  }
  for (const bool in_place : {false, true}) {
    run_and_check({.kind = OpKind::all_reduce,
                   .size = 2,
                   .in_place = in_place,
                   .counts = {kCount},
                   .segment_bytes = kSegmentBytesMax / 2},
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
