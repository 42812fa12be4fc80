#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(Pairwise, ExchangesEveryPartInEveryInterleavingAlsoWhereSizesDiffer) {
  run_all({.kind = OpKind::all_to_all}, pairwise_all_to_all);
}

TEST(Pairwise, EveryPairExchangesAMessageEvenIfItIsEmpty) {
  const CollectiveArgs args = args_of({.kind = OpKind::all_to_all, .size = 5, .counts = {0}}, 1);
  EXPECT_EQ(pairwise_all_to_all(args).steps.size(), 8U);
}

}  // namespace
}  // namespace pccl::test
