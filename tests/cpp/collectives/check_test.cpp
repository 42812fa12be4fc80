#include "check.h"

#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

struct Whole {
  std::vector<Schedule> schedules;
  std::vector<CollectiveArgs> args;
  [[nodiscard]] std::string error(bool in_place = true) const {
    return check_schedules(schedules, args, in_place).text;
  }
};

Whole whole(const Case& c, const Algorithm& build) {
  Whole w;
  for (std::uint32_t r = 0; r < c.size; ++r) {
    w.args.push_back(args_of(c, r));
    w.schedules.push_back(build(w.args.back()));
  }
  return w;
}

Whole doubling() {
  return whole({.kind = OpKind::all_reduce, .size = 4, .counts = {10}},
               recursive_doubling_all_reduce);
}

TEST(Check, AcceptsWhatIsRight) { EXPECT_EQ(doubling().error(), ""); }

TEST(Check, FindsASendThatNobodyReceives) {
  Whole w = doubling();
  w.schedules[1].steps[0].channel = 77;
  EXPECT_NE(w.error().find("nobody receives"), std::string::npos) << w.error();
}

TEST(Check, FindsAReceiveThatNobodySends) {
  Whole w = whole({.kind = OpKind::gather, .size = 3, .counts = {4}}, direct_gather);
  w.schedules[2].steps.clear();
  EXPECT_NE(w.error().find("nobody sends"), std::string::npos) << w.error();
}

TEST(Check, FindsAChannelThatIsUsedTwice) {
  Whole w = doubling();
  w.schedules[0].steps.push_back(w.schedules[0].steps[0]);
  EXPECT_NE(w.error().find("sends twice"), std::string::npos) << w.error();
}

TEST(Check, FindsSizesThatDiffer) {
  Whole w = whole({.kind = OpKind::gather, .size = 3, .counts = {4}}, direct_gather);
  w.schedules[1].steps[0].from.bytes = 8;
  EXPECT_NE(w.error().find("another size"), std::string::npos) << w.error();
}

TEST(Check, FindsRangesOutsideOfABuffer) {
  Whole w = doubling();
  w.schedules[2].steps[0].from.offset = 8;
  EXPECT_NE(w.error().find("reads outside"), std::string::npos) << w.error();
  w = doubling();
  w.schedules[2].steps[1].to.offset = ~std::uint64_t{0} - 3;
  EXPECT_NE(w.error().find("writes outside"), std::string::npos) << w.error();
}

TEST(Check, FindsAnInputThatIsWritten) {
  Whole w = doubling();
  w.schedules[0].steps[1].to.space = Space::input;
  EXPECT_NE(w.error().find("writes an input"), std::string::npos) << w.error();
}

TEST(Check, FindsAnAccumulatorThatIsOverwrittenBeforeItIsSent) {
  Whole w = doubling();
  w.schedules[3].steps[1].after.clear();
  EXPECT_NE(w.error().find("may use memory"), std::string::npos) << w.error();
}

TEST(Check, FindsASendThatDoesNotWaitForItsData) {
  Whole w = whole({.kind = OpKind::all_reduce, .size = 3, .counts = {9}}, ring_all_reduce);
  w.schedules[1].steps[2].follows = -1;
  EXPECT_NE(w.error().find("may use memory"), std::string::npos) << w.error();
}

TEST(Check, FindsStepsThatWaitForEachOther) {
  Whole w = whole({.kind = OpKind::barrier, .size = 2}, dissemination_barrier);
  for (Schedule& s : w.schedules) {
    std::swap(s.steps[0], s.steps[1]);  // each hears before it speaks
    s.steps[1].after = {0};
  }
  EXPECT_NE(w.error().find("wait for each other"), std::string::npos) << w.error();
}

TEST(Check, FindsStepsThatRefersToLaterOnes) {
  Whole w = doubling();
  w.schedules[0].steps[0].after = {1};
  EXPECT_NE(w.error().find("not earlier"), std::string::npos) << w.error();
  w = doubling();
  w.schedules[0].steps[0].follows = 0;
  EXPECT_NE(w.error().find("not earlier"), std::string::npos) << w.error();
}

TEST(Check, FindsASendThatWaitsForDataOfNoSmallerTurn) {
  // A chain in which each rank counts its pieces only: the ranks of one piece have one turn.
  Whole w =
      whole({.kind = OpKind::broadcast, .size = 3, .root = 0, .counts = {9}}, chain_broadcast);
  EXPECT_EQ(w.error(false), "");
  for (Schedule& s : w.schedules) {
    for (Step& step : s.steps) step.turn = step.turn > 0 ? step.channel + 1 : 0;
  }
  EXPECT_NE(w.error(false).find("no smaller turn"), std::string::npos) << w.error(false);
}

TEST(Check, FindsAReceiveThatWaitsForAStepOfALargerTurn) {
  // It waits for a send of its rank, whose receive at the other rank has turn 3.
  Whole w = doubling();
  w.schedules[0].steps[3].turn = 1;
  EXPECT_NE(w.error().find("of a larger turn"), std::string::npos) << w.error();
}

TEST(Check, FindsAReceiveWithoutATurn) {
  Whole w = doubling();
  w.schedules[0].steps[1].turn = 0;
  EXPECT_NE(w.error().find("receives have turns"), std::string::npos) << w.error();
}

TEST(Check, TheRunnerFindsAMissingDependencyToo) {
  // So that what the runner accepts means something.
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Case c{
        .kind = OpKind::all_reduce, .size = 4, .in_place = true, .counts = {10}, .seed = seed};
    Whole w = whole(c, recursive_doubling_all_reduce);
    for (Schedule& s : w.schedules) s.steps[1].after.clear();
    std::vector<Memory> memory;
    for (std::uint32_t r = 0; r < c.size; ++r) {
      memory.emplace_back(w.args[r], 0, true);
      for (std::uint64_t i = 0; i < 10; ++i) memory[r].input(0)[i] = value_of(r, 0, i);
    }
    ASSERT_TRUE(Runner(w.schedules, memory, 32, seed, {}).run());
    for (std::uint64_t i = 0; i < 10; ++i) wrong += memory[0].output(0)[i] != expected(c, 0, 0, i);
  }
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace pccl::test
