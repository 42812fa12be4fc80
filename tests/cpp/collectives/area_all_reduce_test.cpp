#include "collectives/algorithms.h"
#include "runner.h"

namespace pccl::test {
namespace {

Schedule in_small_segments(const CollectiveArgs& args) {
  return area_all_reduce(args, Case{}.segment_bytes);
}

/// Parts of many more segments than are under way.
Case large() { return {.kind = OpKind::all_reduce, .size = 4, .counts = {400}}; }

Error check(const Case& c, const std::function<void(Schedule&)>& spoil) {
  std::vector<CollectiveArgs> args;
  std::vector<Schedule> schedules;
  for (std::uint32_t r = 0; r < c.size; ++r) {
    args.push_back(args_of(c, r));
    schedules.push_back(in_small_segments(args.back()));
    spoil(schedules.back());
  }
  return check_schedules(schedules, args, c.in_place);
}

TEST(AreaAllReduce, AddsInEveryInterleaving) {
  run_all({.kind = OpKind::all_reduce}, in_small_segments);
  run_all({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg}, in_small_segments);
}

TEST(AreaAllReduce, AddsPartsOfManySegmentsInEveryInterleaving) {
  for (Case c = large(); c.seed <= 20; ++c.seed) {
    c.size = 2 + static_cast<std::uint32_t>(c.seed) % 4;
    c.in_place = c.seed % 2 == 0;
    run_and_check(c, in_small_segments);
    if (HasFatalFailure()) return;
  }
}

TEST(AreaAllReduce, EvaluatesTheSameExpressionAtAllRanks) {
  expect_one_expression({.kind = OpKind::all_reduce, .counts = {400}}, in_small_segments);
}

TEST(AreaAllReduce, HoldsAsManySlotsAsAreUnderWayWhateverTheSize) {
  for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1} << 32}) {
    const CollectiveArgs args =
        args_of({.kind = OpKind::all_reduce, .size = 4, .counts = {count}}, 1);
    const Schedule schedule = area_all_reduce(args);
    EXPECT_EQ(schedule.area_rows, 4U);
    EXPECT_EQ(schedule.scratch_bytes, 0U);
    EXPECT_EQ(schedule.steps.size(), 23U);
  }
  EXPECT_LE(kAreaRanksMax * kAreaDepth, kAreaSlots) << "an area holds one at least";
}

TEST(AreaAllReduce, EveryWaitForAFreeSlotIsNeeded) {
  EXPECT_FALSE(check(large(), [](Schedule&) {}).failed());
  const std::vector<Step> steps = in_small_segments(args_of(large(), 0)).steps;
  std::size_t waits = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::vector<Behind>& behind = steps[s].behind;
    for (std::size_t i = 0; i < behind.size(); ++i) {
      if (behind[i].segments == 0) continue;  // what add_borrowed adds
      ++waits;
      const Error error = check(large(), [&](Schedule& schedule) {
        auto& spoilt = schedule.steps[s].behind;
        spoilt.erase(spoilt.begin() + static_cast<std::ptrdiff_t>(i));
      });
      const bool sent = steps[behind[i].step].kind == StepKind::send;
      // Of a send the matching receive tells as well, since the other rank goes on by it.
      EXPECT_TRUE(sent || error.failed()) << "step " << s << " behind " << behind[i].step;
    }
  }
  EXPECT_EQ(waits, 3 * 2U + 4U);
}

TEST(AreaAllReduce, ARankThatDoesNotWaitForTheLastReadersIsSeen) {
  const Error error = check(large(), [](Schedule& schedule) {
    std::erase_if(schedule.steps, [](const Step& step) { return step.channel == 2; });
  });
  EXPECT_NE(error.text.find("before its area has been read"), std::string::npos) << error.text;
}

}  // namespace
}  // namespace pccl::test
