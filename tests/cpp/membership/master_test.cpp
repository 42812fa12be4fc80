#include "membership/master.h"

#include <gtest/gtest.h>

#include "base/assert.h"
#include "cast.h"
#include "story.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::kEpoch;
using cast::member;
using cast::report;
using cast::sent;
using cast::tell;

TEST(Master, a_take_over_takes_a_new_incarnation_and_waits_for_the_members) {
  State s;
  const Register held{4, Epoch{EpochId::make(4, 2), {member(1)}, {}, true}, 3, false};
  const Actions taken = step(s, TakenOver{held});
  const Register to = cast::all<WriteRegister>(taken).at(0).to;
  EXPECT_EQ(to.incarnation, 5U);
  const Actions out = step(s, RegisterWritten{to, true});
  EXPECT_EQ(cast::all<StartTimer>(out).at(0).kind, TimerKind::patience);
  EXPECT_EQ(s.seats.at(PeerId{1}).awaited, TimerKind::patience);
}

TEST(Master, nothing_but_the_answer_is_taken_while_it_writes) {
  State s;
  static_cast<void>(step(s, TakenOver{Register{}}));
  EXPECT_THROW(static_cast<void>(step(s, FoundingOver{})), BrokenInvariant);
}

TEST(Master, an_empty_register_founds_nothing_before_the_delay_is_over) {
  story::Story story;
  for (const char* command : {"config min_peers=1", "boot", "connect 1"}) story.run(command);
  EXPECT_FALSE(story.held().epoch.has_value());
  story.run("over founding");
  EXPECT_TRUE(story.held().epoch.has_value());
}

TEST(Master, a_commit_takes_all_of_the_peer_group_and_carries_several_operations) {
  State s = in_office({member(1), member(2)});
  EXPECT_TRUE(tell(s, 1, Done{kEpoch, {OpKey{1, 0}, OpKey{1, 1}}}).empty());
  const Actions out = tell(s, 2, Done{kEpoch, {OpKey{1, 0}, OpKey{1, 1}}});
  const auto commits = sent<Commit>(out);
  ASSERT_EQ(commits.size(), 2U);
  EXPECT_EQ(commits[0].second.ops.size(), 2U);
  ASSERT_EQ(commits[0].second.flags.size(), 1U);
  EXPECT_FALSE(commits[0].second.flags[0].votes);
  EXPECT_TRUE(s.done.empty()) << "what is decided is forgotten";
}

TEST(Master, an_operation_that_is_called_complete_again_after_its_commit_is_not_opened_anew) {
  State s = in_office({member(1), member(2)});
  for (const OpKey op : {OpKey{1, 1}, OpKey{1, 2}, OpKey{1, 0}, OpKey{2, 0}}) {
    static_cast<void>(tell(s, 1, Done{kEpoch, {op}}));
    EXPECT_EQ(sent<Commit>(tell(s, 2, Done{kEpoch, {op}})).size(), 2U) << to_string(op);
    EXPECT_TRUE(tell(s, 1, Done{kEpoch, {op}}).empty());
    EXPECT_TRUE(s.done.empty()) << to_string(op);
  }
}

TEST(Master, an_operation_that_a_verdict_or_a_boundary_has_closed_is_not_opened_anew) {
  for (const bool boundary : {false, true}) {
    State s = in_office({member(1), member(2)});
    for (const std::uint64_t p : {1U, 2U}) {
      report(s, p).issued = OpKey{1, 1};
      report(s, p).done = {OpKey{1, 0}};
    }
    if (boundary) {
      for (const std::uint64_t p : {1U, 2U}) {
        static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
      }
    } else {
      static_cast<void>(tell(s, 1, Relinked{kEpoch, PeerId{2}}));
    }
    ASSERT_TRUE(s.proposal.has_value());
    for (const std::uint64_t p : {1U, 2U}) {
      static_cast<void>(tell(s, p, Ready{s.proposal->id, report(s, p)}));
    }
    static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
    const EpochId id = own(s)->id;
    static_cast<void>(tell(s, 1, Done{id, {OpKey{1, 0}}}));
    EXPECT_TRUE(s.done.empty()) << (boundary ? "boundary" : "verdict");
    const OpKey next{boundary ? 2U : 1U, boundary ? 0U : 1U};
    static_cast<void>(tell(s, 1, Done{id, {next}}));
    EXPECT_EQ(sent<Commit>(tell(s, 2, Done{id, {next}})).size(), 2U);
  }
}

