#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(RingAllGather, GivesEveryPartToEveryRankInEveryInterleaving) {
  run_all({.kind = OpKind::all_gather}, ring_all_gather);
}

TEST(RingAllGather, SpeaksToItsNeighboursOnly) {
  const CollectiveArgs args = args_of({.kind = OpKind::all_gather, .size = 6, .counts = {10}}, 5);
  for (const Step& step : ring_all_gather(args).steps) {
    if (step.kind != StepKind::copy) {
      EXPECT_EQ(step.peer, step.kind == StepKind::send ? 0U : 4U);
    }
  }
}

}  // namespace
}  // namespace pccl::test
