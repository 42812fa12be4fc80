#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::newcomer;
using cast::peers;
using cast::report;

TEST(Admission, a_replica_counts_only_with_all_its_ranks_of_one_attempt) {
  std::vector<Member> members = {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2),
                                 member(4, "b", 1, 2)};
  EXPECT_EQ(whole(members).size(), 4U);
  members[3].place.attempt = 1;
  EXPECT_EQ(ids_of(whole(members)), peers({1, 2}));
}

TEST(Admission, the_loss_of_one_rank_takes_its_replica_out_of_the_survivors) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  s.peers.erase(PeerId{2});
  EXPECT_EQ(ids_of(survivors(s)), peers({3, 4}));
}

TEST(Admission, a_newcomer_of_a_founded_run_counts_at_the_door_only) {
  State s = in_office({member(1)});
  newcomer(s, member(2), false);
  EXPECT_TRUE(door(s).empty());
  s.peers.at(PeerId{2}).at_door = true;
  EXPECT_EQ(ids_of(door(s)), peers({2}));
}

TEST(Admission, a_replica_that_lacks_ranks_is_named_with_them) {
  State s = in_office({member(1, "a", 0, 3), member(2, "a", 1, 3), member(3, "a", 2, 3)});
  EXPECT_TRUE(incomplete(s).empty());
  newcomer(s, member(4, "b", 1, 3), false);
  Member other = member(5, "b", 2, 3);
  other.place.attempt = 1;  // of another attempt: not the same replica
  newcomer(s, other);
  EXPECT_EQ(incomplete(s).at(PeerId{4}), "replica b (attempt 0) has 3 ranks and waits for 0, 2");
  EXPECT_EQ(incomplete(s).at(PeerId{5}), "replica b (attempt 1) has 3 ranks and waits for 0, 1");
  newcomer(s, member(6, "b", 0, 3));
  newcomer(s, member(7, "b", 2, 3));
  EXPECT_EQ(incomplete(s).size(), 1U);
}

TEST(Admission, newcomers_come_in_the_order_of_arrival_and_replicas_stay_together) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  newcomer(s, member(9, "z", 1, 2));
  newcomer(s, member(4, "b", 0, 2));
  newcomer(s, member(3, "b", 1, 2));
  newcomer(s, member(8, "z", 0, 2));
  EXPECT_EQ(ids_of(door(s)), peers({8, 9, 4, 3}));
}

TEST(Admission, one_rank_that_leaves_takes_its_replica_along) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  cast::report(s, 4).leaving = true;
  const std::set<PeerId> leaving = who_leaves(s, own(s)->members);
  EXPECT_EQ(leaving, (std::set<PeerId>{PeerId{3}, PeerId{4}}));
  EXPECT_TRUE(wants_boundary(s, s.held->pinned, own(s)->members));
}

TEST(Admission, a_boundary_votes_after_a_change_of_members_or_below_the_wanted_number) {
  State s = in_office({member(1), member(2)});
  EXPECT_FALSE(wants_boundary(s, s.held->pinned, own(s)->members));
  EXPECT_TRUE(wants_boundary(s, peers({1, 2, 3}), own(s)->members));
  s.config.hold_below = 3;
  EXPECT_TRUE(wants_boundary(s, s.held->pinned, own(s)->members));
}

TEST(Admission, the_boundary_after_a_first_step_votes_of_the_run_or_of_newcomers) {
  State s = in_office({member(1), member(2)}, 7);
  const auto wants = [&] { return wants_boundary(s, s.held->pinned, own(s)->members); };
  EXPECT_FALSE(wants());
  s.held->admitted = peers({2});
  EXPECT_TRUE(wants());
  s.held->epoch->boundary = false;
  EXPECT_FALSE(wants()) << "an epoch since then: the step was disturbed, or others are members";
  s = in_office({member(1), member(2)}, 1);
  s.held->before_passed = 0;
  EXPECT_TRUE(wants());
  s.held->passed = 0;
  EXPECT_FALSE(wants()) << "the founding is no boundary of a program";
}