TEST(Master, peer_groups_commit_for_themselves_and_repeat_one_answer) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  EXPECT_FALSE(sent<Commit>(tell(s, 1, Done{kEpoch, {OpKey{1, 0}}})).at(0).second.flags[0].votes);
  cast::newcomer(s, member(3, "b", 0, 2));
  cast::newcomer(s, member(4, "b", 1, 2));
  const auto commits = sent<Commit>(tell(s, 2, Done{kEpoch, {OpKey{1, 0}}}));
  EXPECT_FALSE(commits.at(0).second.flags[0].votes) << "decided by the first commit of the step";
  EXPECT_TRUE(sent<Commit>(tell(s, 1, Done{kEpoch, {OpKey{2, 0}}})).at(0).second.flags[0].votes);
}

TEST(Master, the_answers_of_old_steps_are_forgotten) {
  State s = in_office({member(1)});
  for (std::uint64_t at = 1; at < 1000; ++at) {
    EXPECT_EQ(sent<Commit>(tell(s, 1, Done{kEpoch, {OpKey{at, 0}}})).size(), 1U);
  }
  EXPECT_LE(s.flags.size(), 2U);
}

TEST(Master, done_from_another_epoch_or_a_stranger_counts_for_nothing) {
  State s = in_office({member(1), member(2)});
  cast::newcomer(s, member(3));
  EXPECT_TRUE(tell(s, 1, Done{EpochId::make(1, 0), {OpKey{1, 0}}}).empty());
  EXPECT_TRUE(tell(s, 3, Done{kEpoch, {OpKey{1, 0}}}).empty());
  EXPECT_TRUE(tell(s, 9, Done{kEpoch, {OpKey{1, 0}}}).empty());
  EXPECT_TRUE(s.done.empty());
}

TEST(Master, a_link_that_is_back_is_no_evidence_but_ends_the_epoch) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Suspect{kEpoch, PeerId{3}, false}));
  const Actions out = tell(s, 1, Relinked{kEpoch, PeerId{3}});
  EXPECT_EQ(sent<Propose>(out).size(), 3U) << "segments may be lost: the same members, a new epoch";
  EXPECT_TRUE(sent<Propose>(step(s, PeerDisconnected{PeerId{3}})).empty());
}

TEST(Master, of_two_members_that_cannot_reach_each_other_the_younger_goes_where_nobody_helps) {
  State s = in_office({member(9), member(4)});
  const Actions out = tell(s, 9, Cannot{kEpoch, PeerId{4}, "no route"});
  ASSERT_FALSE(sent<Propose>(out).empty());
  EXPECT_EQ(ids_of(s.proposal->members), std::vector<PeerId>{PeerId{9}});
}

TEST(Master, two_members_that_cannot_reach_each_other_go_on_over_a_third) {
  State s = in_office({member(9), member(4), member(6), member(7)});
  ASSERT_EQ(sent<Propose>(tell(s, 4, Cannot{kEpoch, PeerId{9}, "no route"})).size(), 4U);
  const EpochId first = s.proposal->id;
  EXPECT_EQ(s.proposal->members.size(), 4U);
  const Relay over_6{PeerId{9}, PeerId{4}, PeerId{6}};
  EXPECT_EQ(s.proposal->relays, std::vector<Relay>{over_6});
  EXPECT_TRUE(tell(s, 9, Cannot{kEpoch, PeerId{4}, "no route"}).empty()) << "that is known";

  ASSERT_FALSE(tell(s, 9, Cannot{first, PeerId{4}, "no answer", PeerId{6}}).empty());
  const Relay over_7{PeerId{9}, PeerId{4}, PeerId{7}};
  EXPECT_EQ(s.proposal->relays, std::vector<Relay>{over_7}) << "another one";
  EXPECT_TRUE(tell(s, 4, Cannot{first, PeerId{9}, "no answer", PeerId{6}}).empty());

  ASSERT_FALSE(tell(s, 9, Cannot{s.proposal->id, PeerId{4}, "no answer", PeerId{7}}).empty());
  EXPECT_EQ(ids_of(s.proposal->members), (std::vector<PeerId>{PeerId{9}, PeerId{6}, PeerId{7}}))
      << "two were tried";
}

