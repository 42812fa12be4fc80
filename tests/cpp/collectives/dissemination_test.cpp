#include <set>

#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

TEST(Dissemination, EndsInEveryInterleaving) {
  run_all({.kind = OpKind::barrier}, dissemination_barrier);
}

/// Ranks of which `rank` has heard, directly or not, when it leaves, if it was `late` that came
/// last.
bool leaves_without(std::uint32_t size, std::uint32_t late) {
  std::vector<Schedule> schedules;
  for (std::uint32_t r = 0; r < size; ++r) {
    schedules.push_back(dissemination_barrier(args_of({.kind = OpKind::barrier, .size = size}, r)));
  }
  // Run everything that can run while `late` does nothing at all.
  std::vector<std::set<std::uint32_t>> done(size);
  std::set<std::pair<std::uint32_t, std::uint32_t>> sent;  // (receiver, channel)
  for (bool moved = true; moved;) {
    moved = false;
    for (std::uint32_t r = 0; r < size; ++r) {
      if (r == late) continue;
      for (std::uint32_t s = 0; s < schedules[r].steps.size(); ++s) {
        const Step& step = schedules[r].steps[s];
        bool can = !done[r].contains(s);
        for (const std::uint32_t a : step.after) can = can && done[r].contains(a);
        if (step.kind == StepKind::recv) can = can && sent.contains({r, step.channel});
        if (!can) continue;
        if (step.kind == StepKind::send) sent.insert({step.peer, step.channel});
        done[r].insert(s);
        moved = true;
      }
    }
  }
  for (std::uint32_t r = 0; r < size; ++r) {
    if (r != late && done[r].size() == schedules[r].steps.size()) return true;
  }
  return false;
}

TEST(Dissemination, NobodyLeavesBeforeTheLastHasCome) {
  for (std::uint32_t size = 2; size <= 9; ++size) {
    for (std::uint32_t late = 0; late < size; ++late) {
      EXPECT_FALSE(leaves_without(size, late)) << size << " ranks, " << late << " is late";
    }
  }
}

TEST(Dissemination, TakesLogarithmicallyManyRounds) {
  EXPECT_EQ(dissemination_barrier(args_of({.kind = OpKind::barrier, .size = 9}, 0)).steps.size(),
            8U);
}

}  // namespace
}  // namespace pccl::test
