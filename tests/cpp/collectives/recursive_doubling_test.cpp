#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(RecursiveDoubling, GivesTheSumAtEveryRankInEveryInterleaving) {
  run_all({.kind = OpKind::all_reduce}, recursive_doubling_all_reduce);
}

TEST(RecursiveDoubling, DividesAnAverageOnce) {
  run_all({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg}, recursive_doubling_all_reduce);
}

TEST(RecursiveDoubling, EvaluatesTheSameExpressionAtAllRanks) {
  expect_one_expression({.kind = OpKind::all_reduce, .counts = {13}},
                        recursive_doubling_all_reduce);
}

TEST(RecursiveDoubling, TakesLogarithmicallyManyMessages) {
  const CollectiveArgs args = args_of({.kind = OpKind::all_reduce, .size = 8}, 3);
  EXPECT_EQ(recursive_doubling_all_reduce(args).steps.size(), 6U);
}

}  // namespace
}  // namespace pccl::test
