#include <gtest/gtest.h>

#include "cast.h"
#include "membership/status.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::sent;

/// A master that knows nothing, in office, and what peers of a run that it does not know tell it.
struct Stranger {
  State s;
  Actions out;

  explicit Stranger(bool adopt, bool refound = false, const Register& held = {}) {
    s.config.adopt = adopt;
    s.config.refound = refound;
    static_cast<void>(step(s, TakenOver{held}));
    out = step(s, RegisterWritten{*s.writing, true});
  }
  void hello(std::uint64_t id, std::vector<std::uint64_t> of) {
    Hello hello;
    hello.member = member(id);
    hello.report.started = hello.report.accepted = EpochId::make(7, 3);
    for (const std::uint64_t p : of) hello.report.started_members.push_back(PeerId{p});
    hello.report.pinned = hello.report.started_members;
    hello.report.passed = hello.report.step = 12;
    out = step(s, PeerConnected{hello});
  }
};

TEST(Unknown, an_epoch_that_the_register_does_not_know_is_adopted_when_all_its_members_are_here) {
  Stranger lost(/*adopt=*/true);
  lost.hello(2, {1, 2});
  EXPECT_FALSE(lost.s.writing.has_value());
  const std::string waits = cast::all<Say>(lost.out).at(0).text;
  EXPECT_NE(waits.find("goes on when all members of that epoch are here, and after 15 s at most"),
            std::string::npos)
      << waits;
  EXPECT_EQ(whom_a_run_waits_for(lost.s, [](PeerId) { return std::string(); }), waits);
  lost.hello(1, {1, 2});
  ASSERT_TRUE(lost.s.writing.has_value());
  EXPECT_EQ(cast::all<Say>(lost.out).size(), 1U) << "that it is adopted";
  const Register to = *lost.s.writing;
  EXPECT_EQ(to.incarnation, 8U) << "above all heard of";
  EXPECT_EQ(to.epoch->id, EpochId::make(7, 3));
  EXPECT_EQ(ids_of(to.epoch->members), (std::vector<PeerId>{PeerId{1}, PeerId{2}}));
  EXPECT_EQ(to.passed, 12U);
  lost.out = step(lost.s, RegisterWritten{to, true});
  const auto proposals = sent<Propose>(lost.out);
  ASSERT_EQ(proposals.size(), 2U);
  EXPECT_EQ(proposals[0].second.epoch.id, EpochId::make(8, 1));
  EXPECT_FALSE(lost.s.config.adopt) << "it was the answer to this question only";
}

TEST(Unknown, a_newcomer_that_waits_while_a_run_is_adopted_hears_that_there_is_one) {
  Stranger lost(/*adopt=*/true);
  Hello newcomer;
  newcomer.member = member(9);
  const Actions out = step(lost.s, PeerConnected{newcomer});
  ASSERT_EQ(sent<Welcome>(out).size(), 1U);
  EXPECT_FALSE(sent<Welcome>(out)[0].second.founded);
  lost.hello(1, {1});
  lost.out = step(lost.s, RegisterWritten{*lost.s.writing, true});
  const auto welcomes = sent<Welcome>(lost.out);
  ASSERT_EQ(welcomes.size(), 1U) << "the members have started, and hear of the next epoch";
  EXPECT_EQ(welcomes[0].first, PeerId{9});
  EXPECT_TRUE(welcomes[0].second.founded);
}

TEST(Unknown, an_adopted_epoch_counts_its_own_steps_where_the_register_is_of_a_run_that_is_over) {
  Stranger lost(/*adopt=*/true, /*refound=*/false,
                Register{1, Epoch{EpochId::make(1, 2), {member(8)}, {}, true}, 40, true});
  lost.hello(1, {1});
  ASSERT_TRUE(lost.s.writing.has_value());
  EXPECT_EQ(lost.s.writing->passed, 12U) << "else its votes for step 12 would never count";
}

TEST(Unknown, a_member_of_another_run_than_that_of_the_register_hears_what_the_register_says) {
  Stranger stale(/*adopt=*/false, /*refound=*/false,
                 Register{9, Epoch{EpochId::make(9, 2), {member(8)}, {}, true}, 40, true});
  stale.hello(1, {1});
  const auto told = sent<Evicted>(stale.out);
  ASSERT_EQ(told.size(), 1U);
  const std::string& text = told[0].second.text;
  EXPECT_TRUE(
      text.starts_with("no member is left: the newest epoch in this master's register is "
                       "9.2, of 1 member, and the run of that register is over"))
      << text;
  EXPECT_NE(text.find("does not name this process, which is in epoch 7.3"), std::string::npos);
  EXPECT_NE(text.find("--adopt"), std::string::npos);
}

