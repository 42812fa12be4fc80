// The order in which data go round: the given one, unless neighbours in it have no link of their
// own.
//
// Where a neighbour can be reached over a third only, a stretch of the ring is reversed, so
// that its two ends meet others: each reversal leaves fewer such neighbours. Every choice is the
// first that is found, so all members find the same order. Source: Palmer, "The hamiltonian
// problem: hamiltonian cycles in graphs" (1997); it always ends without a bad pair where each can
// reach at least half of the others, and elsewhere with as few as no single reversal can mend.
#include <algorithm>
#include <utility>

#include "collectives/schedule.h"

namespace pccl {

std::vector<std::uint32_t> ring_order(std::vector<std::uint32_t> order, const RankPairs& apart) {
  const std::size_t size = order.size();
  if (size < 4 || apart.empty()) return order;  // three are all neighbours of each other
  const auto bad = [&](std::uint32_t a, std::uint32_t b) {
    return apart.contains({std::min(a, b), std::max(a, b)});
  };
  const auto at = [&](std::size_t i) { return order[i % size]; };
  const auto mend = [&](std::size_t i) {
    // Turning the stretch from i + 1 to j makes neighbours of i and j, and of i + 1 and j + 1.
    for (std::size_t j = i + 2; j < i + size - 1; ++j) {
      const int before = 1 + (bad(at(j), at(j + 1)) ? 1 : 0);
      const int after = (bad(at(i), at(j)) ? 1 : 0) + (bad(at(i + 1), at(j + 1)) ? 1 : 0);
      if (after >= before) continue;
      for (std::size_t a = i + 1, b = j; a < b; ++a, --b)
        std::swap(order[a % size], order[b % size]);
      return true;
    }
    return false;
  };
  for (bool better = true; better;) {
    better = false;
    for (std::size_t i = 0; i < size && !better; ++i) {
      better = bad(at(i), at(i + 1)) && mend(i);
    }
  }
  return order;
}

}  // namespace pccl
