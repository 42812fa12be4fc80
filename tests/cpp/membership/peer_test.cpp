#include "membership/peer.h"

#include <gtest/gtest.h>

#include "cast.h"
#include "membership/peer_ops.h"

namespace pccl::peer {
namespace {

using cast::all;
using cast::member;
using cast::root;

State connected(std::uint64_t id) {
  State s;
  s.self = member(id);
  static_cast<void>(step(s, MasterConnected{}));
  return s;
}

Propose propose(std::uint32_t number, std::vector<Member> members, bool boundary = false,
                std::optional<SyncPlan> sync = std::nullopt) {
  return Propose{Epoch{EpochId::make(1, number), std::move(members), {}, boundary}, std::move(sync),
                 ""};
}

Start start(std::uint32_t number, std::uint64_t passed, std::vector<PeerId> pinned) {
  Start message{EpochId::make(1, number), {}};
  message.verdict.passed = passed;
  message.verdict.pinned = std::move(pinned);
  return message;
}

/// A newcomer that has called refresh.
State at_door(std::uint64_t number, const StateRoot& root) {
  State s = connected(number);
  static_cast<void>(step(s, AtBoundary{VoteKind::refresh, false, true, root}));
  return s;
}

/// A member of epoch 1.1 with peers 1 and 2, in step 0.
State founded() {
  State s = connected(1);
  static_cast<void>(step(s, FromMaster{propose(1, {member(1), member(2)}, true)}));
  static_cast<void>(step(s, LinksUp{EpochId::make(1, 1)}));
  static_cast<void>(step(s, FromMaster{start(1, 0, {PeerId{1}, PeerId{2}})}));
  return s;
}

template <typename T>
std::vector<T> told(const Actions& actions) {
  std::vector<T> found;
  for (const auto& action : all<ToMaster>(actions)) {
    if (const auto* message = std::get_if<T>(&action.message)) found.push_back(*message);
  }
  return found;
}

TEST(Peer, a_proposal_is_answered_when_links_and_state_are_there) {
  State s = at_door(3, root(0, 'z'));
  const SyncPlan plan{root(4, 'a'), {PeerId{1}}, ""};
  const Actions out = step(s, FromMaster{propose(2, {member(1), member(3)}, true, plan)});
  ASSERT_EQ(all<Connect>(out).size(), 1U);
  ASSERT_EQ(all<Fetch>(out).size(), 1U);
  const EpochId id = EpochId::make(1, 2);
  EXPECT_TRUE(told<Ready>(step(s, LinksUp{id})).empty());
  EXPECT_TRUE(step(s, Verified{root(4, 'b')}).empty()) << "another one is asked for";
  EXPECT_EQ(all<Adopt>(step(s, Verified{plan.root})).size(), 1U);
  EXPECT_EQ(told<Ready>(step(s, Fetched{plan.root})).size(), 1U);
  EXPECT_EQ(s.accepted->id, id);
  EXPECT_TRUE(step(s, Verified{plan.root}).empty()) << "what it has promised stays";
}

TEST(Peer, the_round_trips_of_its_links_go_to_the_master_and_those_of_all_come_back) {
  State s = at_door(3, root(0, 'z'));
  static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(3)}, true)}));
  static_cast<void>(step(s, LinksUp{EpochId::make(1, 2), {70'000, 60'000}}));
  static_cast<void>(step(s, FromMaster{propose(3, {member(1), member(3)}, true)}));
  const auto ready = told<Ready>(step(s, LinksUp{EpochId::make(1, 3), {80'000, 90'000}}));
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].trips, (Trips{80'000, 90'000}));
  const Lines of_group{81'000, 82'000, 40};
  const auto begun = all<Configure>(step(s, FromMaster{Start{ready[0].epoch, {}, {}, of_group}}));
  ASSERT_EQ(begun.size(), 1U);
  EXPECT_EQ(begun[0].lines, of_group);
}