TEST(Master, founders_that_have_lost_their_relay_wait_for_another) {
  State s = in_office({member(9)});
  s.peers.clear();
  s.held->epoch.reset();
  index_members(s);
  s.running = false;
  s.config.min_peers = 3;
  for (const std::uint64_t id : {1, 2, 3}) cast::newcomer(s, member(id));
  s.cannot = {{PeerId{3}, PeerId{1}}};
  EXPECT_TRUE(cast::all<Close>(step(s, FoundingOver{})).empty());
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_EQ(s.proposal->relays, (std::vector<Relay>{{PeerId{1}, PeerId{3}, PeerId{2}}}));
  const Actions lost = step(s, PeerGone{PeerId{2}, "silent"});
  EXPECT_EQ(cast::all<Close>(lost).size(), 1U) << "of 2";
  EXPECT_EQ(cast::sent<Hold>(lost).size(), 2U);
  Hello hello;
  hello.member = member(4);
  EXPECT_EQ(cast::proposed(step(s, PeerConnected{hello})), cast::peers({1, 3, 4}));
  EXPECT_EQ(s.proposal->relays, (std::vector<Relay>{{PeerId{1}, PeerId{3}, PeerId{4}}}));
}

TEST(Master, a_master_that_takes_over_knows_who_needs_a_relay) {
  State s = in_office({member(9), member(4), member(6)});
  static_cast<void>(tell(s, 4, Cannot{kEpoch, PeerId{9}, "no route"}));
  State next;
  Register held = *s.held;
  held.epoch = s.proposal;
  static_cast<void>(step(next, TakenOver{held}));
  static_cast<void>(step(next, RegisterWritten{*next.writing, true}));
  EXPECT_EQ(next.cannot, (std::set<std::pair<PeerId, PeerId>>{{PeerId{4}, PeerId{9}}}));
}

TEST(Master, a_mismatch_fails_the_operation_everywhere_and_what_follows_is_not_committed) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(tell(s, 1, Done{kEpoch, {OpKey{1, 1}}}));
  EXPECT_EQ(sent<FailOp>(tell(s, 2, Mismatch{kEpoch, OpKey{1, 0}, Error{ErrorCode::mismatch, "x"}}))
                .size(),
            2U);
  EXPECT_TRUE(tell(s, 2, Mismatch{kEpoch, OpKey{1, 0}, Error{ErrorCode::mismatch, "x"}}).empty())
      << "once";
  EXPECT_TRUE(tell(s, 2, Done{kEpoch, {OpKey{1, 1}}}).empty());
}

/// All texts of log lines, proposals and failures.
std::string all_texts(const Actions& actions) {
  std::string all;
  for (const Say& line : cast::all<Say>(actions)) all += line.text + "|";
  for (const auto& [to, m] : sent<Propose>(actions)) all += m.why + "|";
  for (const auto& [to, m] : sent<FailOp>(actions)) all += m.failure.error.text + "|";
  return all;
}

TEST(Master, what_a_peer_says_is_shown_without_its_control_characters) {
  const std::string evil = "x\n12:00:00 pccl WARNING \x1b[31mall is lost";
  const std::string shown = "x?12:00:00 pccl WARNING ?[31mall is lost";
  const auto expect_shown = [&](const PeerToMaster& message) {
    State s = in_office({member(1), member(2), member(3)});
    const std::string texts = all_texts(tell(s, 2, message));
    EXPECT_NE(texts.find(shown), std::string::npos) << texts;
    EXPECT_EQ(texts.find_first_of("\n\x1b"), std::string::npos) << texts;
  };
  expect_shown(Bye{evil});
  expect_shown(Cannot{kEpoch, PeerId{1}, evil, {}});
  expect_shown(Mismatch{kEpoch, OpKey{1, 0}, Error{ErrorCode::mismatch, evil}});
}

TEST(Master, what_has_ended_the_program_of_a_newcomer_is_said_at_once) {
  State s = in_office({member(1), member(2)});
  cast::newcomer(s, member(3));
  const auto said = cast::all<Say>(tell(s, 3, Bye{"ValueError: its model has 7 tensors"}));
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(said[0].warning);
  EXPECT_NE(said[0].text.find("was ended by ValueError: its model has 7 tensors"),
            std::string::npos)
      << said[0].text;
  State other = in_office({member(1), member(2)});
  cast::newcomer(other, member(3));
  EXPECT_TRUE(cast::all<Say>(tell(other, 3, Bye{})).empty()) << "who leaves says so itself";
}