TEST(Admission, who_comes_to_a_full_run_waits_at_the_door_and_is_told_once) {
  State s = in_office({member(1), member(2)});
  s.config.max_peers = 3;
  newcomer(s, member(3));
  newcomer(s, member(4));
  EXPECT_EQ(ids_of(door(s)), peers({3}));
  Actions out;
  explain_door(s, out);
  explain_door(s, out);
  const auto holds = cast::sent<Hold>(out);
  ASSERT_EQ(holds.size(), 1U);
  EXPECT_EQ(holds[0].first, PeerId{4});
  EXPECT_NE(holds[0].second.text.find("--max-peers 3"), std::string::npos);
  State other = s;
  static_cast<void>(step(other, PeerDisconnected{PeerId{4}}));
  EXPECT_TRUE(other.kept_waiting.empty()) << "ids that come and go leave nothing behind";
  s.peers.erase(PeerId{1});
  EXPECT_EQ(ids_of(door(s)), peers({3, 4}));
}

TEST(Admission, a_replica_of_two_ranks_does_not_come_in_by_half) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  s.config.max_peers = 5;
  for (const auto& m :
       {member(3, "b", 0, 2), member(4, "b", 1, 2), member(5, "c", 0, 2), member(6, "c", 1, 2)}) {
    newcomer(s, m);
  }
  EXPECT_EQ(ids_of(door(s)), peers({3, 4}));
}

TEST(Admission, a_replica_lost_three_times_in_ten_minutes_waits_longer_each_time) {
  State s = in_office({member(1)});
  const Member back = member(9, "often");
  newcomer(s, back);
  s.now_s = 1000;
  count_loss(s, back);
  count_loss(s, back);
  EXPECT_EQ(must_wait_s(s, back), 0U);
  count_loss(s, back);
  EXPECT_EQ(must_wait_s(s, back), 30U);
  EXPECT_TRUE(door(s).empty());
  s.now_s = 1030;
  EXPECT_EQ(ids_of(door(s)), peers({9}));
  count_loss(s, back);
  EXPECT_EQ(must_wait_s(s, back), 60U);
  for (int i = 0; i < 40; ++i) count_loss(s, back);
  EXPECT_EQ(must_wait_s(s, back), 300U);
  s.now_s = 1631;
  EXPECT_EQ(must_wait_s(s, back), 0U);
}

TEST(Admission, a_replica_of_which_one_rank_has_to_wait_waits_as_a_whole) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  newcomer(s, member(3, "b", 0, 2));
  newcomer(s, member(4, "b", 1, 2));
  s.peers.at(PeerId{4}).origin = "token@network";
  s.origins["token@network"].until_s = 30;
  EXPECT_TRUE(door(s).empty());
  s.held->over = true;
  index_members(s);
  s.peers.erase(PeerId{1});
  s.peers.erase(PeerId{2});
  EXPECT_TRUE(door(s).empty()) << "nor does a part of it found a run";
  s.now_s = 30;
  EXPECT_EQ(ids_of(door(s)), peers({3, 4}));
}

TEST(Admission, a_process_that_is_a_replica_of_its_own_has_a_new_name_each_time) {
  State s = in_office({member(1)});
  const Member plain = member(9, to_string(PeerId{9}));
  for (int i = 0; i < 5; ++i) count_loss(s, plain);
  EXPECT_TRUE(s.losses.empty());
}

TEST(Admission, a_hello_is_refused_for_a_wrong_run_place_size_or_a_taken_rank) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  s.config.run = "mine";
  Hello hello;
  hello.member = member(3, "b", 1, 2);
  EXPECT_FALSE(check_hello(s, hello).failed());
  hello.run = "yours";
  EXPECT_EQ(check_hello(s, hello).code, ErrorCode::refused);
  hello.run = "mine";
  hello.member = member(3, "b", 2, 2);
  EXPECT_TRUE(check_hello(s, hello).failed());
  hello.member = member(3, "b", 0, 1);
  EXPECT_TRUE(check_hello(s, hello).failed());
  hello.member = member(3, "a", 1, 2);
  EXPECT_NE(check_hello(s, hello).text.find("is there already"), std::string::npos);
  hello.member = member(1, "b", 0, 2);
  EXPECT_TRUE(check_hello(s, hello).failed()) << "a member has another place than before";
  hello.member = member(1, "a", 0, 2);
  EXPECT_FALSE(check_hello(s, hello).failed()) << "it comes back on another connection";
}

