#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::peers;
using cast::proposed;
using cast::sent;
using cast::tell;
using cast::until_another;

Actions newcomer_comes(State& s, std::uint64_t id, const std::string& origin, bool at_door = true) {
  Hello hello;
  hello.member = member(id);
  hello.at_door = at_door;
  return cast::linked(s, step(s, PeerConnected{hello, origin}));
}

void ready(State& s, std::initializer_list<std::uint64_t> who) {
  for (const std::uint64_t p : who) {
    if (s.writing || !s.proposal) return;
    Report said = s.peers.at(PeerId{p}).report;
    static_cast<void>(tell(s, p, Ready{s.proposal->id, said}));
  }
}

/// The next epoch is started.
void write(State& s) {
  ASSERT_TRUE(s.writing.has_value());
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
}

void all_vote(State& s, std::uint64_t at) {
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Vote{at, VoteKind::refresh, {}}));
  }
}

TEST(Newcomers, one_that_is_never_ready_holds_the_members_for_thirty_seconds) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(newcomer_comes(s, 9, "t@a"));
  all_vote(s, 1);
  ASSERT_EQ(ids_of(s.proposal->members), peers({1, 2, 9}));
  ready(s, {1, 2});
  EXPECT_EQ(until_another(s, 40), 30U);
  ASSERT_EQ(ids_of(s.proposal->members), peers({1, 2}));
  ready(s, {1, 2});
  write(s);
  EXPECT_TRUE(s.running);

  // It waits at the door, and so does every other of its origin, but none of another.
  static_cast<void>(newcomer_comes(s, 10, "t@a"));
  EXPECT_TRUE(door(s).empty());
  static_cast<void>(newcomer_comes(s, 11, "t@b"));
  EXPECT_EQ(ids_of(door(s)), peers({11}));
  EXPECT_EQ(origin_waits_s(s, PeerId{10}), 30U);
  static_cast<void>(cast::linked(s, step(s, Clock{s.now_s + 30, 0})));
  EXPECT_EQ(door(s).size(), 3U);
}

TEST(Newcomers, ids_that_come_and_go_do_not_begin_the_time_anew) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(newcomer_comes(s, 9, "t@a"));
  all_vote(s, 1);
  std::uint64_t id = 9;
  std::uint64_t seconds = 0;
  while (contains(s.proposal->members, PeerId{id}) && seconds < 100) {
    ready(s, {1, 2});
    if (++seconds % 5 == 0) {
      static_cast<void>(newcomer_comes(s, id + 1, "t@a"));
      static_cast<void>(step(s, PeerDisconnected{PeerId{id}}));
      ++id;
    }
    static_cast<void>(step(s, Clock{s.now_s + 1, 0}));
  }
  EXPECT_EQ(seconds, 30U);
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2}));
}

TEST(Newcomers, one_that_is_ready_is_admitted_while_another_is_given_up) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(newcomer_comes(s, 8, "t@a"));
  static_cast<void>(newcomer_comes(s, 9, "t@a"));
  all_vote(s, 1);
  ready(s, {1, 2, 8});
  EXPECT_EQ(until_another(s, 40), 30U);
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2, 8}));
}

TEST(Newcomers, each_time_it_waits_twice_as_long) {
  State s = in_office({member(1), member(2)});
  for (const std::uint64_t wait_s : {30U, 60U, 120U, 240U, 480U, 600U, 600U}) {
    static_cast<void>(newcomer_comes(s, 9, "t@a"));
    all_vote(s, s.held->passed);
    ready(s, {1, 2});
    EXPECT_EQ(until_another(s, 40), 30U);
    EXPECT_EQ(origin_waits_s(s, PeerId{9}), wait_s);
    ready(s, {1, 2});
    write(s);
    static_cast<void>(step(s, Clock{s.now_s + wait_s, 0}));
  }
}

TEST(Newcomers, ids_that_no_member_reaches_count_together) {
  State s = in_office({member(1), member(2)});
  for (std::uint64_t id = 9; id < 12; ++id) {
    EXPECT_EQ(origin_waits_s(s, PeerId{id}), 0U);
    static_cast<void>(newcomer_comes(s, id, "t@a"));
    all_vote(s, s.held->passed);
    ASSERT_EQ(ids_of(s.proposal->members), (std::vector<PeerId>{PeerId{1}, PeerId{2}, PeerId{id}}));
    static_cast<void>(tell(s, 1, Cannot{s.proposal->id, PeerId{id}, "no route", {}}));
    static_cast<void>(tell(s, 2, Cannot{s.proposal->id, PeerId{id}, "no route", {}}));
    ASSERT_EQ(ids_of(s.proposal->members), peers({1, 2}));
    ready(s, {1, 2});
    write(s);
    static_cast<void>(step(s, PeerDisconnected{PeerId{id}}));
  }
  static_cast<void>(newcomer_comes(s, 12, "t@a"));
  EXPECT_GT(origin_waits_s(s, PeerId{12}), 0U);
  EXPECT_TRUE(door(s).empty());
}

TEST(Newcomers, a_founder_that_is_never_ready_is_left_out_by_most) {
  State s;
  static_cast<void>(step(s, TakenOver{Register{}}));
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  static_cast<void>(step(s, FoundingOver{}));
  for (const std::uint64_t p : {1U, 2U, 9U}) {
    static_cast<void>(newcomer_comes(s, p, p == 9 ? "t@a" : "t@b", false));
  }
  for (int second = 0; second < 3; ++second) {
    static_cast<void>(step(s, Clock{s.now_s + 1, 0}));
  }
  ASSERT_EQ(s.proposal->members.size(), 3U);
  ready(s, {1, 2});
  EXPECT_GT(until_another(s, 40), 25U);
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2}));
  ready(s, {1, 2});
  write(s);
  EXPECT_TRUE(s.running);
}

TEST(Newcomers, one_that_is_never_ready_closes_no_door_of_a_run_that_holds) {
  State s = in_office({member(1)});
  s.config.hold_below = 2;
  static_cast<void>(tell(s, 1, Vote{1, VoteKind::refresh, {}}));
  ASSERT_TRUE(s.holding);
  static_cast<void>(newcomer_comes(s, 9, "t@a"));
  ASSERT_TRUE(s.proposal.has_value());
  ready(s, {1});
  EXPECT_EQ(until_another(s, 40), 30U);
  EXPECT_FALSE(s.proposal.has_value());
  static_cast<void>(step(s, PeerDisconnected{PeerId{9}}));
  static_cast<void>(newcomer_comes(s, 10, "t@b"));
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 10}));
}

TEST(Newcomers, founders_that_were_ready_wait_for_nobody_who_was_not) {
  State s;
  s.config.min_peers = 3;
  static_cast<void>(step(s, TakenOver{Register{}}));
  static_cast<void>(step(s, RegisterWritten{*s.writing, true}));
  static_cast<void>(step(s, FoundingOver{}));
  for (const std::uint64_t p : {1U, 2U, 9U}) static_cast<void>(newcomer_comes(s, p, "t@a", false));
  const auto seconds = [&](int count) {
    for (int i = 0; i < count; ++i) static_cast<void>(step(s, Clock{s.now_s + 1, 0}));
  };
  seconds(3);
  ready(s, {1, 2});
  seconds(40);
  static_cast<void>(step(s, PeerDisconnected{PeerId{9}}));
  static_cast<void>(newcomer_comes(s, 4, "t@a", false));
  seconds(3);
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2, 4}));
}

}  // namespace
}  // namespace pccl::master