TEST(Peer, an_epoch_of_the_same_members_has_a_line_once_for_each_reason) {
  State s = founded();
  std::uint32_t number = 1;
  const auto line_of = [&](const std::string& why, std::vector<Member> members) {
    Propose next = propose(++number, std::move(members), true);
    next.epoch.base = s.started->id;
    next.why = why;
    const std::vector<PeerId> pinned = ids_of(next.epoch.members);
    const EpochId id = next.epoch.id;
    static_cast<void>(step(s, FromMaster{std::move(next)}));
    static_cast<void>(step(s, LinksUp{id}));
    const auto said = all<Say>(step(s, FromMaster{start(number, number, pinned)}));
    return said.empty() ? std::string() : said.at(0).text;
  };
  const std::vector<Member> two{member(1), member(2)};
  EXPECT_EQ(line_of("a boundary votes", two), "epoch 1.2, 2 members: a boundary votes");
  EXPECT_EQ(line_of("a boundary votes", two), "");
  EXPECT_EQ(line_of("anew", two), "epoch 1.4, 2 members: anew");
  EXPECT_EQ(line_of("a boundary votes", two), "epoch 1.5, 2 members: a boundary votes");
  EXPECT_EQ(line_of("rank 2 joined", {member(1), member(2), member(3)}),
            "epoch 1.6, 3 members: rank 2 joined");
  EXPECT_EQ(line_of("a boundary votes", {member(1), member(2), member(3)}),
            "epoch 1.7, 3 members: a boundary votes");
  EXPECT_EQ(line_of("", {member(1), member(2), member(3)}), "") << "an old master";
}

TEST(Peer, what_was_taken_back_is_fetched_again) {
  State s = at_door(3, root(0, 'z'));
  const SyncPlan plan{root(4, 'a'), {PeerId{1}}, ""};
  static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(3)}, true, plan)}));
  EXPECT_EQ(all<Adopt>(step(s, Verified{plan.root})).size(), 1U);
  EXPECT_TRUE(step(s, Verified{plan.root}).empty()) << "it is adopting";
  const Actions out = step(s, Fetched{root(0, 'z')});
  EXPECT_EQ(all<Fetch>(out).size(), 1U);
  EXPECT_TRUE(told<Knock>(out).empty()) << "nothing has changed";
  EXPECT_EQ(all<Adopt>(step(s, Verified{plan.root})).size(), 1U);
}

TEST(Peer, a_state_is_adopted_only_while_the_newest_proposal_asks_for_it) {
  State s = at_door(3, root(0, 'z'));
  const SyncPlan first{root(4, 'a'), {PeerId{1}}, ""};
  const SyncPlan own{root(0, 'z'), {PeerId{3}}, ""};
  static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(3)}, true, first)}));
  static_cast<void>(step(s, FromMaster{propose(3, {member(3)}, true, own)}));
  EXPECT_EQ(s.accepted->id, EpochId::make(1, 3)) << "it holds what this one asks for";
  EXPECT_TRUE(step(s, Verified{first.root}).empty());
}

TEST(Peer, a_proposal_that_comes_while_a_state_is_adopted_is_compared_with_what_came_of_it) {
  for (const bool taken_back : {false, true}) {
    State s = at_door(3, root(0, 'z'));
    const SyncPlan first{root(4, 'a'), {PeerId{1}}, ""};
    const SyncPlan own{root(0, 'z'), {PeerId{3}}, ""};
    static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(3)}, true, first)}));
    EXPECT_EQ(all<Adopt>(step(s, Verified{first.root})).size(), 1U);
    const Actions newer = step(s, FromMaster{propose(3, {member(3)}, true, own)});
    EXPECT_TRUE(all<Fetch>(newer).empty());
    EXPECT_TRUE(told<Ready>(newer).empty());
    const Actions out = step(s, Fetched{taken_back ? own.root : first.root});
    EXPECT_EQ(told<Ready>(out).size(), taken_back ? 1U : 0U);
    EXPECT_EQ(all<Fetch>(out).size(), taken_back ? 0U : 1U);
    EXPECT_EQ(told<Knock>(out).size(), taken_back ? 0U : 1U) << "the election must know";
  }
}