TEST(Unknown, a_member_that_comes_after_the_end_of_its_run_hears_of_no_other_run) {
  Stranger late(/*adopt=*/false, /*refound=*/false,
                Register{9, Epoch{EpochId::make(7, 3), {member(1)}, {}, true}, 12, true});
  late.hello(1, {1});
  const auto told = sent<Evicted>(late.out);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].second.text.find("7.3, of 1 member, and the run"), std::string::npos);
  EXPECT_EQ(told[0].second.text.find("--adopt"), std::string::npos);
}

TEST(Unknown, after_its_patience_an_epoch_is_adopted_with_those_who_are_here) {
  Stranger lost(/*adopt=*/true);
  lost.hello(2, {1, 2, 3});
  lost.hello(3, {1, 2, 3});
  lost.out = step(lost.s, PatienceOver{});
  ASSERT_TRUE(lost.s.writing.has_value());
  EXPECT_EQ(ids_of(lost.s.writing->epoch->members), (std::vector<PeerId>{PeerId{2}, PeerId{3}}));
}

TEST(Unknown, without_the_operators_word_nothing_goes_on_from_an_unknown_epoch) {
  Stranger lost(/*adopt=*/false);
  lost.hello(1, {1});
  EXPECT_FALSE(lost.s.writing.has_value());
  EXPECT_TRUE(sent<Propose>(lost.out).empty());
  const std::string asked = cast::all<Say>(lost.out).at(0).text;
  EXPECT_NE(asked.find("--adopt"), std::string::npos);
  const auto nowhere = [](PeerId) { return std::string(); };
  EXPECT_EQ(whom_a_run_waits_for(lost.s, nowhere), asked) << "and not for replicas to found it";
}

TEST(Unknown, a_run_whose_register_is_an_older_copy_says_for_what_it_waits) {
  Stranger lost(/*adopt=*/false, /*refound=*/false,
                Register{6, Epoch{EpochId::make(6, 1), {member(1), member(2)}, {}, true}, 4});
  lost.hello(1, {1});
  const auto nowhere = [](PeerId) { return std::string(); };
  EXPECT_NE(whom_a_run_waits_for(lost.s, nowhere).find("epoch 7.3 is not known to the register"),
            std::string::npos);
  lost.out = step(lost.s, PatienceOver{});
  EXPECT_NE(whom_a_run_waits_for(lost.s, nowhere).find("or start this master with --adopt"),
            std::string::npos);
}

TEST(Unknown, refound_gives_up_members_that_the_register_does_not_know) {
  Stranger lost(/*adopt=*/false, /*refound=*/true);
  lost.hello(1, {1});
  EXPECT_EQ(sent<Evicted>(lost.out).size(), 1U);
  EXPECT_GT(lost.s.held->incarnation, 60000U) << "no number of theirs is used again";
}

TEST(Unknown, a_peer_that_knows_a_newer_master_deposes_one_of_several_once) {
  Stranger old(/*adopt=*/false);
  old.s.config.shared = true;
  old.hello(1, {1});
  EXPECT_EQ(cast::all<Deposed>(old.out).size(), 1U);
  EXPECT_FALSE(old.s.holds);
  static_cast<void>(step(old.s, TakenOver{Register{}}));  // read anew, and it is not there
  static_cast<void>(step(old.s, RegisterWritten{*old.s.writing, true}));
  old.hello(1, {1});
  EXPECT_TRUE(cast::all<Deposed>(old.out).empty());
  EXPECT_NE(cast::all<Say>(old.out).at(0).text.find("--adopt"), std::string::npos);
}

TEST(Unknown, a_member_that_has_started_what_was_only_proposed_does_not_stop_the_run) {
  State s = in_office({member(1), member(2), member(3)});
  Hello hello;
  hello.member = member(3);
  hello.report = cast::report(s, 3);
  static_cast<void>(step(s, PeerMessage{PeerId{1}, Relinked{EpochId::make(1, 1), PeerId{2}}}));
  ASSERT_EQ(s.proposal->id, EpochId::make(1, 2));
  hello.report.started = hello.report.accepted = s.proposal->id;  // it has the mark of this one
  const Actions out = step(s, PeerConnected{hello, ""});
  ASSERT_EQ(sent<Evicted>(out).size(), 1U);
  EXPECT_EQ(sent<Evicted>(out)[0].first, PeerId{3});
  EXPECT_TRUE(s.unknown.empty());
  EXPECT_EQ(cast::proposed(out), cast::peers({1, 2}));
}

}  // namespace
}  // namespace pccl::master
