// Of schedules that go through areas: a slot is written again when all have read it, and every wait
// for that is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runner.h"

namespace pccl::test {

/// The schedules of all ranks, each spoilt in the same way.
inline Error check_spoilt(const Case& c, const Algorithm& build,
                          const std::function<void(Schedule&)>& spoil) {
  std::vector<CollectiveArgs> args;
  std::vector<Schedule> schedules;
  for (std::uint32_t r = 0; r < c.size; ++r) {
    args.push_back(args_of(c, r));
    schedules.push_back(build(args.back()));
    spoil(schedules.back());
  }
  return check_schedules(schedules, args, c.in_place);
}

/// Takes one wait at a time away at all ranks, which the check must see. `waits`: how many a rank
/// has.
inline void expect_every_wait_is_needed(const Case& c, const Algorithm& build, std::size_t waits) {
  const Error whole = check_spoilt(c, build, [](Schedule&) {});
  EXPECT_FALSE(whole.failed()) << whole.text;
  const std::vector<Step> steps = build(args_of(c, 0)).steps;
  std::size_t seen = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::vector<Behind>& behind = steps[s].behind;
    for (std::size_t i = 0; i < behind.size(); ++i) {
      if (behind[i].segments == 0) continue;  // what add_borrowed adds
      ++seen;
      const Error error = check_spoilt(c, build, [&](Schedule& schedule) {
        auto& spoilt = schedule.steps[s].behind;
        spoilt.erase(spoilt.begin() + static_cast<std::ptrdiff_t>(i));
      });
      const bool sent = steps[behind[i].step].kind == StepKind::send;
      // Of a send the matching receive tells as well, since the other rank goes on by it.
      EXPECT_TRUE(sent || error.failed()) << "step " << s << " behind " << behind[i].step;
    }
  }
  EXPECT_EQ(seen, waits);
}

/// `channel`: of the empty segments at the end.
inline void expect_the_last_readers_are_waited_for(const Case& c, const Algorithm& build,
                                                   std::uint32_t channel) {
  const Error error = check_spoilt(c, build, [&](Schedule& schedule) {
    std::erase_if(schedule.steps, [&](const Step& step) { return step.channel == channel; });
  });
  EXPECT_NE(error.text.find("before its area has been read"), std::string::npos) << error.text;
}

inline void expect_a_slot_less_is_too_few(const Case& c, const Algorithm& build) {
  const Error error = check_spoilt(c, build, [](Schedule& schedule) { --schedule.area_depth; });
  EXPECT_NE(error.text.find("that another rank may still read"), std::string::npos) << error.text;
}

/// Of kAreaRanksMax ranks, whatever the size of their parts. `rows`: of a rank.
inline void expect_few_slots(OpKind kind, const Algorithm& build, std::uint32_t rows) {
  for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1} << 32}) {
    const Schedule schedule =
        build(args_of({.kind = kind, .size = kAreaRanksMax, .counts = {count}}, 1));
    EXPECT_EQ(schedule.area_rows, rows);
    EXPECT_EQ(schedule.scratch_bytes, 0U);
    EXPECT_LE(schedule.area_rows * schedule.area_depth, kAreaSlots) << "an area holds one at least";
  }
}

/// Of an all_gather or a reduce_scatter: 2 to 9 ranks, in and out of place, parts of one size, of
/// none, a few and many segments.
inline void run_equal_parts(Case c, const Algorithm& build) {
  for (c.size = 2; c.size <= 9; ++c.size) {
    for (const std::uint64_t count : {0U, 1U, 2U, 7U, 24U, 101U}) {
      c.counts = {count};
      for (c.seed = 1; c.seed <= 6; ++c.seed) {
        c.in_place = c.seed % 2 == 0;
        run_and_check(c, build);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// Parts of many more segments than are under way.
inline Case many_segments(OpKind kind) { return {.kind = kind, .size = 4, .counts = {60}}; }

}  // namespace pccl::test
