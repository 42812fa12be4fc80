#include "base/limits.h"
#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

// Pieces are 128 KiB at least: 40,000 elements are three of them, with a segment of two pages.
constexpr std::uint64_t kThreePieces = 40'000;
constexpr std::uint64_t kSegment = 8192;

TEST(Chain, BroadcastsTheRootsBufferInEveryInterleaving) {
  run_all({.kind = OpKind::broadcast}, chain_broadcast);
}

TEST(Chain, ReducesToTheRootAndLeavesTheOthersBuffersUnchanged) {
  run_all({.kind = OpKind::reduce}, chain_reduce);
}

TEST(Chain, BroadcastsInPieces) {
  for (const std::uint32_t size : {2U, 3U, 6U}) {
    run_and_check({.kind = OpKind::broadcast,
                   .size = size,
                   .root = 1,
                   .counts = {kThreePieces},
                   .segment_bytes = kSegment},
                  chain_broadcast);
  }
}

TEST(Chain, DividesAnAverageOnceInPieces) {
  for (const std::uint32_t size : {2U, 3U, 6U}) {
    run_and_check({.kind = OpKind::reduce,
                   .reduce = ReduceOp::avg,
                   .size = size,
                   .root = 1,
                   .in_place = true,
                   .counts = {kThreePieces},
                   .segment_bytes = kSegment},
                  chain_reduce);
  }
}

TEST(Chain, TakesASlotAgainOnlyWhenWhatItHeldHasBeenSent) {
  // 20 pieces for 16 slots.
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    run_and_check({.kind = OpKind::reduce,
                   .size = 4,
                   .counts = {20 * 128 * 1024 / 8},
                   .segment_bytes = 65536,
                   .seed = seed},
                  chain_reduce);
  }
}

TEST(Chain, NeedsBoundedScratchAndBoundedlyManySteps) {
  constexpr std::uint64_t kBytes = 64ULL << 30;
  CollectiveArgs args = args_of({.kind = OpKind::reduce, .size = 8}, 3);
  args.input_bytes = {kBytes};
  const Schedule schedule = chain_reduce(args);
  EXPECT_LE(schedule.steps.size(), 2048U);
  EXPECT_LE(schedule.scratch_bytes, kBytes / 64);
  args.input_bytes = {1ULL << 30};
  EXPECT_LE(chain_reduce(args).scratch_bytes, 16 * kSegmentBytesMax);
}

TEST(Chain, CutsAtLeast128KiBAndNeverMoreThanASegmentUntilThereAreManyPieces) {
  EXPECT_EQ(chain_pieces(0, 8, 4), 0U);
  EXPECT_EQ(chain_pieces(8, 8, 4), 1U);
  EXPECT_EQ(chain_pieces(512 << 10, 8, 4), 4U);
  EXPECT_EQ(chain_pieces(64 << 20, 8, 4), 64U);
  EXPECT_EQ(chain_pieces(1ULL << 40, 8, 4), 1024U);
}

}  // namespace
}  // namespace pccl::test