TEST(Peer, a_hello_shows_the_marks_of_the_epochs_that_it_reports) {
  State s = founded();
  Propose named = propose(2, {member(1), member(2)});
  named.mark = {7};
  static_cast<void>(step(s, FromMaster{named}));
  const auto hello_again = [&] {
    static_cast<void>(step(s, MasterLost{}));
    return told<Hello>(step(s, MasterConnected{})).at(0);
  };
  EXPECT_EQ(hello_again().accepted_mark, Digest{}) << "it has not answered that proposal";
  named.epoch.id = EpochId::make(1, 3);
  static_cast<void>(step(s, FromMaster{named}));
  ASSERT_EQ(told<Ready>(step(s, LinksUp{named.epoch.id})).size(), 1U);
  EXPECT_EQ(hello_again().accepted_mark, Digest{7});
  EXPECT_EQ(hello_again().started_mark, Digest{});
  static_cast<void>(step(s, FromMaster{Start{named.epoch.id, {}, {8}}}));
  EXPECT_EQ(hello_again().started_mark, Digest{8});
  EXPECT_EQ(hello_again().accepted_mark, Digest{7});
}

TEST(Peer, only_newer_proposals_are_heard) {
  State s = founded();
  EXPECT_TRUE(step(s, FromMaster{propose(1, {member(1), member(2)})}).empty());
  EXPECT_FALSE(step(s, FromMaster{propose(3, {member(1), member(2)})}).empty());
  EXPECT_TRUE(step(s, FromMaster{propose(2, {member(1), member(2)})}).empty());
  EXPECT_TRUE(step(s, FromMaster{propose(9, {member(2)})}).empty()) << "not a member";
}

TEST(Peer, a_proposal_stops_data_and_an_old_answer_of_the_links_changes_nothing) {
  State s = founded();
  EXPECT_EQ(all<StopData>(step(s, FromMaster{propose(2, {member(1), member(2)})})).size(), 1U);
  const Actions again = step(s, FromMaster{propose(3, {member(1), member(2)})});
  EXPECT_TRUE(all<StopData>(again).empty()) << "once";
  EXPECT_TRUE(step(s, LinksUp{EpochId::make(1, 2)}).empty());
  EXPECT_EQ(told<Ready>(step(s, LinksUp{EpochId::make(1, 3)})).size(), 1U);
}

TEST(Peer, what_was_issued_between_propose_and_start_runs_in_the_new_epoch) {
  State s = founded();
  static_cast<void>(step(s, FromMaster{propose(2, {member(1)})}));
  EXPECT_TRUE(step(s, Issued{}).empty());
  const Actions out = step(s, FromMaster{start(2, 0, {PeerId{1}, PeerId{2}})});
  ASSERT_EQ(all<RunOp>(out).size(), 1U);
  EXPECT_EQ(all<Configure>(out)[0].lost, std::vector<PeerId>{PeerId{2}});
}

TEST(Peer, the_first_boundary_of_a_run_votes_and_hashes_on_demand) {
  State s = founded();
  EXPECT_EQ(all<HashState>(step(s, AtBoundary{})).size(), 1U);
  const Actions out = step(s, RootKnown{root(1, 'a')});
  ASSERT_EQ(told<Vote>(out).size(), 1U);
  EXPECT_EQ(told<Vote>(out)[0].root, root(1, 'a'));
}

TEST(Peer, a_boundary_that_does_not_vote_sends_nothing) {
  State s = founded();
  s.passed = 1;
  s.flags[0] = false;
  const Actions out = step(s, AtBoundary{});
  ASSERT_EQ(out.size(), 1U);
  EXPECT_FALSE(all<EnterStep>(out).at(0).voted);
  EXPECT_EQ(s.step, 1U);
}

TEST(Peer, what_was_said_of_later_steps_does_not_outlive_a_voted_boundary) {
  State s = founded();
  s.flags[1] = false;  // a liar has said so to the members of then; newcomers know nothing of it
  const AtBoundary resume{VoteKind::resume, false, false, {}};
  EXPECT_EQ(told<Vote>(step(s, resume)).size(), 1U);
  static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(2)}, true)}));
  static_cast<void>(step(s, LinksUp{EpochId::make(1, 2)}));
  static_cast<void>(step(s, FromMaster{start(2, 1, {PeerId{1}, PeerId{2}})}));
  ASSERT_EQ(s.step, 1U);
  EXPECT_EQ(told<Vote>(step(s, resume)).size(), 1U);
}

