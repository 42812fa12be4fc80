#include <gtest/gtest.h>

#include "cast.h"
#include "wire/codec.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::judged;
using cast::member;
using cast::next_epoch;
using cast::report;
using cast::sent;

const std::vector<Member> kTrio = {member(1), member(2), member(3)};
const std::vector<PeerId> kAll = ids_of(kTrio);

/// Everything that the master sends can be encoded: the encoder asserts the limits of the wire.
void encode_all(const Actions& actions) {
  for (const Action& action : actions) {
    if (const auto* one = std::get_if<Send>(&action)) static_cast<void>(encode(one->message));
    if (const auto* all = std::get_if<SendAll>(&action)) static_cast<void>(encode(all->message));
  }
}

Actions tells(State& s, std::uint64_t peer, PeerToMaster message) {
  Actions out = step(s, PeerMessage{PeerId{peer}, std::move(message)});
  while (s.writing) {
    for (Action& action : step(s, RegisterWritten{*s.writing, true})) {
      out.push_back(std::move(action));
    }
  }
  encode_all(out);
  return out;
}

Report said(std::uint64_t step) {
  Report r;
  r.started = r.accepted = EpochId::make(1, 1);
  r.started_members = r.pinned = kAll;
  r.step = step;
  r.passed = 1;
  r.committed.below = r.issued = OpKey{step, 0};
  return r;
}

/// All of `reports` are said in answer to a proposal of the same members.
Actions all_ready(State& s, const std::map<std::uint64_t, Report>& reports) {
  static_cast<void>(step(s, PeerMessage{PeerId{1}, Relinked{own(s)->id, PeerId{2}}}));
  const EpochId id = s.proposal->id;
  Actions out;
  for (const auto& [peer, its] : reports) {
    for (Action& action : tells(s, peer, Ready{id, its})) out.push_back(std::move(action));
  }
  return out;
}

std::vector<PeerId> evicted(const Actions& out) {
  std::vector<PeerId> peers;
  for (const auto& [peer, message] : sent<Evicted>(out)) peers.push_back(peer);
  return peers;
}

/// The three begin an epoch of this master in step 4, in which each has issued so many operations,
/// and the first one is committed. Returns what each of them reported.
Report begins_step_4(State& s, std::uint64_t issued) {
  Report all = said(4);
  all.issued = OpKey{4, issued};
  static_cast<void>(all_ready(s, {{1, all}, {2, all}, {3, all}}));
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    static_cast<void>(tells(s, p, Done{s.held->epoch->id, {OpKey{4, 0}}}));
  }
  return all;
}

TEST(Reports, sound_reports_start_the_epoch) {
  State s = in_office(kTrio);
  const Actions out = all_ready(s, {{1, said(4)}, {2, said(5)}, {3, said(4)}});
  EXPECT_TRUE(evicted(out).empty());
  EXPECT_EQ(sent<Start>(out).size(), 3U);
}

TEST(Reports, a_far_step_with_as_many_flags_as_a_report_takes_costs_its_peer_the_place) {
  State s = in_office(kTrio);
  Report liar = said(1'000'000);
  for (std::uint64_t i = 0; i < kReportFlagsMax; ++i) liar.flags.push_back({1'000'000 + i, false});
  const Actions out = all_ready(s, {{1, said(4)}, {2, said(4)}, {3, liar}});
  EXPECT_EQ(evicted(out), std::vector<PeerId>{PeerId{3}});
  EXPECT_EQ(sent<Propose>(out).size(), 2U) << "the others go on";
}

TEST(Reports, flags_of_steps_that_nobody_has_come_near_are_a_lie_too) {
  State s = in_office(kTrio);
  Report liar = said(4);
  for (std::uint64_t i = 0; i < kReportFlagsMax; ++i) liar.flags.push_back({5000 + i, false});
  EXPECT_EQ(evicted(all_ready(s, {{1, said(4)}, {2, said(4)}, {3, liar}})),
            std::vector<PeerId>{PeerId{3}});
}