TEST(Master, a_rank_that_was_killed_is_no_consequence_of_what_its_replica_did_then) {
  for (const std::string failure : {"PeerLostError: rank 1 was lost", ""}) {
    State s = in_office({member(1), member(2, "r", 0, 2), member(3, "r", 1, 2)});
    static_cast<void>(step(s, PeerDisconnected{PeerId{3}}));
    const std::string texts = all_texts(tell(s, 2, Bye{failure}));
    EXPECT_NE(texts.find("its connection to the master has closed"), std::string::npos) << texts;
    EXPECT_EQ(texts.find("of its replica"), std::string::npos) << texts;
  }
}

TEST(Master, who_was_stopped_gives_its_members_time_to_come_back) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(step(s, PeerDisconnected{PeerId{2}}));
  const Actions out = step(s, Woke{});
  EXPECT_EQ(cast::all<StartTimer>(out).at(0).kind, TimerKind::patience);
  EXPECT_EQ(cast::all<StopTimer>(out).at(0).kind, TimerKind::absence);
  EXPECT_FALSE(sent<Propose>(step(s, PatienceOver{})).empty());
}

TEST(Master, a_signal_ends_the_run_only_by_ctrl_c_and_after_the_members_could_have_come_back) {
  State s = in_office({member(1)});
  const auto write_nothing = [&](bool ends_wait) {
    return cast::all<WriteRegister>(step(s, OperatorStops{ends_wait})).empty();
  };
  EXPECT_TRUE(write_nothing(true)) << "connected";
  static_cast<void>(step(s, PeerDisconnected{PeerId{1}}));
  static_cast<void>(step(s, Woke{}));
  ASSERT_TRUE(s.patient);
  EXPECT_TRUE(write_nothing(true)) << "it may be dialling";
  static_cast<void>(step(s, PatienceOver{}));
  ASSERT_TRUE(s.refounding);
  EXPECT_TRUE(write_nothing(false)) << "a supervisor restarts this master";
  s.unknown.insert(PeerId{7});
  EXPECT_TRUE(write_nothing(true)) << "the operator is asked about that peer";
  s.unknown.clear();
  EXPECT_TRUE(cast::all<WriteRegister>(step(s, OperatorStops{true})).at(0).to.over);
}

TEST(Master, a_signal_ends_a_run_whose_members_are_all_known_to_be_gone) {
  State s = in_office({member(1)});
  s.seats.at(PeerId{1}).departed = true;
  s.peers.clear();
  EXPECT_TRUE(cast::all<WriteRegister>(step(s, OperatorStops{})).at(0).to.over);
}

TEST(Master, numbers_of_epochs_go_on_in_the_next_run) {
  story::Story story;
  for (const char* command :
       {"config min_peers=1", "boot", "connect 1", "over founding", "bye 1", "connect 2"}) {
    story.run(command);
  }
  EXPECT_FALSE(story.held().over);
  EXPECT_EQ(story.held().epoch->id, EpochId::make(1, 2));
  EXPECT_EQ(story.held().passed, 0U);
}

TEST(Master, garbage_from_a_peer_changes_nothing_for_the_others) {
  State s = in_office({member(1), member(2)});
  for (const PeerToMaster& message : std::initializer_list<PeerToMaster>{
           Hello{}, Ready{}, Cannot{kEpoch, PeerId{77}, ""}, Cannot{kEpoch, PeerId{1}, ""},
           Suspect{kEpoch, PeerId{1}, true}, Relinked{}, Done{}, Mismatch{}, Expired{}, Knock{},
           Vote{1, VoteKind::none, {}}, StoreRequest{}}) {
    EXPECT_TRUE(tell(s, 1, message).empty()) << message.index();
  }
  EXPECT_TRUE(s.running);
}

TEST(Master, refound_gives_up_members_that_do_not_come_back) {
  State s;
  s.config.refound = true;
  const Register held{4, Epoch{EpochId::make(4, 2), {member(1)}, {}, true}, 3, false};
  static_cast<void>(step(s, TakenOver{held}));
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  const Actions out = step(s, PatienceOver{});
  const auto writes = cast::all<WriteRegister>(out);
  ASSERT_EQ(writes.size(), 1U);
  EXPECT_TRUE(writes[0].to.over);
}

