// Operations that share a link take turns: a small one does not wait for the end of a large one,
// small ones keep their order, and nothing is lost, doubled or taken after its memory has gone.
#include "transport/bulk_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "base/random.h"

namespace pccl {
namespace {

constexpr std::uint32_t kPieceBytes = 1U << 20;
constexpr std::size_t kTurnPieces = BulkQueue::kTurnBytes / kPieceBytes;

void push_pieces(BulkQueue& queue, MemoryToken token, std::size_t pieces, std::uint64_t first = 0) {
  for (std::size_t i = 0; i < pieces; ++i) {
    Outgoing piece;
    piece.frame.payload_bytes = kPieceBytes;
    piece.token = token;
    piece.cookie = first + i;
    queue.push(std::move(piece));
  }
}

/// The tokens of the next pieces: one for each run of pieces, and how many.
std::vector<std::pair<MemoryToken, std::size_t>> runs_of(BulkQueue& queue) {
  std::vector<std::pair<MemoryToken, std::size_t>> runs;
  while (!queue.empty()) {
    const MemoryToken token = queue.pop().token;
    if (runs.empty() || runs.back().first != token) runs.emplace_back(token, 0);
    ++runs.back().second;
  }
  return runs;
}

using Runs = std::vector<std::pair<MemoryToken, std::size_t>>;

TEST(BulkQueue, OperationsNoLargerThanATurnGoInTheirOrder) {
  BulkQueue queue;
  for (MemoryToken token = 1; token <= 4; ++token) push_pieces(queue, token, kTurnPieces);
  EXPECT_EQ(runs_of(queue),
            (Runs{{1, kTurnPieces}, {2, kTurnPieces}, {3, kTurnPieces}, {4, kTurnPieces}}));
}

TEST(BulkQueue, ASmallOperationWaitsForOneTurnOfALargeOne) {
  BulkQueue queue;
  push_pieces(queue, 1, 1000);
  static_cast<void>(queue.pop());
  push_pieces(queue, 2, 2);
  EXPECT_EQ(runs_of(queue), (Runs{{1, kTurnPieces - 1}, {2, 2}, {1, 1000 - kTurnPieces}}));
}

TEST(BulkQueue, LargeOperationsShareTheLinkEvenly) {
  BulkQueue queue;
  push_pieces(queue, 1, 3 * kTurnPieces);
  push_pieces(queue, 2, 2 * kTurnPieces);
  EXPECT_EQ(runs_of(queue), (Runs{{1, kTurnPieces},
                                  {2, kTurnPieces},
                                  {1, kTurnPieces},
                                  {2, kTurnPieces},
                                  {1, kTurnPieces}}));
}

TEST(BulkQueue, AnOperationThatIsGivenUpEndsItsTurnAndLeavesNothing) {
  BulkQueue queue;
  push_pieces(queue, 1, 20);
  push_pieces(queue, 2, 20);
  for (std::size_t i = 0; i < kTurnPieces - 1; ++i) static_cast<void>(queue.pop());
  EXPECT_EQ(queue.cancel(1), (20 - (kTurnPieces - 1)) * std::size_t{kPieceBytes});
  EXPECT_EQ(queue.cancel(1), 0U);
  push_pieces(queue, 3, 1);
  EXPECT_EQ(runs_of(queue), (Runs{{2, kTurnPieces}, {3, 1}, {2, 20 - kTurnPieces}}));
  push_pieces(queue, 1, 1);
  queue.clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.cancel(1), 0U);
}

/// Random operations that come and go: each piece once and in its order, and an operation that
/// waits sees at most one turn of each other one before its own.
TEST(BulkQueue, NobodyWaitsForMoreThanATurnOfEach) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    BulkQueue queue;
    std::map<MemoryToken, std::uint64_t> pushed, popped;
    std::map<MemoryToken, std::map<MemoryToken, std::size_t>> seen;  // while it waited: pieces
    for (int step = 0; step < 400; ++step) {
      const MemoryToken token = 1 + random.below(5);
      const std::uint64_t kind = random.below(20);
      if (kind == 0) {
        const std::uint64_t waits = pushed[token] - popped[token];
        ASSERT_EQ(queue.cancel(token), waits * kPieceBytes) << seed;
        popped[token] = pushed[token];
        seen.erase(token);
      } else if (kind < 8) {
        const std::size_t pieces = 1 + random.below(30);
        push_pieces(queue, token, pieces, pushed[token]);
        pushed[token] += pieces;
        seen.try_emplace(token);
      } else if (!queue.empty()) {
        const Outgoing next = queue.pop();
        ASSERT_EQ(next.cookie, popped[next.token]++) << seed;
        for (auto& [waits, others] : seen) {
          if (waits == next.token) continue;
          ASSERT_LE(++others[next.token], kTurnPieces) << "seed " << seed << ": " << waits;
        }
        seen[next.token].clear();
        if (popped[next.token] == pushed[next.token]) seen.erase(next.token);
      }
      const bool waits = std::any_of(pushed.begin(), pushed.end(),
                                     [&](const auto& of) { return popped[of.first] < of.second; });
      ASSERT_EQ(queue.empty(), !waits) << seed;
    }
  }
}

}  // namespace
}  // namespace pccl