TEST(Reports, one_that_has_left_a_step_in_which_nobody_else_has_called_anything_lies) {
  for (const bool flag : {true, false}) {
    State s = in_office(kTrio);
    Report liar = said(flag ? 1 : 2);
    if (flag) liar.flags = {{1, false}};
    EXPECT_EQ(evicted(all_ready(s, {{1, said(1)}, {2, said(1)}, {3, liar}})),
              std::vector<PeerId>{PeerId{3}})
        << "the boundary of the step votes: the others may wait there";
  }
  State s = in_office(kTrio);
  Report sound = said(1);
  sound.issued = OpKey{1, 1};
  EXPECT_TRUE(evicted(all_ready(s, {{1, said(1)}, {2, sound}, {3, said(2)}})).empty());
}

TEST(Reports, a_commit_that_no_mate_can_know_is_a_lie) {
  State s = in_office(kTrio);
  Report liar = said(4);
  liar.issued = OpKey{4, 100000};
  liar.committed.also = {OpKey{4, 99999}};
  EXPECT_EQ(evicted(all_ready(s, {{1, said(4)}, {2, said(4)}, {3, liar}})),
            std::vector<PeerId>{PeerId{3}});
}

TEST(Reports, nobody_knows_commits_of_a_step_to_which_it_has_not_come) {
  for (const std::uint64_t far : {std::uint64_t{5}, kStepMax}) {
    State s = in_office(kTrio);
    Report waits = said(4);
    waits.issued = OpKey{4, 2};
    Report liar = said(4);
    liar.issued = liar.committed.below = OpKey{far, 0};
    Actions out = all_ready(s, {{1, waits}, {2, waits}, {3, liar}});
    EXPECT_EQ(evicted(out), std::vector<PeerId>{PeerId{3}})
        << "the verdict would call all operations before committed, and those after them, too";
    for (const std::uint64_t p : {1U, 2U}) out = tells(s, p, Ready{s.proposal->id, waits});
    ASSERT_EQ(sent<Start>(out).size(), 2U);
    EXPECT_EQ(sent<Start>(out)[0].second.verdict.committed, (OpSet{OpKey{4, 0}, {}}));
    for (const std::uint64_t p : {1U, 2U})
      out = tells(s, p, Done{s.held->epoch->id, {OpKey{4, 0}}});
    EXPECT_EQ(sent<Commit>(out).size(), 2U);
  }
}

TEST(Reports, one_that_says_it_has_left_a_step_commits_nothing_of_that_step_for_its_mates) {
  State s = in_office(kTrio);
  Report waits = begins_step_4(s, 2);
  waits.started = waits.accepted = s.held->epoch->id;
  waits.committed.below = OpKey{4, 1};
  Report liar = said(5);
  liar.started = liar.accepted = *waits.started;
  const Actions out = all_ready(s, {{1, waits}, {2, waits}, {3, liar}});
  ASSERT_EQ(sent<Start>(out).size(), 3U);
  EXPECT_EQ(sent<Start>(out)[0].second.verdict.committed, (OpSet{OpKey{4, 1}, {}}))
      << "operation 4.1 is in flight at the two others";
}

TEST(Reports, one_that_says_it_has_missed_the_start_commits_what_its_mates_have_in_flight) {
  State s = in_office(kTrio);
  s.held->incarnation = 2;  // a second master of the run, which has made epoch 2.x
  s.counter = 0;
  Report waits = begins_step_4(s, 2);
  ASSERT_EQ(s.held->epoch->id.incarnation(), 2U);
  // The liar has been in this epoch: its Done made the commit. It connects anew, and says that it
  // is in the epoch before still.
  Hello hello;
  hello.run = s.config.run;
  hello.member = kTrio[2];
  hello.report = said(5);  // started 1.1; left step 4
  hello.report.accepted = s.held->epoch->id;
  Actions out = step(s, PeerConnected{hello});
  EXPECT_TRUE(evicted(out).empty());
  ASSERT_TRUE(s.proposal);
  const EpochId id = s.proposal->id;
  waits.started = waits.accepted = s.held->epoch->id;
  waits.committed.below = OpKey{4, 1};
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    out = tells(s, p, Ready{id, p == 3 ? hello.report : waits});
  }
  ASSERT_EQ(sent<Start>(out).size(), 3U);
  EXPECT_EQ(sent<Start>(out)[0].second.verdict.committed, (OpSet{OpKey{4, 1}, {}}))
      << "operation 4.1 is in flight at the two others";
}

