// A small operation does not wait for the end of a large one, no size waits for ever, operations of
// a size keep their order, and nothing is lost, doubled or taken after its memory has gone.
#include "transport/bulk_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/random.h"

namespace pccl {
namespace {

constexpr std::uint32_t kPieceBytes = 1U << 20;
constexpr std::size_t kBatchPieces = BulkQueue::kBatchBytes / kPieceBytes;

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

TEST(BulkQueue, OperationsOfASizeGoInTheirOrder) {
  for (const std::size_t pieces : {1UL, kBatchPieces, 3 * kBatchPieces, 100 * kBatchPieces}) {
    BulkQueue queue;
    for (MemoryToken token = 1; token <= 3; ++token) push_pieces(queue, token, pieces);
    EXPECT_EQ(runs_of(queue), (Runs{{1, pieces}, {2, pieces}, {3, pieces}}));
  }
}

TEST(BulkQueue, ASmallOperationWaitsForOneBatchOfALargeOneAtMost) {
  for (std::size_t sent = 0; sent < 4 * kBatchPieces; ++sent) {
    BulkQueue queue;
    push_pieces(queue, 1, 1000);
    for (std::size_t i = 0; i < sent; ++i) static_cast<void>(queue.pop());
    push_pieces(queue, 2, 1);
    std::size_t before = 0;
    while (queue.pop().token == 1) ++before;
    EXPECT_LE(before, kBatchPieces) << sent;
  }
}

TEST(BulkQueue, EverySecondBatchGoesRoundTheLargerSizes) {
  BulkQueue queue;
  push_pieces(queue, 1, 300);
  push_pieces(queue, 2, 20);
  push_pieces(queue, 3, 2 * kBatchPieces);
  push_pieces(queue, 4, 2);
  EXPECT_EQ(runs_of(queue), (Runs{{4, 2},
                                  {3, kBatchPieces - 2},
                                  {2, kBatchPieces},
                                  {3, kBatchPieces},
                                  {1, kBatchPieces},
                                  {3, 2},
                                  {2, kBatchPieces - 2},
                                  {1, kBatchPieces},
                                  {2, kBatchPieces},
                                  {1, kBatchPieces},
                                  {2, kBatchPieces},
                                  {1, kBatchPieces},
                                  {2, kBatchPieces},
                                  {1, kBatchPieces},
                                  {2, 2},
                                  {1, 300 - 5 * kBatchPieces}}));
}

TEST(BulkQueue, AnOperationThatAlwaysHasALittleMoreKeepsNobodyWaiting) {
  BulkQueue queue;
  push_pieces(queue, 1, 2);
  push_pieces(queue, 2, 1);
  std::size_t before = 0;
  while (queue.pop().token == 1) {
    push_pieces(queue, 1, 1);
    ++before;
  }
  EXPECT_LE(before, kBatchPieces);
}

TEST(BulkQueue, ALargeOperationHasEverySecondBatchBesideManySmallOnes) {
  BulkQueue queue;
  push_pieces(queue, 1, 1000);
  for (MemoryToken token = 2; token < 102; ++token) push_pieces(queue, token, 1);
  std::size_t large = 0;
  for (std::size_t i = 1; i <= 100; ++i) {
    large += queue.pop().token == 1 ? 1U : 0U;
    EXPECT_GE(2 * (large + kBatchPieces), i);
    EXPECT_LE(2 * large, i + 2 * kBatchPieces);
  }
}

TEST(BulkQueue, AnOperationThatIsGivenUpLeavesNothing) {
  BulkQueue queue;
  push_pieces(queue, 1, 20);
  push_pieces(queue, 2, 20);
  push_pieces(queue, 3, 1);
  for (std::size_t i = 0; i < 3; ++i) static_cast<void>(queue.pop());  // the first: the small one's
  EXPECT_EQ(queue.cancel(1), std::size_t{18} * kPieceBytes);
  EXPECT_EQ(queue.cancel(1), 0U);
  EXPECT_EQ(runs_of(queue), (Runs{{2, 20}}));
  push_pieces(queue, 1, 1);
  queue.clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.cancel(1), 0U);
}

/// What the queue should know of an operation.
struct Known {
  std::uint64_t pushed = 0;
  std::uint64_t popped = 0;
  std::uint64_t brought = 0;  // since it last had nothing that waited
  std::uint64_t place = 0;    // among those of its size
  [[nodiscard]] std::uint64_t waits() const { return pushed - popped; }
  [[nodiscard]] int size() const {
    int size = 0;
    for (std::uint64_t pieces = kBatchPieces; brought > pieces && size < 4; pieces *= 4) ++size;
    return size;
  }
};

/// Random operations that come, go on and are given up: each piece once and in its order, the first
/// that has come of its size, of the smallest size in every second batch, and no size waits long.
TEST(BulkQueue, KeepsItsOrdersWhateverComes) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    BulkQueue queue;
    std::map<MemoryToken, Known> all;
    std::uint64_t places = 0;
    std::size_t others = 0;  // pieces, one after the other, that were not of the smallest size
    std::array<std::size_t, BulkQueue::kSizes> passed{};  // of others, while one of a size waited
    const auto none = [&](auto&& before) {
      return std::none_of(all.begin(), all.end(), [&](const auto& other) {
        return other.second.waits() > 0 && before(other.second);
      });
    };
    for (int step = 0; step < 600; ++step) {
      const MemoryToken token = 1 + random.below(6);
      const std::uint64_t kind = random.below(20);
      if (kind == 0) {
        Known& known = all[token];
        ASSERT_EQ(queue.cancel(token), known.waits() * kPieceBytes) << seed;
        known.popped = known.pushed;
      } else if (kind < 8) {
        Known& known = all[token];
        const std::size_t pieces = 1 + random.below(random.below(8) == 0 ? 100 : 6);
        push_pieces(queue, token, pieces, known.pushed);
        if (known.waits() == 0) {
          known.brought = 0;
          known.place = ++places;
        }
        known.pushed += pieces;
        const int before = known.size();
        known.brought += pieces;
        if (known.size() > before) known.place = ++places;
      } else if (!queue.empty()) {
        const Outgoing next = queue.pop();
        Known& known = all[next.token];
        ASSERT_EQ(next.cookie, known.popped) << seed;
        ASSERT_TRUE(none([&](const Known& other) {
          return other.size() == known.size() && other.place < known.place;
        })) << seed;
        const bool smallest = none([&](const Known& other) { return other.size() < known.size(); });
        others = smallest ? 0 : others + 1;
        ASSERT_LE(others, kBatchPieces) << seed;
        for (std::size_t size = 0; size < passed.size(); ++size) {
          const bool is_other = static_cast<std::size_t>(known.size()) != size;
          const bool waits = !none(
              [&](const Known& other) { return static_cast<std::size_t>(other.size()) == size; });
          passed[size] = is_other && waits ? passed[size] + 1 : 0;
          ASSERT_LE(passed[size], 2 * kBatchPieces * BulkQueue::kSizes) << seed;
        }
        ++known.popped;
      }
      ASSERT_EQ(queue.empty(), none([](const Known&) { return true; })) << seed;
    }
  }
}

}  // namespace
}  // namespace pccl