TEST(Admission, a_run_has_one_on_loss_and_replicas_of_several_ranks_replay) {
  State s = in_office({member(1)});
  Hello hello;
  hello.run = s.config.run;
  hello.member = member(2);
  hello.member.raises = true;
  const Error error = check_hello(s, hello);
  EXPECT_EQ(error.code, ErrorCode::refused);
  EXPECT_EQ(error.text,
            "this peer has on_loss=\"raise\", the others of this run on_loss=\"retry\"");
  s.held->epoch->members.front().raises = true;
  EXPECT_FALSE(check_hello(s, hello).failed());
  hello.member.raises = false;
  EXPECT_TRUE(check_hello(s, hello).failed());

  s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  hello.member = member(3, "b", 0, 2);
  hello.member.raises = true;
  EXPECT_NE(check_hello(s, hello).text.find("several ranks"), std::string::npos);
}

TEST(Admission, before_the_founding_who_waits_first_says_what_the_run_is_like) {
  State s = in_office({member(1)});
  s.held->epoch.reset();
  s.peers.clear();
  newcomer(s, member(7));
  Hello hello;
  hello.run = s.config.run;
  hello.member = member(8);
  EXPECT_FALSE(check_hello(s, hello).failed());
  hello.member.raises = true;
  EXPECT_TRUE(check_hello(s, hello).failed());
  hello.member = member(8, "b", 0, 2);
  EXPECT_NE(check_hello(s, hello).text.find("has 2 ranks, the replicas of this run have 1"),
            std::string::npos);
}

TEST(Admission, a_hello_with_the_number_of_a_peer_and_another_key_is_refused) {
  State s = in_office({member(1), member(2)});
  newcomer(s, member(3));
  for (const std::uint64_t p : {1U, 3U}) {
    Hello hello;
    hello.member = member(p);
    EXPECT_FALSE(check_hello(s, hello).failed());
    hello.member.handle.key[0] = 1;
    EXPECT_EQ(check_hello(s, hello).code, ErrorCode::refused);
  }
}

TEST(Admission, those_of_one_token_leave_half_of_the_door_to_others_and_members_always_have_room) {
  State s = in_office({member(1), member(2)});
  s.tokens = 2;
  const auto hello_of = [](std::uint64_t id, const std::string& token) {
    Hello hello;
    hello.member = member(id);
    hello.member.token = token;
    return hello;
  };
  std::uint64_t id = 10;
  std::size_t in = 0;
  while (!check_hello(s, hello_of(id, "bonn")).failed()) {
    newcomer(s, hello_of(id++, "bonn").member);
    ASSERT_LE(++in, kMembersMax);
  }
  EXPECT_EQ(in, (kMembersMax - 2) / 2);
  const Error refused = check_hello(s, hello_of(id, "bonn"));
  EXPECT_EQ(refused.code, ErrorCode::refused);
  EXPECT_NE(refused.text.find("by the token \"bonn\" 2047 processes wait"), std::string::npos)
      << refused.text;
  EXPECT_FALSE(check_hello(s, hello_of(10, "bonn")).failed()) << "it is at the door already";
  EXPECT_FALSE(check_hello(s, hello_of(id, "kiel")).failed()) << "by another token";
  Hello unknown = hello_of(id, "bonn");
  unknown.report.started = EpochId::make(1, 1);
  EXPECT_FALSE(check_hello(s, unknown).failed()) << "a member that the register does not know";
  s.tokens = 1;
  EXPECT_FALSE(check_hello(s, hello_of(id, "bonn")).failed()) << "nobody can come by another one";
  s.tokens = 2;
  s.peers.erase(PeerId{2});
  Hello back = hello_of(2, "");
  back.report.started = s.held->epoch->id;
  EXPECT_FALSE(check_hello(s, back).failed()) << "a member, on a new connection";
}

TEST(Admission, a_crowd_of_many_tokens_finds_the_run_full_and_a_member_does_not) {
  State s = in_office({member(1), member(2)});
  std::uint64_t id = 10;
  while (s.peers.size() < kMembersMax) {
    Member one = member(++id);
    one.token = "t" + std::to_string(id % 64);
    newcomer(s, one);
  }
  Hello hello;
  hello.member = member(5);
  hello.member.token = "bonn";
  EXPECT_NE(check_hello(s, hello).text.find("this run is full: 4096 peers"), std::string::npos);
  s.peers.erase(PeerId{2});
  newcomer(s, member(++id));
  hello.member = member(2);
  hello.report.started = s.held->epoch->id;
  EXPECT_FALSE(check_hello(s, hello).failed()) << check_hello(s, hello).text;
}

}  // namespace
}  // namespace pccl::master