/// All have left step 4 without a vote and have completed 5.0; the Done of some is lost with a
/// loss, so the verdict commits it. Then 5.1 is committed by Done.
State after_a_verdict_in_a_new_step(Report& now) {
  State s = in_office(kTrio);
  static_cast<void>(begins_step_4(s, 1));
  now = said(5);
  now.started = now.accepted = s.held->epoch->id;
  now.issued = OpKey{5, 2};
  now.done = {OpKey{5, 0}};
  Actions out = all_ready(s, {{1, now}, {2, now}, {3, now}});
  EXPECT_TRUE(contains(sent<Start>(out)[0].second.verdict.committed, OpKey{5, 0}));
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    out = tells(s, p, Done{s.held->epoch->id, {OpKey{5, 1}}});
  }
  EXPECT_EQ(sent<Commit>(out).size(), 3U);
  now.started = now.accepted = s.held->epoch->id;
  now.done.clear();
  now.committed.below = OpKey{5, 2};
  return s;
}

TEST(Reports, what_a_verdict_has_committed_stays_committed) {
  Report now;
  State s = after_a_verdict_in_a_new_step(now);
  const Actions out = all_ready(s, {{1, now}, {2, now}, {3, now}});
  ASSERT_EQ(sent<Start>(out).size(), 3U);
  EXPECT_TRUE(contains(sent<Start>(out)[0].second.verdict.committed, OpKey{5, 0}))
      << "all three report below 5.2";
  EXPECT_TRUE(contains(s.committed.at(0), OpKey{5, 0}));
}

TEST(Reports, a_long_step_behind_such_a_verdict_costs_nobody_its_place) {
  Report now;
  State s = after_a_verdict_in_a_new_step(now);
  std::uint64_t next = 2;
  while (next < kReportOpsMax + 100) {
    std::vector<OpKey> ops;
    for (int i = 0; i < 1000; ++i) ops.push_back(OpKey{5, next++});
    for (const std::uint64_t p : {1U, 2U, 3U}) {
      static_cast<void>(tells(s, p, Done{s.held->epoch->id, ops}));
    }
  }
  now.committed.below = now.issued = OpKey{5, next};
  ++now.issued.index;
  now.done = {OpKey{5, next}};
  EXPECT_TRUE(evicted(all_ready(s, {{1, now}, {2, now}, {3, now}})).empty());
}

TEST(Reports, what_a_lone_member_has_committed_far_ahead_is_no_commit_of_those_that_come) {
  State s = in_office({member(1)});
  Report alone = said(1);
  alone.started_members = alone.pinned = {PeerId{1}};
  static_cast<void>(tells(s, 1, Done{s.held->epoch->id, {OpKey{300, 0}, OpKey{1, 0}}}));
  s.committed[0] = OpSet{OpKey{300, 1}, {}};
  s.proposal = Epoch{EpochId::make(1, 2), {member(1)}, {}, true};
  s.peers.at(PeerId{1}).report = alone;
  const Judgement verdict = judged(s, *s.proposal);
  EXPECT_EQ(verdict.passed, 2U);
  EXPECT_EQ(verdict.committed.at(0), (OpSet{OpKey{2, 0}, {}}));
}

TEST(Reports, one_of_three_that_waits_in_a_step_which_the_others_have_left_hears_of_it) {
  State s = in_office(kTrio);
  Report waits = begins_step_4(s, 1);
  Report gone = said(5);
  gone.started = gone.accepted = s.held->epoch->id;
  waits = gone;
  waits.step = 4;
  waits.committed.below = OpKey{4, 1};
  waits.issued = OpKey{4, 2};
  const Actions out = all_ready(s, {{1, gone}, {2, gone}, {3, waits}});
  ASSERT_EQ(sent<Start>(out).size(), 3U);
  EXPECT_EQ(sent<Start>(out)[0].second.verdict.committed, (OpSet{OpKey{5, 0}, {}}))
      << "nobody else will ever call 4.1";
}

