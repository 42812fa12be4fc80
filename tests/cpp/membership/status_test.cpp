#include "membership/status.h"

#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::tell;

void at(State& s, std::uint64_t second) { static_cast<void>(step(s, Clock{second})); }

TEST(Status, names_each_member_with_what_it_does_and_how_late_it_is) {
  Member named = member(2);
  named.handle.name = "evil\n\x1b[2J";
  State s = in_office({member(1), named, member(3)});
  at(s, 100);
  static_cast<void>(tell(s, 1, Heartbeat{OpKey{1, 5}}));
  static_cast<void>(tell(s, 2, Heartbeat{OpKey{1, 4}}));
  at(s, 107);
  static_cast<void>(tell(s, 3, Heartbeat{OpKey{1, 5}}));
  const Status status = status_of(s, {{PeerId{2}, Seen{"10.0.0.2:51000", 6900}}});
  EXPECT_EQ(status.state, "running");
  EXPECT_EQ(status.epoch, cast::kEpoch);
  EXPECT_EQ(status.step, 1U);
  EXPECT_EQ(status.member_count, 3U);
  ASSERT_EQ(status.members.size(), 3U);
  EXPECT_EQ(status.members[0].name, "0000000000000001");
  EXPECT_EQ(status.members[0].detail, "in step 1, called 1.4");
  EXPECT_EQ(status.members[0].late_s, 0U);
  EXPECT_EQ(status.members[1].name, "evil??[2J");
  EXPECT_EQ(status.members[1].rank, 1U);
  EXPECT_EQ(status.members[1].address, "10.0.0.2:51000");
  EXPECT_EQ(status.members[1].silent_ms, 6900U);
  EXPECT_EQ(status.members[1].late_s, 7U);
}

TEST(Status, says_who_is_done_with_the_oldest_operation_that_is_not_committed) {
  State s = in_office({member(1), member(2)});
  at(s, 100);
  static_cast<void>(tell(s, 1, Heartbeat{OpKey{1, 5}}));
  static_cast<void>(tell(s, 1, Done{cast::kEpoch, {OpKey{1, 3}, OpKey{1, 4}}}));
  static_cast<void>(tell(s, 2, Heartbeat{OpKey{1, 4}}));
  Status status = status_of(s, {});
  ASSERT_EQ(status.members.size(), 2U);
  EXPECT_EQ(status.members[0].detail, "in step 1, called 1.4, done with 1.3");
  EXPECT_EQ(status.members[1].detail, "in step 1, called 1.3, not done with 1.3");
  static_cast<void>(tell(s, 2, Done{cast::kEpoch, {OpKey{1, 3}, OpKey{1, 4}}}));
  status = status_of(s, {});
  EXPECT_EQ(status.members[1].detail, "in step 1, called 1.4") << "both are committed";
}

TEST(Status, before_a_run_is_founded_whole_replicas_are_counted) {
  State s;
  s.config.min_peers = 2;
  static_cast<void>(step(s, TakenOver{Register{}}));
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  const auto text = [&] { return whom_a_run_waits_for(s, [](PeerId) { return std::string(); }); };
  cast::newcomer(s, member(1, "a", 0, 2));
  EXPECT_EQ(text(),
            "waiting for 2 replicas to found the run; 1 peer connected, of 0 whole replicas");
  cast::newcomer(s, member(2, "a", 1, 2));
  EXPECT_EQ(text(),
            "waiting for 2 replicas to found the run; 2 peers connected, of 1 whole replica");
}

TEST(Status, who_has_not_come_to_the_boundary_where_others_stand_is_late) {
  State s = in_office({member(1), member(2)});
  at(s, 10);
  static_cast<void>(tell(s, 1, Vote{1, VoteKind::refresh, {}}));
  at(s, 15);
  const Status status = status_of(s, {});
  EXPECT_EQ(status.members[0].doing, "boundary");
  EXPECT_EQ(status.members[0].detail, "at the boundary of step 1");
  EXPECT_EQ(status.members[0].late_s, 0U);
  EXPECT_EQ(status.members[1].doing, "running");
  EXPECT_EQ(status.members[1].late_s, 5U);
}