TEST(Master, expels_members_and_newcomers_whose_token_was_revoked_and_those_who_are_away) {
  std::vector<Member> members = {cast::member(1), cast::member(2), cast::member(3)};
  members[0].token = members[2].token = "a";
  members[1].token = "b";
  State s = cast::in_office(members);
  static_cast<void>(step(s, PeerDisconnected{PeerId{3}}));
  EXPECT_TRUE(step(s, TokensAre{{{"a"}, {"b"}}}).empty());
  const Actions out = step(s, TokensAre{{{"b"}}});
  const auto evicted = std::count_if(out.begin(), out.end(), [](const Action& action) {
    const auto* send = std::get_if<Send>(&action);
    return send != nullptr && send->peer == PeerId{1} &&
           std::holds_alternative<Evicted>(send->message);
  });
  EXPECT_EQ(evicted, 1);
  EXPECT_TRUE(is_expelled(s, PeerId{1}));
  EXPECT_TRUE(is_expelled(s, PeerId{3}));
  EXPECT_FALSE(is_expelled(s, PeerId{2}));
  EXPECT_FALSE(s.peers.contains(PeerId{1}));
}

TEST(Master, a_run_whose_tokens_were_all_revoked_waits_for_newcomers_and_not_for_its_members) {
  std::vector<Member> members = {cast::member(1), cast::member(2)};
  members[0].token = "a";
  members[1].token = "b";
  State s = cast::in_office(members);
  const Actions out = step(s, TokensAre{{{"c"}}});
  const auto said = cast::all<Say>(out);
  const auto text = std::find_if(said.begin(), said.end(), [](const Say& say) {
    return say.text.find("the tokens of these were revoked: rank 0 ") != std::string::npos &&
           say.text.find("The run waits for newcomers with valid tokens") != std::string::npos;
  });
  EXPECT_NE(text, said.end());
  for (const Say& say : said) EXPECT_EQ(say.text.find("may come back"), std::string::npos);
  const auto writes = cast::all<WriteRegister>(out);
  ASSERT_EQ(writes.size(), 1U);
  EXPECT_TRUE(writes[0].to.over);  // newcomers need not wait for --refound-after
}

TEST(Master, writes_into_the_register_what_was_revoked_and_expels_by_it_whatever_its_file_says) {
  std::vector<Member> members = {cast::member(1), cast::member(2)};
  members[0].token = "a";
  members[1].token = "b";
  State s = cast::in_office(members);
  const TokenMark a{"a", {1}};
  const TokenMark b{"b", {2}};
  const auto writes = cast::all<WriteRegister>(step(s, TokensAre{{a, b}, {{"c", {3}}}}));
  ASSERT_EQ(writes.size(), 1U);
  EXPECT_EQ(writes[0].to.revoked, (std::vector<TokenMark>{{"c", {3}}}));
  EXPECT_EQ(writes[0].to.epoch, s.held->epoch);
  static_cast<void>(step(s, RegisterWritten{writes[0].to, true}));
  EXPECT_TRUE(s.running);
  EXPECT_TRUE(step(s, TokensAre{{a, b}, {{"c", {3}}}}).empty());  // it is written already
  const auto more = cast::all<WriteRegister>(step(s, TokensAre{{a}, {b}}));
  ASSERT_EQ(more.size(), 1U);
  EXPECT_EQ(more[0].to.revoked.size(), 2U);
  EXPECT_TRUE(is_expelled(s, PeerId{2}));
  static_cast<void>(step(s, RegisterWritten{more[0].to, true}));
  EXPECT_TRUE(s.proposal.has_value());  // the run goes on without it
  static_cast<void>(step(s, TokensAre{{{"a", {9}}, b}, {}}));
  EXPECT_FALSE(is_expelled(s, PeerId{1}));  // another secret under that name is another token
}

TEST(Master, a_member_of_a_token_that_the_register_calls_revoked_is_expelled) {
  std::vector<Member> members = {cast::member(1), cast::member(2)};
  members[0].token = "a";
  State s = cast::in_office(members);
  s.held->revoked = {{"a", {1}}};
  static_cast<void>(step(s, TokensAre{{{"a", {1}}}}));
  EXPECT_TRUE(is_expelled(s, PeerId{1}));
}

TEST(Master, the_register_names_so_many_revoked_tokens_and_the_newest_stay) {
  State s = cast::in_office({cast::member(1)});
  std::vector<TokenMark> gone;
  for (std::size_t i = 0; i <= kRevokedMax; ++i) gone.push_back({std::to_string(i), {}});
  const auto writes = cast::all<WriteRegister>(step(s, TokensAre{{}, gone}));
  ASSERT_EQ(writes.size(), 1U);
  EXPECT_EQ(writes[0].to.revoked.size(), kRevokedMax);
  EXPECT_EQ(writes[0].to.revoked.front().name, "1");
}

}  // namespace
}  // namespace pccl::master
