#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(RingReduceScatter, GivesEachRankItsSumInEveryInterleaving) {
  run_all({.kind = OpKind::reduce_scatter}, ring_reduce_scatter);
}

TEST(RingReduceScatter, DividesAnAverageOnce) {
  run_all({.kind = OpKind::reduce_scatter, .reduce = ReduceOp::avg}, ring_reduce_scatter);
}

TEST(RingReduceScatter, KeepsAtMostTwoChunks) {
  for (std::uint32_t size = 2; size <= 9; ++size) {
    const CollectiveArgs args =
        args_of({.kind = OpKind::reduce_scatter, .size = size, .counts = {10}}, 0);
    EXPECT_EQ(ring_reduce_scatter(args).scratch_bytes, std::min(size - 2, 2U) * 80);
  }
}

}  // namespace
}  // namespace pccl::test
