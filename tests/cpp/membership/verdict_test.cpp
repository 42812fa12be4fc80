#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::judged;
using cast::member;
using cast::next_epoch;
using cast::report;

const std::vector<Member> kTwo = {member(1), member(2)};

TEST(Verdict, what_one_survivor_knows_committed_is_committed) {
  State s = in_office({member(1), member(2), member(3)});
  report(s, 1).committed.below = OpKey{1, 2};
  report(s, 2).done = {OpKey{1, 0}, OpKey{1, 1}};
  const Judgement verdict = judged(s, next_epoch(kTwo));
  EXPECT_EQ(verdict.committed.at(0).below, (OpKey{1, 2}));
  EXPECT_TRUE(verdict.commit_steps.contains(1));
}

TEST(Verdict, what_all_survivors_have_completed_is_committed_and_nothing_else) {
  State s = in_office({member(1), member(2), member(3)});
  report(s, 1).done = {OpKey{1, 0}, OpKey{1, 2}};
  report(s, 2).done = {OpKey{1, 1}, OpKey{1, 2}};
  const Judgement verdict = judged(s, next_epoch(kTwo));
  EXPECT_EQ(verdict.committed.at(0).also, std::vector<OpKey>{(OpKey{1, 2})});
}

TEST(Verdict, results_of_different_epochs_are_not_mixed) {
  State s = in_office(kTwo);
  report(s, 1).done = report(s, 2).done = {OpKey{1, 0}};
  report(s, 2).started = EpochId::make(0, 9);
  report(s, 2).started_members = ids_of(kTwo);
  EXPECT_TRUE(judged(s, next_epoch(kTwo)).committed.at(0).also.empty());
}

TEST(Verdict, a_peer_group_that_has_missed_the_last_start_keeps_what_its_mates_have_completed) {
  // Epoch 1.1 was started in peer group 1 only. Its verdict had committed 1.0 in peer group 0, and
  // the only one who heard of it is lost.
  const std::vector<Member> replica = {member(1, "a", 0, 2), member(2, "a", 1, 2)};
  State s = in_office({replica[0], replica[1], member(3, "b", 0, 2), member(4, "b", 1, 2)});
  report(s, 1).started = EpochId::make(0, 9);
  report(s, 1).started_members = ids_of(own(s)->members);
  report(s, 1).done = {OpKey{1, 0}};
  report(s, 2).done = {};
  const Judgement verdict = judged(s, next_epoch(replica));
  EXPECT_TRUE(contains(verdict.committed.at(0), OpKey{1, 0}));
  EXPECT_FALSE(contains(verdict.committed.at(1), OpKey{1, 0}));
}

TEST(Verdict, who_has_begun_nothing_yet_learns_which_boundaries_have_not_voted) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  report(s, 1).step = 3;
  report(s, 2) = Report{};
  const Judgement verdict = judged(s, next_epoch(own(s)->members));
  EXPECT_FALSE(verdict.flags.at(1));
  EXPECT_FALSE(verdict.flags.at(2));
}

TEST(Verdict, a_mate_that_has_left_the_step_testifies_for_its_commits_and_its_flag) {
  State s = in_office(kTwo);
  report(s, 1).step = 2;
  report(s, 1).committed.below = OpKey{2, 0};
  report(s, 2).done = {OpKey{1, 0}};
  const Judgement verdict = judged(s, next_epoch(kTwo));
  EXPECT_TRUE(contains(verdict.committed.at(0), OpKey{1, 0}));
  EXPECT_FALSE(verdict.flags.at(1)) << "the boundary of step 1 did not vote";
}

