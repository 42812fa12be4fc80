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

}  // namespace
}  // namespace pccl::test
