#include "membership/peer_ops.h"

#include <gtest/gtest.h>

#include "base/assert.h"
#include "cast.h"

namespace pccl::peer {
namespace {

using cast::all;
using cast::member;

/// In epoch 1.1 with peers 1, 2 and 3, in step 0.
State running() {
  State s;
  s.self = member(1);
  s.connected = true;
  s.started = Epoch{EpochId::make(1, 1), {member(1), member(2), member(3)}, {}, true};
  s.accepted = s.started;
  for (const Member& m : s.started->members) {
    s.here.insert(m.peer());
    s.group_of[m.peer()] = 0;
    s.pinned.push_back(m.peer());
  }
  s.numbered_in = s.started->id;
  return s;
}

Actions issue_one(State& s, LossClass loss = LossClass::replay, PeerId root = {}) {
  Actions out;
  issue(s, Issued{loss, root}, out);
  return out;
}

/// The next epoch is in force, without peer 3.
std::optional<Epoch> lose_three(State& s) {
  std::optional<Epoch> before = s.started;
  s.started = Epoch{EpochId::make(1, 2), {member(1), member(2)}, before->id, false};
  s.here.erase(PeerId{3});
  return before;
}

Actions decide(State& s, const Verdict& verdict, const std::optional<Epoch>& before) {
  Actions out;
  s.failure = verdict.failure;
  decide_all(s, verdict, before, out);
  return out;
}

/// Of a run without boundaries that has lost peer 3 while two operations were in flight.
State after_a_loss() {
  State s = running();
  static_cast<void>(issue_one(s));
  static_cast<void>(issue_one(s));
  const auto before = lose_three(s);
  static_cast<void>(decide(s, Verdict{}, before));
  return s;
}

TEST(PeerOps, a_report_has_as_many_answers_about_boundaries_as_the_wire_takes) {
  State s = running();
  for (std::uint64_t step = 0; step < 3 * kReportFlagsMax; ++step) s.flags[step] = false;
  const Report report = report_of(s);
  ASSERT_EQ(report.flags.size(), kReportFlagsMax);
  EXPECT_EQ(report.flags.front().step, 0U) << "those that are needed next";
}

TEST(PeerOps, a_committed_operation_leaves_nothing_behind) {
  State s = running();
  Actions out;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    static_cast<void>(issue_one(s));
    EXPECT_TRUE(complete(s, OpKey{0, i}));
    commit(s, OpKey{0, i}, out);
  }
  EXPECT_TRUE(s.ops.empty());
  EXPECT_EQ(s.committed_below, (OpKey{0, 1000}));
  EXPECT_EQ(s.pending, 0U);
}

TEST(PeerOps, commits_out_of_order_are_reported_one_by_one) {
  State s = running();
  Actions out;
  for (int i = 0; i < 3; ++i) static_cast<void>(issue_one(s));
  EXPECT_TRUE(complete(s, OpKey{0, 2}));
  EXPECT_TRUE(complete(s, OpKey{0, 1}));
  commit(s, OpKey{0, 2}, out);
  const Report report = report_of(s);
  EXPECT_EQ(report.committed.below, (OpKey{0, 0}));
  EXPECT_EQ(report.committed.also, std::vector<OpKey>{(OpKey{0, 2})});
  EXPECT_EQ(report.done, std::vector<OpKey>{(OpKey{0, 1})});
  EXPECT_EQ(report.issued, (OpKey{0, 3}));
}

TEST(PeerOps, a_commit_of_what_is_not_complete_here_is_a_broken_invariant) {
  State s = running();
  static_cast<void>(issue_one(s));
  Actions out;
  EXPECT_THROW(commit(s, OpKey{0, 0}, out), BrokenInvariant);
}

TEST(PeerOps, an_outcome_comes_once) {
  State s = running();
  static_cast<void>(issue_one(s));
  Actions out;
  EXPECT_TRUE(complete(s, OpKey{0, 0}));
  EXPECT_FALSE(complete(s, OpKey{0, 0}));
  commit(s, OpKey{0, 0}, out);
  commit(s, OpKey{0, 0}, out);
  EXPECT_EQ(all<CommitOp>(out).size(), 1U);
}

TEST(PeerOps, a_start_restores_latest_first_and_runs_again_in_order) {
  State s = running();
  Actions ignored;
  for (int i = 0; i < 3; ++i) static_cast<void>(issue_one(s));
  EXPECT_TRUE(complete(s, OpKey{0, 0}));
  const auto before = lose_three(s);
  Verdict verdict;
  verdict.committed.also = {OpKey{0, 0}};
  const Actions out = decide(s, verdict, before);
  ASSERT_EQ(out.size(), 5U);
  EXPECT_EQ(std::get<RestoreOp>(out[0]).op, (OpKey{0, 2}));
  EXPECT_EQ(std::get<RestoreOp>(out[1]).op, (OpKey{0, 1}));
  EXPECT_EQ(std::get<CommitOp>(out[2]).op, (OpKey{0, 0}));
  EXPECT_EQ(std::get<RunOp>(out[3]).op, (OpKey{0, 1}));
  EXPECT_EQ(std::get<RunOp>(out[4]).op, (OpKey{0, 2}));
}

TEST(PeerOps, what_needs_everybody_fails_with_the_names_of_the_lost) {
  State s = running();
  static_cast<void>(issue_one(s));
  static_cast<void>(issue_one(s, LossClass::needs_all));
  static_cast<void>(issue_one(s));
  const auto before = lose_three(s);
  const Actions out = decide(s, Verdict{}, before);
  const auto failed = all<FailOp>(out);
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_EQ(failed[0].op, (OpKey{0, 1}));
  EXPECT_EQ(failed[0].error.code, ErrorCode::peer_lost);
  EXPECT_EQ(failed[0].error.text, "lost: rank 2 (0000000000000003)");
  EXPECT_EQ(failed[1].error, failed[0].error) << "what follows fails with the same error";
  EXPECT_EQ(all<RunOp>(out).size(), 1U) << "what came before is replayed";
}

TEST(PeerOps, what_needs_its_root_is_replayed_while_the_root_is_here) {
  State s = running();
  static_cast<void>(issue_one(s, LossClass::needs_root, PeerId{2}));
  const auto before = lose_three(s);
  EXPECT_EQ(all<RunOp>(decide(s, Verdict{}, before)).size(), 1U);
  EXPECT_EQ(all<FailOp>(issue_one(s, LossClass::needs_root, PeerId{3})).size(), 1U);
  EXPECT_EQ(all<FailOp>(issue_one(s)).size(), 1U) << "issued after the failure";
}

TEST(PeerOps, an_operation_that_others_went_on_without_fails_as_a_mismatch) {
  State s = running();
  static_cast<void>(issue_one(s));
  const auto before = lose_three(s);
  Verdict verdict;
  verdict.committed.below = OpKey{1, 0};
  const Actions out = decide(s, verdict, before);
  EXPECT_EQ(all<RestoreOp>(out).size(), 1U);
  EXPECT_EQ(all<FailOp>(out).at(0).error.code, ErrorCode::mismatch);
}

TEST(PeerOps, without_boundaries_ranks_change_when_the_first_operation_of_a_new_epoch_returns) {
  State s = after_a_loss();
  Actions out;
  EXPECT_TRUE(complete(s, OpKey{0, 1}));
  commit(s, OpKey{0, 1}, out);
  returned(s, OpKey{0, 1}, s.started->id, out);
  EXPECT_TRUE(all<Renumber>(out).empty()) << "an older one is pending: the caller waits for it";
  EXPECT_TRUE(complete(s, OpKey{0, 0}));
  commit(s, OpKey{0, 0}, out);
  EXPECT_TRUE(all<Renumber>(out).empty()) << "committed, but its caller does not know yet";
  returned(s, OpKey{0, 0}, s.started->id, out);
  ASSERT_EQ(all<Renumber>(out).size(), 1U);
  EXPECT_EQ(all<Renumber>(out)[0].pinned, (std::vector<PeerId>{PeerId{1}, PeerId{2}}));
  EXPECT_EQ(s.pinned, all<Renumber>(out)[0].pinned);
}

TEST(PeerOps, ranks_change_with_a_later_operation_where_the_first_one_is_not_waited_for) {
  State s = after_a_loss();
  Actions out;
  for (const OpKey key : {OpKey{0, 0}, OpKey{0, 1}}) {
    EXPECT_TRUE(complete(s, key));
    commit(s, key, out);
  }
  returned(s, OpKey{0, 1}, s.started->id, out);
  ASSERT_EQ(all<Renumber>(out).size(), 1U);
  EXPECT_EQ(all<Renumber>(out)[0].pinned, (std::vector<PeerId>{PeerId{1}, PeerId{2}}));
  returned(s, OpKey{0, 0}, s.started->id, out);
  EXPECT_EQ(all<Renumber>(out).size(), 1U) << "it is waited for after all: nothing is left to say";
}

TEST(PeerOps, a_return_brings_no_numbering_of_an_epoch_newer_than_its_operation) {
  State s = running();
  Actions out;
  for (int i = 0; i < 2; ++i) static_cast<void>(issue_one(s));
  const EpochId first = s.started->id;
  EXPECT_TRUE(complete(s, OpKey{0, 1}));
  commit(s, OpKey{0, 1}, out);  // before the loss, and others may have returned from it
  EXPECT_EQ(all<CommitOp>(out)[0].in, first);
  const auto before = lose_three(s);
  static_cast<void>(decide(s, Verdict{}, before));
  EXPECT_TRUE(complete(s, OpKey{0, 0}));
  commit(s, OpKey{0, 0}, out);
  returned(s, OpKey{0, 1}, first, out);
  EXPECT_TRUE(all<Renumber>(out).empty());
  returned(s, OpKey{0, 0}, s.started->id, out);
  EXPECT_EQ(all<Renumber>(out).size(), 1U);
}

TEST(PeerOps, the_return_of_a_refused_call_changes_no_rank) {
  State s = after_a_loss();
  Actions out;
  EXPECT_TRUE(complete(s, OpKey{0, 0}));
  commit(s, OpKey{0, 0}, out);
  returned(s, kNoOp, s.started->id, out);
  EXPECT_TRUE(all<Renumber>(out).empty());
  returned(s, OpKey{0, 0}, s.started->id, out);
  EXPECT_EQ(all<Renumber>(out).size(), 1U);
}

TEST(PeerOps, with_boundaries_the_numbering_stays_until_one_votes) {
  State s = running();
  s.has_boundaries = true;
  Actions out;
  static_cast<void>(issue_one(s));
  const auto before = lose_three(s);
  static_cast<void>(decide(s, Verdict{}, before));
  EXPECT_TRUE(complete(s, OpKey{0, 0}));
  commit(s, OpKey{0, 0}, out);
  returned(s, OpKey{0, 0}, s.started->id, out);
  EXPECT_TRUE(all<Renumber>(out).empty());
}

TEST(PeerOps, a_failure_from_the_master_fails_what_is_pending_and_what_follows) {
  State s = running();
  Actions out;
  for (int i = 0; i < 3; ++i) static_cast<void>(issue_one(s));
  EXPECT_TRUE(complete(s, OpKey{0, 0}));
  fail_from(s, Failure{OpKey{0, 1}, Error{ErrorCode::mismatch, "x"}}, out);
  EXPECT_EQ(all<FailOp>(out).size(), 2U);
  commit(s, OpKey{0, 2}, out);
  EXPECT_TRUE(all<CommitOp>(out).empty()) << "failed already";
  commit(s, OpKey{0, 0}, out);
  EXPECT_EQ(all<CommitOp>(out).size(), 1U);
  EXPECT_EQ(s.committed_below, (OpKey{0, 1}));
  EXPECT_EQ(report_of(s).failure->from, (OpKey{0, 1}));
}

}  // namespace
}  // namespace pccl::peer
