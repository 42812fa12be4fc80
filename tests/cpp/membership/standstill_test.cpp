// All members are gone: who is waited for, and what newcomers hear. The stories are
// tests/sim/transcripts/all_lost.txt and all_dead.txt.
#include <gtest/gtest.h>

#include "cast.h"
#include "membership/master_rules.h"
#include "story.h"

namespace pccl {
namespace {

using story::Story;

void lose_two(Story& story) {
  story.run_all({"config min_peers=2", "boot", "clock 100", "connect 1", "connect 2",
                 "over founding", "refresh 1", "refresh 2", "crash 1", "crash 2", "over absence 1",
                 "over absence 2"});
}

TEST(Standstill, it_says_who_may_come_back_and_how_long) {
  Story story;
  lose_two(story);
  story.run_all({"clock 110", "connect 3"});
  const std::string text = standstill(story.master());
  EXPECT_NE(text.find("rank 0 (0000000000000001), rank 1 (0000000000000002) may come back for 50 s "
                      "(--refound-after)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("1 newcomer waits"), std::string::npos) << text;
  EXPECT_NE(text.find("stop this master with Ctrl-C (SIGINT), and start it again"),
            std::string::npos)
      << text;
}

TEST(Standstill, it_advises_nothing_where_the_operator_has_given_the_members_up) {
  Story story;
  lose_two(story);
  master::State s = story.master();
  EXPECT_NE(standstill(s).find("Ctrl-C"), std::string::npos);
  s.config.refound = true;
  EXPECT_NE(standstill(s), "");
  EXPECT_EQ(standstill(s).find("If those members are dead"), std::string::npos);
}

/// The text names members, so making it takes as long as there are members.
TEST(Standstill, newcomers_are_told_again_by_one_message_to_all) {
  Story story;
  lose_two(story);
  story.run_all({"connect 3", "connect 4", "connect 5"});
  master::State s = story.master();
  const master::Actions out = master::step(s, master::Clock{s.stands_until_s - 1, 0});
  ASSERT_EQ(out.size(), 1U);
  ASSERT_TRUE(std::holds_alternative<master::SendAll>(out.front()));
  EXPECT_EQ(std::get<master::SendAll>(out.front()).peers.size(), 3U);
}

TEST(Standstill, a_newcomer_hears_it_once_when_it_comes) {
  Story story;
  lose_two(story);
  story.run_all({"connect 3"});
  master::State s = story.master();
  s.tells_again_s = 0;  // as after the start of a master, which is told the time after that
  EXPECT_TRUE(master::step(s, master::Clock{s.now_s, 0}).empty());
  s.tells_again_s = 0;
  EXPECT_EQ(master::step(s, master::Clock{s.now_s + 5, 0}).size(), 1U);
}

TEST(Standstill, a_member_that_is_not_seen_to_have_ended_is_waited_for) {
  Story story;
  lose_two(story);
  story.run_all({"connect 3", "connect 4", "died 1"});
  EXPECT_TRUE(story.master().refounding);
  EXPECT_EQ(standstill(story.master()).find("rank 0 ("), std::string::npos);
  story.run_all({"died 2"});
  EXPECT_FALSE(story.master().refounding);
  EXPECT_TRUE(story.peer(3).started);
  EXPECT_TRUE(story.peer(4).started);
}

TEST(Standstill, while_a_member_is_here_a_death_that_is_seen_changes_nothing_for_it) {
  Story story;
  story.run_all({"config min_peers=2", "boot", "connect 1", "connect 2", "over founding",
                 "refresh 1", "refresh 2",
                 "died 1"});  // it is connected: what was seen is another process
  EXPECT_TRUE(story.master().running);
  story.run_all({"crash 1", "died 1"});
  EXPECT_TRUE(story.master().running);
  EXPECT_EQ(story.held().epoch->members.size(), 1U);
  EXPECT_EQ(standstill(story.master()), "");
}

TEST(Standstill, who_may_be_with_a_master_before_this_one_is_waited_for_longer) {
  master::State s = cast::in_office({});
  s.config.refound_after_ms = 60000;
  s.config.lapse_ms = 600000;
  s.held->incarnation = 2;
  EXPECT_EQ(refound_ms(s), 60000U);
  s.config.shared = true;
  EXPECT_EQ(refound_ms(s), 660000U);
  s.held->epoch->id = EpochId::make(2, 1);
  EXPECT_EQ(refound_ms(s), 60000U);
}

}  // namespace
}  // namespace pccl
