// How a run is finished, and who is told so. The stories are tests/sim/transcripts/finish*.txt.
#include <gtest/gtest.h>

#include "membership/master_rules.h"
#include "story.h"

namespace pccl {
namespace {

using story::Story;

/// A run of two members that stand at the boundary after its founding.
void found(Story& story) {
  story.run_all({"config min_peers=2 run=gpt", "boot", "connect 1", "connect 2", "over founding",
                 "refresh 1", "refresh 2"});
}

TEST(Ending, the_register_keeps_step_and_time) {
  Story story;
  found(story);
  for (const char* command : {"clock 9 unix=1795471265", "state 1 600/a", "finish 1"}) {
    static_cast<void>(story.run(command));
  }
  EXPECT_FALSE(story.held().over);
  static_cast<void>(story.run("finish 2"));
  ASSERT_TRUE(story.held().over);
  EXPECT_EQ(story.held().ended, (master::Ending{600, 1795471265, 1, {PeerId{1}, PeerId{2}}}));
  EXPECT_TRUE(story.peer(1).over);
  EXPECT_TRUE(story.peer(2).over);
}

TEST(Ending, the_text_has_day_and_time) {
  const auto text = [](std::uint64_t unix_s) {
    master::State s;
    s.held.emplace();
    s.held->ended = master::Ending{1, unix_s};
    const std::string all = ending_text(s, "the run");
    const std::size_t from = all.find("on ") + 3;
    return all.substr(from, all.find(';') - from);
  };
  EXPECT_EQ(text(1), "1970-01-01 at 00:00:01 UTC");
  EXPECT_EQ(text(951782399), "2000-02-28 at 23:59:59 UTC");
  EXPECT_EQ(text(951782400), "2000-02-29 at 00:00:00 UTC");
  EXPECT_EQ(text(1767225599), "2025-12-31 at 23:59:59 UTC");
  EXPECT_EQ(text(1772323200), "2026-03-01 at 00:00:00 UTC");
  EXPECT_EQ(text(1795471265), "2026-11-23 at 22:01:05 UTC");
}

TEST(Ending, that_all_leave_finishes_nothing) {
  Story story;
  found(story);
  for (const char* command : {"leave 1", "leave 2", "refresh 1", "refresh 2"}) {
    static_cast<void>(story.run(command));
  }
  EXPECT_TRUE(story.held().over);
  EXPECT_FALSE(story.held().ended);
}

TEST(Ending, a_master_that_reads_it_turns_all_away_that_have_not_finished) {
  master::State s;
  s.config.run = "gpt";
  master::Register held;
  held.incarnation = 3;
  held.over = true;
  held.ended = master::Ending{600, 0};
  master::Actions out = step(s, master::TakenOver{held});
  master::Register mine = held;
  mine.incarnation = 4;
  out = step(s, master::RegisterWritten{mine, true});
  Hello late;
  late.member.handle.peer = PeerId{7};
  late.member.place.replica = "late";
  out = step(s, master::PeerConnected{late});
  ASSERT_EQ(out.size(), 2U);
  const auto& refuse = std::get<Refuse>(std::get<master::Send>(out[0]).message);
  EXPECT_TRUE(refuse.ended);
  EXPECT_EQ(refuse.error.code, ErrorCode::refused);  // which older packages know
  EXPECT_EQ(refuse.error.text,
            "the run \"gpt\" is finished, after step 600; a master started with --again and this "
            "time opens it "
            "anew");
  EXPECT_TRUE(std::holds_alternative<master::Close>(out[1]));
  EXPECT_TRUE(s.peers.empty());

  late.report.started = EpochId::make(3, 2);  // has lost the answer with its connection
  late.report.vote = VoteKind::refresh;
  late.report.finish = true;
  s.held->epoch = Epoch{EpochId::make(3, 2), {}, {}, false};
  out = step(s, master::PeerConnected{late});
  EXPECT_TRUE(std::holds_alternative<Left>(std::get<master::Send>(out[0]).message));
}

TEST(Ending, a_new_master_knows_the_last_ranks) {
  Story story;
  story.run_all({"config min_peers=3 run=gpt", "boot", "connect 1", "connect 2", "connect 3",
                 "over founding", "refresh 1", "refresh 2", "refresh 3", "hold 2", "hold 3",
                 "finish 2", "finish 3", "crash 1", "over absence 1"});
  ASSERT_TRUE(story.held().ended);
  // Both lose the answer: rank 0 is lost, and without new ranks nobody would be the writer.
  story.run_all({"die", "config min_peers=3 run=gpt", "boot", "connect 2", "connect 3"});
  EXPECT_NE(story.run_all({"release 2"}).find("2 ranks are [2 3]"), std::string::npos);
  EXPECT_NE(story.run_all({"release 3"}).find("3 ranks are [2 3]"), std::string::npos);
}

TEST(Ending, who_was_lost_at_that_boundary_has_the_rank_behind_the_last) {
  Story story;
  found(story);
  story.run_all({"finish 1", "close 1", "over absence 1", "finish 2"});
  const std::string told = story.run_all({"connect 1"});
  EXPECT_NE(told.find("1 ranks are [2 1]"), std::string::npos) << told;
  EXPECT_NE(told.find("1 has finished"), std::string::npos) << told;
}

TEST(Ending, who_stood_elsewhere_when_the_others_went_on_has_not_finished_the_run) {
  Story story;
  found(story);
  story.run_all({"state 1 600/a", "finish 1", "close 1", "over absence 1", "refresh 2",
                 "state 2 700/b", "finish 2"});
  ASSERT_TRUE(story.held().ended);
  const std::string told = story.run_all({"connect 1"});
  EXPECT_NE(told.find("1 is refused: run_ended"), std::string::npos) << told;
}

/// Two foundings end at one boundary where a program makes the same number of steps each time.
TEST(Ending, a_member_of_an_earlier_founding_has_not_finished_the_run) {
  Story story;
  found(story);
  story.run_all({"finish 1", "close 1", "over absence 1", "crash 2", "over absence 2",
                 "over refound", "connect 3", "connect 4", "refresh 3", "refresh 4", "finish 3",
                 "finish 4"});
  ASSERT_TRUE(story.held().ended);
  ASSERT_EQ(story.held().ended->boundary, story.peer(1).step);
  const std::string told = story.run_all({"connect 1"});
  EXPECT_NE(told.find("1 is refused: run_ended"), std::string::npos) << told;
}

TEST(Ending, a_newcomer_that_was_admitted_has_finished_the_run_as_the_others_have) {
  Story story;
  found(story);
  std::string told;
  for (const char* command :
       {"connect 3", "refresh 3", "refresh 1", "refresh 2", "finish 1", "finish 2", "finish 3"}) {
    told += story.run_all({command});
  }
  ASSERT_TRUE(story.held().ended) << told;
  EXPECT_EQ(story.held().ended->members.size(), 3U) << told;
  for (const char* peer : {"1", "2", "3"}) {
    EXPECT_NE(told.find(std::string(peer) + " has finished"), std::string::npos) << told;
  }
}

TEST(Ending, members_that_stand_at_different_boundaries_finish_nothing) {
  Story story;
  found(story);
  story.run_all(
      {"issue 1", "issue 2", "complete 1 1.0", "complete 2 1.0", "refresh 2", "finish 1"});
  ASSERT_EQ(story.peer(2).step, 2U) << "it has passed the boundary at which the other one stands";
  story.run_all({"finish 2"});
  EXPECT_FALSE(story.held().over);
}

TEST(Ending, a_newcomer_that_says_so_has_nothing_to_finish) {
  peer::State s;
  s.self.handle.peer = PeerId{1};
  static_cast<void>(step(s, peer::MasterConnected{}));
  static_cast<void>(
      step(s, peer::AtBoundary{VoteKind::refresh, false, true, {false, 5, {}}, true}));
  EXPECT_FALSE(s.finish);
}

}  // namespace
}  // namespace pccl