TEST(Reports, one_that_is_ready_for_an_epoch_that_was_not_proposed_lies) {
  State s = in_office(kTrio);
  s.config.adopt = true;
  Hello hello;
  hello.member = member(9);
  static_cast<void>(step(s, PeerConnected{hello, ""}));
  Report liar;
  liar.accepted = EpochId::make(0xFFFFFFFFU, 0);
  EXPECT_EQ(evicted(tells(s, 9, Ready{EpochId::make(1, 1), liar})), std::vector<PeerId>{PeerId{9}});
}

TEST(Reports, nobody_has_started_the_epoch_that_has_no_number) {
  State s;
  s.config.min_peers = 1;
  static_cast<void>(step(s, TakenOver{Register{}}));
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  static_cast<void>(step(s, FoundingOver{}));
  Hello hello;
  hello.member = member(9);
  hello.report.started = EpochId{};
  EXPECT_EQ(sent<Refuse>(step(s, PeerConnected{hello, ""})).size(), 1U);
  EXPECT_TRUE(s.unknown.empty()) << "it needs no mark, and would hold up the founding";
  hello.member = member(1);
  hello.report.started.reset();
  EXPECT_EQ(sent<Propose>(step(s, PeerConnected{hello, ""})).size(), 1U);
}

TEST(Reports, no_incarnation_follows_from_what_a_ready_says) {
  State s;
  s.config.adopt = true;
  static_cast<void>(step(s, TakenOver{Register{}}));
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  Hello hello;
  hello.member = member(9);
  static_cast<void>(step(s, PeerConnected{hello, ""}));
  Report liar;
  liar.accepted = EpochId::make(0xFFFFFFFFU, 0);
  static_cast<void>(step(s, PeerMessage{PeerId{9}, Ready{EpochId::make(1, 1), liar}}));
  hello.member = member(1);
  hello.report = said(3);
  hello.report.started = hello.report.accepted = EpochId::make(7, 1);
  hello.report.started_members = {PeerId{1}};
  static_cast<void>(step(s, PeerConnected{hello, ""}));
  ASSERT_TRUE(s.writing.has_value());
  EXPECT_EQ(s.writing->incarnation, 8U) << "adopted: above all that was made, and no overflow";
}

TEST(Reports, a_commit_in_an_epoch_of_this_master_is_one_that_it_has_made) {
  for (const bool earlier : {false, true}) {
    State s = in_office(kTrio);
    if (earlier) ++s.held->incarnation;  // another one may have committed it
    Report liar = said(1);
    liar.issued = liar.committed.below = OpKey{1, 1};
    Report waits = said(1);
    waits.issued = OpKey{1, 1};
    Report done = waits;
    done.done = {OpKey{1, 0}};
    EXPECT_EQ(evicted(all_ready(s, {{1, waits}, {2, done}, {3, liar}})),
              earlier ? std::vector<PeerId>{} : std::vector<PeerId>{PeerId{3}})
        << "the first one is not done with it, and would be alone with a failure";
  }
}

TEST(Reports, a_commit_that_this_master_has_made_is_none_whoever_denies_it) {
  State s = in_office({member(1), member(2)});
  Done done{EpochId::make(1, 1), {OpKey{4, 0}}};
  static_cast<void>(tells(s, 1, done));
  EXPECT_EQ(sent<Commit>(tells(s, 2, done)).size(), 2U);
  Report sound = said(4);
  sound.issued = sound.committed.below = OpKey{4, 1};
  const Actions out = all_ready(s, {{1, sound}, {2, said(1)}});
  EXPECT_TRUE(evicted(out).empty());
}