TEST(Peer, a_failure_of_this_step_votes_and_one_of_a_later_step_does_not) {
  State s = founded();
  s.passed = 1;
  s.flags[0] = false;
  s.failure = Failure{OpKey{1, 0}, {}};
  State later = s;
  EXPECT_EQ(all<EnterStep>(step(later, AtBoundary{VoteKind::resume, false, false, {}})).size(), 1U);
  s.failure->from = OpKey{0, 3};
  EXPECT_EQ(told<Vote>(step(s, AtBoundary{VoteKind::resume, false, false, {}})).size(), 1U);
}

TEST(Peer, a_vote_is_repeated_to_the_next_master) {
  State s = founded();
  static_cast<void>(step(s, AtBoundary{VoteKind::refresh, false, true, root(1, 'a')}));
  static_cast<void>(step(s, MasterLost{}));
  const auto hello = told<Hello>(step(s, MasterConnected{}));
  ASSERT_EQ(hello.size(), 1U);
  EXPECT_EQ(hello[0].report.vote, VoteKind::refresh);
  EXPECT_EQ(hello[0].report.root, root(1, 'a'));
}

TEST(Peer, a_newcomer_knocks_and_says_so_again_on_the_next_connection) {
  State s = connected(5);
  static_cast<void>(step(s, AtBoundary{}));
  EXPECT_EQ(told<Knock>(step(s, RootKnown{root(0, 'z')})).size(), 1U);
  static_cast<void>(step(s, MasterLost{}));
  const auto hello = told<Hello>(step(s, MasterConnected{}));
  EXPECT_TRUE(hello.at(0).at_door);
  EXPECT_EQ(hello.at(0).door_root, root(0, 'z'));
}

TEST(Peer, a_state_that_was_fetched_while_the_master_was_away_is_told) {
  State s = at_door(5, root(0, 'z'));
  const SyncPlan plan{root(4, 'a'), {PeerId{1}}, ""};
  static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(5)}, true, plan)}));
  static_cast<void>(step(s, Verified{plan.root}));
  static_cast<void>(step(s, MasterLost{}));
  static_cast<void>(step(s, Fetched{plan.root}));
  EXPECT_EQ(told<Hello>(step(s, MasterConnected{})).at(0).door_root, plan.root);
}

TEST(Peer, evidence_names_the_newest_epoch) {
  State s = founded();
  static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(2)})}));
  const auto suspect = told<Suspect>(step(s, LinkClosed{PeerId{2}, true}));
  ASSERT_EQ(suspect.size(), 1U);
  EXPECT_EQ(suspect[0].epoch, EpochId::make(1, 2));
  EXPECT_TRUE(suspect[0].refused);
  EXPECT_EQ(told<Cannot>(step(s, LinkFailed{EpochId::make(1, 2), PeerId{2}, "x"})).size(), 1U);
  EXPECT_TRUE(told<Cannot>(step(s, LinkFailed{EpochId::make(0, 9), PeerId{2}, "x"})).empty());
}

TEST(Peer, eviction_restores_and_fails_what_is_pending_and_nothing_follows) {
  State s = founded();
  static_cast<void>(step(s, Issued{}));
  static_cast<void>(step(s, Issued{}));
  const Actions out = step(s, FromMaster{Evicted{"late"}});
  EXPECT_EQ(all<StopData>(out).size(), 1U);
  ASSERT_EQ(all<RestoreOp>(out).size(), 2U);
  EXPECT_EQ(all<RestoreOp>(out)[0].op, (OpKey{0, 1})) << "latest first";
  ASSERT_EQ(all<FailOp>(out).size(), 2U);
  EXPECT_EQ(all<FailOp>(out)[0].error.code, ErrorCode::evicted);
  EXPECT_EQ(all<WasEvicted>(out).size(), 1U);
  EXPECT_EQ(all<FailOp>(step(s, Issued{})).size(), 1U);
  EXPECT_TRUE(step(s, MasterConnected{}).empty());
}