TEST(Verdict, the_first_failure_counts_and_one_before_the_voted_boundary_does_not) {
  State s = in_office(kTwo, 5);
  report(s, 1).failure = Failure{OpKey{5, 3}, Error{ErrorCode::peer_lost, "x"}};
  report(s, 2).failure = Failure{OpKey{5, 1}, Error{ErrorCode::mismatch, "y"}};
  EXPECT_EQ(judged(s, next_epoch(kTwo)).failure->from, (OpKey{5, 1}));
  report(s, 2).failure->from = OpKey{4, 1};
  EXPECT_EQ(judged(s, next_epoch(kTwo)).failure->from, (OpKey{5, 3}));
}

TEST(Verdict, a_boundary_gives_everybody_the_step_after_the_highest_and_pins_its_members) {
  State s = in_office(kTwo, 3);
  report(s, 1).step = report(s, 2).step = 7;
  const std::vector<Member> three = {member(1), member(2), member(3)};
  const Judgement verdict = judged(s, next_epoch(three, true));
  EXPECT_EQ(verdict.passed, 8U);
  EXPECT_EQ(verdict.pinned, ids_of(three));
  EXPECT_TRUE(verdict.flags.empty());
  EXPECT_FALSE(verdict.failure.has_value());
}

TEST(Verdict, a_failure_of_a_later_step_outlives_a_boundary_at_all_its_members) {
  State s = in_office(kTwo, 3);
  report(s, 1).failure = Failure{OpKey{4, 1}, Error{ErrorCode::mismatch, "x"}};
  EXPECT_EQ(judged(s, next_epoch(kTwo, true)).failure->from, (OpKey{4, 1}));
  report(s, 1).failure->from = OpKey{3, 1};
  EXPECT_FALSE(judged(s, next_epoch(kTwo, true)).failure.has_value());
}

TEST(Verdict, when_nobody_has_begun_the_register_says_where_the_run_stands) {
  State s = in_office(kTwo, 6);
  report(s, 1) = report(s, 2) = Report{};
  EXPECT_EQ(judged(s, next_epoch(kTwo, true)).passed, 6U);
  s.held->over = true;
  EXPECT_EQ(judged(s, next_epoch(kTwo, true)).passed, 0U);
}

TEST(Verdict, what_the_register_knows_of_the_numbering_no_member_changes) {
  State s = in_office(kTwo, 6);
  report(s, 1).pinned = {PeerId{1}};
  report(s, 1).passed = 9;
  EXPECT_EQ(numbering_of(s, next_epoch(kTwo)).passed, 6U);
  EXPECT_EQ(numbering_of(s, next_epoch(kTwo)).pinned, ids_of(kTwo));
  // The register holds a later epoch that nobody has started; between them no boundary has voted.
  s.held->epoch->id = EpochId::make(1, 7);
  s.held->epoch->boundary = false;
  EXPECT_EQ(numbering_of(s, next_epoch(kTwo)).passed, 6U);
  EXPECT_EQ(numbering_of(s, next_epoch(kTwo)).pinned, ids_of(kTwo));
}

TEST(Verdict, of_a_boundary_that_nobody_has_started_most_say_what_was_before) {
  const std::vector<Member> three = {member(1), member(2), member(3)};
  State s = in_office(three, 6);
  s.held->epoch->id = EpochId::make(1, 7);
  s.held->passed = 7;
  s.held->pinned = ids_of(kTwo);
  report(s, 1).pinned = {PeerId{1}};
  EXPECT_EQ(numbering_of(s, next_epoch(three)).passed, 6U);
  EXPECT_EQ(numbering_of(s, next_epoch(three)).pinned, ids_of(three));
}

TEST(Verdict, a_step_that_is_far_ahead_makes_no_endless_list) {
  State s = in_office(kTwo, 1);
  report(s, 1).step = ~std::uint64_t{0};
  const Judgement verdict = judged(s, next_epoch(kTwo));
  EXPECT_LE(verdict.flags.size(), 1U << 16);
  EXPECT_EQ(flags_for(s, verdict, ids_of(kTwo)).size(), kReportFlagsMax);
}

}  // namespace
}  // namespace pccl::master