TEST(Reports, two_liars_cannot_make_a_verdict_longer_than_a_start_may_be) {
  State s = in_office(kTrio);
  Report odd = said(4);
  odd.issued = OpKey{4, 2 * kReportOpsMax};
  Report even = odd;
  for (std::uint64_t i = 0; i < kReportOpsMax; ++i) {
    odd.committed.also.push_back({4, 2 * i + 1});
    even.committed.also.push_back({4, 2 * i});
  }
  even.committed.also.erase(even.committed.also.begin());
  const Actions out = all_ready(s, {{1, said(4)}, {2, odd}, {3, even}});
  EXPECT_EQ(evicted(out), std::vector<PeerId>{PeerId{2}});
}

TEST(Reports, what_contradicts_itself_costs_the_place_at_once) {
  for (const auto& spoil : std::vector<void (*)(Report&)>{
           [](Report& r) { r.done = {OpKey{4, 0}}; },  // not issued
           [](Report& r) { r.issued = {4, 9}, r.done = {OpKey{4, 1}, OpKey{4, 0}}; },
           [](Report& r) { r.issued = {4, 9}, r.committed.also = {OpKey{3, 1}}; },
           [](Report& r) { r.committed.below = {4, 1}; }, [](Report& r) { r.step = kStepMax + 1; },
           [](Report& r) { r.passed = ~std::uint64_t{0}; }}) {
    State s = in_office(kTrio);
    Report liar = said(4);
    spoil(liar);
    static_cast<void>(tells(s, 1, Relinked{EpochId::make(1, 1), PeerId{2}}));
    const Actions out = tells(s, 3, Ready{s.proposal->id, liar});
    EXPECT_EQ(evicted(out), std::vector<PeerId>{PeerId{3}});
  }
}

TEST(Reports, numbers_that_no_run_reaches_cost_the_place) {
  const std::uint64_t far = ~std::uint64_t{0};
  for (const PeerToMaster& message : std::vector<PeerToMaster>{
           Vote{far, VoteKind::refresh, {}}, Done{EpochId::make(1, 1), {OpKey{far, 0}}},
           Expired{EpochId::make(1, 1), OpKey{0, far}},
           Mismatch{EpochId::make(1, 1), OpKey{far, 0}, {}}, Heartbeat{OpKey{far, far}}}) {
    State s = in_office(kTrio);
    EXPECT_EQ(evicted(tells(s, 2, message)), std::vector<PeerId>{PeerId{2}});
  }
}

TEST(Reports, a_vote_for_a_far_step_moves_nobody_there) {
  State s = in_office(kTrio);
  static_cast<void>(tells(s, 1, Vote{4, VoteKind::refresh, {}}));
  static_cast<void>(tells(s, 2, Vote{4, VoteKind::refresh, {}}));
  static_cast<void>(tells(s, 3, Vote{kStepMax, VoteKind::refresh, {}}));
  ASSERT_TRUE(s.proposal && s.proposal->boundary);
  Actions out;
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    Report its = said(p == 3 ? kStepMax : 4);
    its.vote = VoteKind::refresh;
    for (Action& action : tells(s, p, Ready{s.proposal->id, its})) out.push_back(std::move(action));
  }
  EXPECT_EQ(evicted(out), std::vector<PeerId>{PeerId{3}});
}

/// All members vote, each at its step, and are ready for the epoch that follows.
std::vector<PeerId> evicted_at_boundary(State& s, const std::map<std::uint64_t, Report>& reports) {
  for (const auto& [peer, its] : reports) {
    static_cast<void>(tells(s, peer, Vote{its.step, VoteKind::refresh, {}}));
  }
  if (!s.proposal || !s.proposal->boundary) return {PeerId{}};
  const EpochId id = s.proposal->id;
  std::vector<PeerId> gone;
  for (const auto& [peer, its] : reports) {
    Report voted = its;
    voted.vote = VoteKind::refresh;
    for (const PeerId p : evicted(tells(s, peer, Ready{id, voted}))) gone.push_back(p);
  }
  return gone;
}

TEST(Reports, a_vote_at_another_step_than_those_of_most_members_costs_the_place) {
  for (const std::uint64_t step : {3U, 5U}) {
    State s = in_office(kTrio);
    EXPECT_EQ(evicted_at_boundary(s, {{1, said(4)}, {2, said(4)}, {3, said(step)}}),
              std::vector<PeerId>{PeerId{3}})
        << "the others would leave a step out";
  }
  State s = in_office(kTrio);
  EXPECT_TRUE(evicted_at_boundary(s, {{1, said(4)}, {2, said(4)}, {3, said(4)}}).empty());
}