TEST(Peer, a_newcomer_that_wants_to_leave_just_goes) {
  State s = connected(5);
  const Actions out = step(s, WantsToLeave{});
  EXPECT_EQ(told<Bye>(out).size(), 1U);
  EXPECT_EQ(all<HasLeft>(out).size(), 1U);
}

TEST(Peer, a_wish_may_be_repeated_with_at_once_and_is_then_said_again) {
  State s = founded();
  EXPECT_EQ(told<Leave>(step(s, WantsToLeave{false})).size(), 1U);
  EXPECT_TRUE(step(s, WantsToLeave{false}).empty());
  const auto again = told<Leave>(step(s, WantsToLeave{true}));
  ASSERT_EQ(again.size(), 1U);
  EXPECT_TRUE(again[0].at_once);
  EXPECT_TRUE(step(s, WantsToLeave{true}).empty());
  EXPECT_TRUE(report_of(s).at_once);
  static_cast<void>(step(s, Issued{}));
  const Actions out = step(s, FromMaster{Left{}});
  ASSERT_EQ(all<FailOp>(out).size(), 1U);
  EXPECT_EQ(all<FailOp>(out)[0].error.code, ErrorCode::closed);
  EXPECT_EQ(all<HasLeft>(out).size(), 1U);
}

TEST(Peer, it_is_calm_with_nothing_issued_and_lately_nothing_that_takes_all) {
  State s = founded();
  EXPECT_TRUE(report_of(s).calm);
  static_cast<void>(step(s, Issued{}));
  EXPECT_FALSE(report_of(s).calm);
  s.step = 5;
  s.next = 0;
  EXPECT_TRUE(report_of(s).calm);
  static_cast<void>(step(s, Issued{LossClass::needs_all, {}}));
  for (const auto& [in_step, calm] : {std::pair{6U, false}, std::pair{7U, true}}) {
    s.step = in_step;
    s.next = 0;
    EXPECT_EQ(report_of(s).calm, calm) << "a program does in a step what it did in the last";
  }
}

TEST(Peer, time_outs_and_mismatches_are_told_while_an_epoch_is_in_force_only) {
  State s = founded();
  static_cast<void>(step(s, Issued{}));
  EXPECT_EQ(told<Expired>(step(s, TimedOut{OpKey{0, 0}})).size(), 1U);
  EXPECT_TRUE(step(s, TimedOut{OpKey{0, 7}}).empty()) << "not pending";
  EXPECT_EQ(told<Mismatch>(step(s, FoundMismatch{OpKey{0, 0}, "x"})).size(), 1U);
  EXPECT_TRUE(step(s, FoundMismatch{OpKey{0, 1}, "x"}).empty()) << "not issued";
  static_cast<void>(step(s, Issued{}));
  static_cast<void>(step(s, Completed{OpKey{0, 1}}));
  EXPECT_TRUE(step(s, FoundMismatch{OpKey{0, 1}, "x"}).empty()) << "it may be committed";
  static_cast<void>(step(s, FromMaster{propose(2, {member(1), member(2)})}));
  EXPECT_TRUE(step(s, TimedOut{OpKey{0, 0}}).empty());
  EXPECT_TRUE(step(s, FoundMismatch{OpKey{0, 0}, "x"}).empty());
}

TEST(Peer, a_master_that_commits_what_is_not_complete_here_is_left_and_nothing_hangs) {
  State s = founded();
  static_cast<void>(step(s, Issued{}));
  const Actions out = step(s, FromMaster{Commit{EpochId::make(1, 1), {OpKey{0, 0}}, {}}});
  EXPECT_EQ(all<FailOp>(out).at(0).error.code, ErrorCode::malformed);
  EXPECT_EQ(all<WasEvicted>(out).size(), 1U);
  EXPECT_TRUE(s.over);
}

}  // namespace
}  // namespace pccl::peer
