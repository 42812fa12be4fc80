#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(Tree, BroadcastsTheRootsBufferInEveryInterleaving) {
  run_all({.kind = OpKind::broadcast}, tree_broadcast);
}

TEST(Tree, ReducesToTheRootAndLeavesTheOthersBuffersUnchanged) {
  run_all({.kind = OpKind::reduce}, tree_reduce);
}

TEST(Tree, DividesAnAverageOnce) {
  run_all({.kind = OpKind::reduce, .reduce = ReduceOp::avg}, tree_reduce);
}

TEST(Tree, RootSendsToLogarithmicallyManyRanks) {
  std::size_t sends = 0;
  const CollectiveArgs args = args_of({.kind = OpKind::broadcast, .size = 9, .root = 4}, 4);
  for (const Step& step : tree_broadcast(args).steps) sends += step.kind == StepKind::send ? 1 : 0;
  EXPECT_EQ(sends, 4U);
}

TEST(Tree, LeavesAndTheRootNeedNoScratch) {
  const Case c{.kind = OpKind::reduce, .size = 4, .counts = {10}};
  EXPECT_EQ(tree_reduce(args_of(c, 0)).scratch_bytes, 0U);
  EXPECT_EQ(tree_reduce(args_of(c, 1)).scratch_bytes, 0U);
  EXPECT_EQ(tree_reduce(args_of(c, 2)).scratch_bytes, 80U);
}

}  // namespace
}  // namespace pccl::test