TEST(Status, a_member_that_has_called_finish_is_said_to_be_there) {
  State s = in_office({member(1), member(2)});
  Vote vote{1, VoteKind::refresh, {}};
  vote.finish = true;
  static_cast<void>(tell(s, 1, vote));
  const auto status = status_of(s, {});
  EXPECT_EQ(status.members[0].doing, "boundary");
  EXPECT_EQ(status.members[0].detail, "in finish, after step 1");
}

TEST(Status, says_who_waits_at_the_door_and_for_what) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  cast::newcomer(s, member(3, "b", 0, 2));
  cast::newcomer(s, member(4, "c", 0, 2));
  cast::newcomer(s, member(5, "c", 1, 2), false);
  const Status status = status_of(s, {});
  EXPECT_EQ(status.door_count, 3U);
  ASSERT_EQ(status.door.size(), 3U);
  EXPECT_EQ(status.door[0].doing, "incomplete");
  EXPECT_EQ(status.door[0].detail, "replica b (attempt 0) has 2 ranks and waits for 1");
  EXPECT_EQ(status.door[1].doing, "door");
  EXPECT_EQ(status.door[2].doing, "arrived");
  EXPECT_EQ(status.members[1].group, 1U);
  EXPECT_EQ(status.members[1].rank, 0U);
  EXPECT_EQ(status.replicas, 1U);
}

TEST(Status, says_to_a_spare_of_a_full_run_that_it_waits_for_room) {
  State s = in_office({member(1), member(2)});
  s.config.max_peers = 3;
  Hello spare;
  spare.at_door = true;
  for (const std::uint64_t id : {3U, 4U}) {
    spare.member = member(id);
    static_cast<void>(step(s, PeerConnected{spare}));
  }
  Status status = status_of(s, {});
  EXPECT_EQ(status.door[0].doing, "trying");
  EXPECT_EQ(status.door[1].detail, "newcomers that came before take the room of the run");
  s.config.max_peers = 2;
  status = status_of(s, {});
  EXPECT_EQ(status.door[1].doing, "door");
  EXPECT_EQ(status.door[1].detail, "the run is full (--max-peers 2); waits until there is room");
}

TEST(Status, a_run_that_holds_says_how_many_replicas_are_there_and_how_many_it_needs) {
  State s = in_office({member(1), member(2)});
  s.config.hold_below = 2;
  static_cast<void>(step(s, PeerGone{PeerId{2}, "gone"}));
  static_cast<void>(tell(s, 1, Vote{1, VoteKind::refresh, {}}));
  ASSERT_EQ(status_of(s, {}).state, "holding");
  EXPECT_EQ(whom_a_run_waits_for(s, [](PeerId) { return std::string(); }),
            "waiting for replicas: 1 is here, and the run goes on with 2 (--hold-below)");
}

TEST(Status, a_run_that_holds_counts_no_newcomer_that_its_boundary_does_not_admit) {
  State s = in_office({member(1), member(2)});
  s.config.hold_below = 2;
  cast::newcomer(s, member(3));
  static_cast<void>(step(s, PeerGone{PeerId{2}, "gone"}));
  static_cast<void>(tell(s, 1, Vote{1, VoteKind::resume, {}}));
  ASSERT_EQ(status_of(s, {}).state, "holding");
  EXPECT_EQ(whom_a_run_waits_for(s, [](PeerId) { return std::string(); }),
            "waiting for replicas: 1 is here, and the run goes on with 2 (--hold-below)");
}

TEST(Status, a_member_whose_connection_is_gone_is_away) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(step(s, PeerDisconnected{PeerId{2}}));
  const Status status = status_of(s, {});
  EXPECT_EQ(status.members[1].doing, "away");
  EXPECT_EQ(status.members[1].detail, "not connected; may come back");
}

TEST(Status, of_a_run_that_is_not_founded_tells_who_has_come) {
  State s = in_office({});
  s.held->epoch.reset();
  cast::newcomer(s, member(1));
  const Status status = status_of(s, {});
  EXPECT_EQ(status.state, "founding");
  EXPECT_EQ(status.epoch, EpochId{});
  ASSERT_EQ(status.door.size(), 1U);
  EXPECT_EQ(status.door[0].doing, "founding");
}