TEST(Reports, no_rank_of_the_only_replica_is_beyond_what_this_master_has_committed) {
  const std::vector<Member> replica = {member(1, "a", 0, 2), member(2, "a", 1, 2)};
  for (const std::uint64_t step : {2ULL, 3ULL, 684300432286ULL}) {
    State s = in_office(replica);
    EXPECT_EQ(evicted_at_boundary(s, {{1, said(1)}, {2, said(step)}}),
              std::vector<PeerId>{PeerId{2}})
        << "step 1 has no operation, so its boundary votes";
  }
  State s = in_office(replica);
  Report liar = said(1);
  for (std::uint64_t i = 0; i < kReportFlagsMax; ++i) liar.flags.push_back({2 + i, false});
  EXPECT_EQ(evicted_at_boundary(s, {{1, said(1)}, {2, liar}}), std::vector<PeerId>{PeerId{2}})
      << "the other rank would keep the flags, and more of the next report";
}

TEST(Reports, ranks_of_the_only_replica_go_on_where_they_were_under_another_master) {
  const std::vector<Member> replica = {member(1, "a", 0, 2), member(2, "a", 1, 2)};
  State s = in_office(replica);
  s.held->incarnation = 2;
  const auto all_are_ready = [&](std::optional<EpochId> started) {
    static_cast<void>(step(s, PeerDisconnected{PeerId{1}}));
    for (const Member& m : replica) {
      Hello hello;
      hello.member = m;
      hello.report = said(5);
      hello.report.started = hello.report.accepted = started.value_or(EpochId::make(1, 1));
      static_cast<void>(step(s, PeerConnected{hello}));
    }
    Actions out;
    const EpochId id = s.proposal->id;
    for (const Member& m : replica) {
      const Report its = s.peers.at(m.peer()).report;
      for (Action& a : tells(s, m.peer().value, Ready{id, its})) out.push_back(std::move(a));
    }
    return out;
  };
  EXPECT_EQ(sent<Start>(all_are_ready({})).size(), 2U);
  EXPECT_EQ(s.brought_step, 5U);
  EXPECT_EQ(sent<Start>(all_are_ready(s.held->epoch->id)).size(), 2U)
      << "this master has committed nothing in step 4, and an earlier one may have";
}

TEST(Reports, what_only_the_register_knows_is_not_taken_from_a_report) {
  State s = in_office(kTrio);
  Report liar = said(2);
  liar.passed = 2;
  EXPECT_EQ(evicted(all_ready(s, {{1, said(2)}, {2, said(2)}, {3, liar}})),
            std::vector<PeerId>{PeerId{3}});
}

TEST(Reports, a_lone_member_may_complete_as_many_steps_at_once_as_it_likes) {
  State s = in_office({member(1)});
  Done done{EpochId::make(1, 1), {}};
  for (std::uint64_t i = 1; i <= kReportFlagsMax + 1; ++i) done.ops.push_back({i, 0});
  const auto commits = sent<Commit>(tells(s, 1, done));
  ASSERT_EQ(commits.size(), 2U) << "a commit has no more flags than it may";
  EXPECT_EQ(commits[0].second.ops.size(), kReportFlagsMax);
  EXPECT_EQ(commits[1].second.ops.size(), 1U);
}

TEST(Reports, peer_groups_that_are_far_apart_get_the_flags_that_each_needs) {
  const std::vector<Member> replica = {member(1, "a", 0, 2), member(2, "a", 1, 2)};
  State s = in_office(replica);
  report(s, 1).step = 3;
  report(s, 2).step = 1003;
  const Epoch next = next_epoch(replica);
  const Judgement verdict = judged(s, next);
  EXPECT_EQ(verdict.flags.size(), 1000U) << "all are kept: an answer is given once";
  const auto slow = flags_for(s, verdict, {PeerId{1}});
  ASSERT_EQ(slow.size(), kReportFlagsMax);
  EXPECT_EQ(slow.front().step, 3U);
  EXPECT_TRUE(flags_for(s, verdict, {PeerId{2}}).empty());
}

