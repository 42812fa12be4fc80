// What a written register begins or ends. The stories are tests/sim/transcripts/all_lost.txt and
// finish*.txt.
#include <gtest/gtest.h>

#include "cast.h"
#include "story.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::report;
using cast::sent;

TEST(Starts, start_follows_the_answer_of_the_register_only) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(step(s, PeerGone{PeerId{2}, "silent"}));
  const EpochId id = s.proposal->id;
  Report ready = report(s, 1);
  ready.accepted = id;
  const Actions written = step(s, PeerMessage{PeerId{1}, Ready{id, ready}});
  EXPECT_TRUE(sent<Start>(written).empty());
  ASSERT_EQ(cast::all<WriteRegister>(written).size(), 1U);
  const Register to = cast::all<WriteRegister>(written)[0].to;
  EXPECT_EQ(to.epoch->id, id);
  EXPECT_EQ(sent<Start>(step(s, RegisterWritten{to, true})).size(), 1U);
  EXPECT_TRUE(s.running);
}

TEST(Starts, when_all_have_said_goodbye_the_run_is_over) {
  story::Story story;
  for (const char* command : {"config min_peers=2", "boot", "connect 1", "connect 2",
                              "over founding", "bye 1", "bye 2"}) {
    story.run(command);
  }
  EXPECT_TRUE(story.held().over);
}

TEST(Starts, when_all_are_lost_the_run_is_over_after_a_while_and_late_ones_are_evicted) {
  story::Story story;
  for (const char* command :
       {"config min_peers=2", "boot", "connect 1", "connect 2", "over founding", "crash 2",
        "over absence 2", "close 1", "over absence 1"}) {
    story.run(command);
  }
  EXPECT_FALSE(story.held().over);
  EXPECT_TRUE(story.master().refounding);
  story.run("over refound");
  EXPECT_TRUE(story.held().over);
  const auto lines = story.run("connect 1");
  EXPECT_EQ(lines.back(), "  1 is evicted");
}

TEST(Starts, a_member_that_comes_back_in_time_stops_the_refounding) {
  story::Story story;
  for (const char* command : {"config min_peers=1", "boot", "connect 1", "over founding", "close 1",
                              "over absence 1", "connect 1", "over refound"}) {
    story.run(command);
  }
  EXPECT_FALSE(story.held().over);
  EXPECT_TRUE(story.master().running);
}

TEST(Starts, it_is_remembered_why_members_were_lost_of_the_newest_ones) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(step(s, PeerGone{PeerId{2}, "silent for 10.0 s"}));
  Report ready = report(s, 1);
  ready.accepted = s.proposal->id;
  const Actions written = step(s, PeerMessage{PeerId{1}, Ready{s.proposal->id, ready}});
  EXPECT_EQ(why_lost(s, PeerId{2}), "") << "it may still come back";
  static_cast<void>(step(s, RegisterWritten{cast::all<WriteRegister>(written).at(0).to, true}));
  EXPECT_EQ(why_lost(s, PeerId{2}), ": silent for 10.0 s");
  EXPECT_EQ(why_lost(s, PeerId{1}), "");
  while (s.lost_lately.size() < kLostLatelyMax) s.lost_lately.emplace_back(PeerId{9}, "gone");
  static_cast<void>(step(s, PeerDisconnected{PeerId{1}}));
  static_cast<void>(step(s, PeerGone{PeerId{1}, "its process has ended"}));
  static_cast<void>(step(s, RefoundOver{}));
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  EXPECT_EQ(s.lost_lately.size(), kLostLatelyMax);
  EXPECT_EQ(why_lost(s, PeerId{2}), "") << "the oldest one";
  EXPECT_EQ(why_lost(s, PeerId{1}), ": its process has ended");
}

}  // namespace
}  // namespace pccl::master