TEST(Status, of_a_finished_run_tells_after_which_step_and_when) {
  State s = in_office({});
  s.held->over = true;
  s.held->ended = Ending{17, 1800000000};
  s.running = false;
  const Status status = status_of(s, {});
  EXPECT_EQ(status.state, "finished");
  EXPECT_EQ(status.step, 17U);
  EXPECT_NE(status.waits_for.find("finished, after step 17, on 2027-01-15 at 08:00:00 UTC"),
            std::string::npos)
      << status.waits_for;
}

TEST(Status, a_member_whose_process_has_ended_and_a_run_without_members_are_told) {
  Member here = member(1);
  here.process = ProcessName{7, 4711, 99};
  State s = in_office({here, member(2)});
  static_cast<void>(step(s, PeerGone{PeerId{1}, "gone"}));
  static_cast<void>(step(s, PeerDied{PeerId{1}}));
  static_cast<void>(step(s, PeerGone{PeerId{2}, "gone"}));
  cast::newcomer(s, member(3));
  const Status status = status_of(s, {});
  EXPECT_EQ(status.state, "lost");
  EXPECT_EQ(status.step, 1U) << "that of the last boundary that voted";
  ASSERT_EQ(status.door.size(), 1U);
  EXPECT_EQ(status.door[0].detail, "waits for members to come back, of which none is there now");
  EXPECT_EQ(status.members[0].detail, "its process has ended");
  EXPECT_EQ(status.members[0].process, 4711U);
  EXPECT_EQ(status.members[1].detail, "not connected");
}

TEST(Status, names_the_slowest_link_and_the_longest_round_trip_of_each_member) {
  State s = in_office({member(1), member(2), member(3), member(4)});
  s.peers.at(PeerId{2}).trips = Trips{80'000, 60'000};
  s.topology.begin({{0, cast::peers({1, 2, 3, 4})}}, {}, 0);
  for (std::uint64_t now_s = 0; now_s < 60; ++now_s) {
    for (const auto& [from, to, known] : s.topology.next(now_s)) {
      s.topology.measured(from, to, 1'000'000 * to.value, 70'000, now_s);
    }
  }
  const Status status = status_of(s, {});
  ASSERT_EQ(status.members.size(), 4U);
  EXPECT_EQ(status.members[1].farthest_us, 80'000U);
  EXPECT_EQ(status.members[1].slowest_to, PeerId{1});
  EXPECT_EQ(status.members[1].slowest_rate, 1'000'000U);
  EXPECT_EQ(status.members[1].slowest_us, 70'000U);
  EXPECT_EQ(status.members[0].slowest_to, PeerId{2});
  EXPECT_EQ(status.members[0].farthest_us, 0U) << "it has said none";
}

TEST(Status, before_a_master_is_in_charge_it_names_the_members_by_the_register) {
  State s;
  s.held = Register{3, Epoch{EpochId::make(3, 4), {member(1), member(2)}, {}, true}, 7};
  Status status = status_of(s, {});
  EXPECT_EQ(status.state, "starting");
  EXPECT_EQ(status.epoch, EpochId::make(3, 4));
  EXPECT_EQ(status.step, 7U);
  EXPECT_EQ(status.member_count, 2U);
  ASSERT_EQ(status.members.size(), 2U);
  EXPECT_EQ(status.members[1].rank, 1U);
  EXPECT_EQ(status.members[1].doing, "away");
  EXPECT_NE(status.members[1].detail.find("by the register"), std::string::npos);
  s.held->over = true;
  status = status_of(s, {});
  EXPECT_TRUE(status.members.empty());
}

TEST(Status, of_a_very_large_run_is_bounded) {
  std::vector<Member> members;
  for (std::uint64_t i = 1; i <= kMembersMax; ++i) members.push_back(member(i));
  const Status status = status_of(in_office(members), {});
  EXPECT_EQ(status.member_count, kMembersMax);
  EXPECT_EQ(status.members.size(), kStatusMembersMax);
}

}  // namespace
}  // namespace pccl::master