TEST(Reports, who_completes_without_end_what_nobody_else_does_is_evicted) {
  State s = in_office({member(1), member(2)});
  std::vector<PeerId> gone;
  for (std::uint64_t at = 0; at < 2 && gone.empty(); ++at) {
    Done done{EpochId::make(1, 1), {}};
    for (std::uint64_t i = 0; i < kReportOpsMax; ++i)
      done.ops.push_back({1, at * kReportOpsMax + i});
    gone = evicted(tells(s, 2, done));
  }
  EXPECT_EQ(gone, std::vector<PeerId>{PeerId{2}});
}

TEST(Reports, a_rank_that_runs_away_from_those_of_another_peer_group_is_evicted) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  static_cast<void>(tells(s, 1, Done{EpochId::make(1, 1), {OpKey{1, 0}}}));
  std::vector<PeerId> gone;
  std::uint64_t step = 1;
  while (gone.empty() && step < 2 * kStepsApartMax) {
    Done done{EpochId::make(1, 1), {}};
    for (std::uint64_t i = 0; i < kReportOpsMax / 4; ++i) done.ops.push_back({step++, 0});
    gone = evicted(tells(s, 2, done));
    EXPECT_LE(s.flags.size(), kStepsApartMax + kReportOpsMax);
  }
  EXPECT_FALSE(gone.empty()) << "each step has an answer, which is kept for the slower ranks";
}

TEST(Reports, a_mismatch_before_the_last_voted_boundary_fails_nothing) {
  State s = in_office(kTrio);
  EXPECT_TRUE(
      tells(s, 2, Mismatch{EpochId::make(1, 1), OpKey{0, 3}, {ErrorCode::mismatch, "so it says"}})
          .empty());
  EXPECT_FALSE(s.failure.has_value());
}

TEST(Reports, a_hello_that_contradicts_itself_is_refused) {
  State s = in_office(kTrio);
  Hello hello;
  hello.member = member(9);
  hello.report = said(4);
  hello.report.done = {OpKey{9, 9}};
  EXPECT_TRUE(check_hello(s, hello).failed());
  hello.report = said(4);
  hello.report.accepted = EpochId::make(0xFFFFFFFFU, 1);
  EXPECT_TRUE(check_hello(s, hello).failed()) << "the next incarnation would be 0";
}

TEST(Reports, nobody_changes_what_this_master_has_said_about_a_boundary) {
  for (const bool votes : {true, false}) {
    for (const bool left : {true, false}) {
      if (left && !votes) continue;  // that is no lie
      State s = in_office(kTrio);
      s.flags[4] = votes;
      Report sound = said(4);
      sound.issued = OpKey{4, 2};
      sound.flags = {{4, votes}};
      Report liar = said(left ? 5 : 4);
      if (!left) liar.flags = {{4, !votes}};
      EXPECT_EQ(evicted(all_ready(s, {{1, sound}, {2, sound}, {3, liar}})),
                std::vector<PeerId>{PeerId{3}})
          << "one that stands at the boundary would wait there alone";
    }
  }
  State s = in_office(kTrio);
  s.flags[4] = false;
  Report sound = said(4);
  sound.issued = OpKey{4, 2};
  EXPECT_TRUE(evicted(all_ready(s, {{1, sound}, {2, sound}, {3, said(5)}})).empty());
}

TEST(Reports, one_that_reports_another_numbering_numbers_nobody) {
  for (const bool taken_over : {false, true}) {
    State s = in_office(kTrio);
    if (taken_over) s.held->pinned.clear();
    Report liar = said(4);
    liar.pinned = {PeerId{77}};
    const auto starts = sent<Start>(all_ready(s, {{1, liar}, {2, said(4)}, {3, said(4)}}));
    ASSERT_EQ(starts.size(), 3U);
    EXPECT_EQ(starts[0].second.verdict.pinned, kAll);
  }
}

}  // namespace
}  // namespace pccl::master
