#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::peers;
using cast::sent;
using cast::tell;

Hello hello_of(std::uint64_t id, bool at_door = true) {
  Hello hello;
  hello.member = member(id);
  hello.at_door = at_door;
  return hello;
}

Actions comes(State& s, std::uint64_t id, const std::string& origin = "t@a") {
  return step(s, PeerConnected{hello_of(id), origin});
}

Tried word(std::uint64_t about, std::string reason = "") {
  return Tried{{{PeerId{about}, std::move(reason)}}};
}

std::vector<PeerId> opened(const Actions& actions, std::uint64_t at) {
  std::vector<PeerId> out;
  for (const auto& [to, links] : sent<Try>(actions)) {
    if (to != PeerId{at}) continue;
    for (const Handle& handle : links.open) out.push_back(handle.peer);
  }
  return out;
}

void seconds(State& s, std::uint64_t number) {
  for (; number > 0; --number) static_cast<void>(step(s, Clock{s.now_s + 1, 0}));
}

TEST(Trials, a_newcomer_may_be_proposed_when_both_ends_of_each_link_have_said_that_it_is_up) {
  State s = in_office({member(1), member(2)});
  const Actions out = comes(s, 9);
  EXPECT_EQ(opened(out, 9), peers({1, 2}));
  EXPECT_EQ(opened(out, 1), peers({9}));
  EXPECT_EQ(opened(out, 2), peers({9}));
  for (const auto& [from, about] : {std::pair(1, 9), std::pair(2, 9), std::pair(9, 1)}) {
    static_cast<void>(
        tell(s, static_cast<std::uint64_t>(from), word(static_cast<std::uint64_t>(about))));
    EXPECT_TRUE(door(s).empty());
  }
  static_cast<void>(tell(s, 9, word(2)));
  EXPECT_EQ(ids_of(door(s)), peers({9}));
}

TEST(Trials, a_newcomer_that_says_nothing_is_given_up_and_tried_again_later) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(cast::linked(s, comes(s, 9), {9}));
  for (const std::uint64_t p : {1U, 2U}) static_cast<void>(tell(s, p, word(9)));
  seconds(s, 9);
  EXPECT_TRUE(s.trials.contains(PeerId{9}));
  const Actions out = step(s, Clock{s.now_s + 1, 0});
  ASSERT_EQ(sent<Hold>(out).size(), 1U);
  EXPECT_NE(sent<Hold>(out)[0].second.text.find("has not said within 10 s"), std::string::npos);
  EXPECT_FALSE(s.trials.contains(PeerId{9}));
  EXPECT_TRUE(s.running) << "the members have gone on all the time";
  seconds(s, 29);
  EXPECT_FALSE(s.trials.contains(PeerId{9}));
  EXPECT_EQ(opened(step(s, Clock{s.now_s + 1, 0}), 9), peers({1, 2}));
}

TEST(Trials, a_newcomer_that_no_member_reaches_hears_which_and_why) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(comes(s, 9));
  Actions out = tell(s, 1, word(9, "connection refused"));
  EXPECT_TRUE(sent<Hold>(out).empty()) << "the other member may pass its data on";
  out = tell(s, 2, word(9, "no answer"));
  ASSERT_EQ(sent<Hold>(out).size(), 1U);
  const std::string text = sent<Hold>(out)[0].second.text;
  EXPECT_NE(text.find("connection refused"), std::string::npos) << text;
  EXPECT_NE(text.find("no answer"), std::string::npos) << text;
  EXPECT_TRUE(s.running);
  EXPECT_TRUE(door(s).empty());
  EXPECT_TRUE(s.cannot.empty()) << "it is no reason to evict a peer that has not come in";
}

TEST(Trials, a_newcomer_hears_that_it_waits_for_another_rank_of_its_replica) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2)});
  for (const std::uint64_t id : {8U, 9U}) {
    Hello hello = hello_of(id);
    hello.member = member(id, "b", static_cast<std::uint32_t>(id - 8), 2);
    static_cast<void>(step(s, PeerConnected{hello, "t@a"}));
  }
  const auto holds = sent<Hold>(tell(s, 2, word(9, "no route")));
  EXPECT_EQ(holds.size(), 2U);
  for (const auto& [to, hold] : holds) {
    const bool apart = to == PeerId{9};
    EXPECT_EQ(hold.text.find("(no route) do not reach each other") != std::string::npos, apart);
    EXPECT_EQ(hold.text.find("another rank of the replica of newcomer") == 0, !apart) << hold.text;
  }
}

TEST(Trials, a_newcomer_that_one_member_reaches_is_proposed_over_this_one) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(comes(s, 9));
  static_cast<void>(tell(s, 1, word(9, "no route")));
  static_cast<void>(tell(s, 2, word(9)));
  static_cast<void>(tell(s, 9, word(2)));
  EXPECT_EQ(ids_of(door(s)), peers({9}));
  for (const std::uint64_t p : {1U, 2U}) {
    static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
  }
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_EQ(s.proposal->relays, (std::vector<Relay>{{PeerId{1}, PeerId{9}, PeerId{2}}}));
}

TEST(Trials, a_member_that_does_not_answer_keeps_no_newcomer_out) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(cast::linked(s, comes(s, 9), {2}));
  static_cast<void>(tell(s, 9, word(2)));
  EXPECT_TRUE(door(s).empty());
  seconds(s, 10);
  EXPECT_EQ(ids_of(door(s)), peers({9}));
}

TEST(Trials, a_sound_newcomer_does_not_wait_for_one_that_is_not) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(comes(s, 8));
  const Actions out = cast::linked(s, comes(s, 9, "t@b"), {8});
  EXPECT_EQ(opened(out, 9), peers({1, 2, 8}));
  EXPECT_EQ(ids_of(door(s)), peers({9}));
}

TEST(Trials, of_two_newcomers_the_later_waits_for_their_link) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(cast::linked(s, comes(s, 8)));
  static_cast<void>(cast::linked(s, comes(s, 9), {8}));
  EXPECT_EQ(ids_of(door(s)), peers({8}));
  static_cast<void>(tell(s, 8, word(9)));
  static_cast<void>(tell(s, 9, word(8)));
  EXPECT_EQ(ids_of(door(s)), peers({8, 9}));
}

TEST(Trials, a_member_that_connects_anew_is_asked_again) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(cast::linked(s, comes(s, 9)));
  EXPECT_EQ(ids_of(door(s)), peers({9}));
  Hello again = hello_of(2, false);
  again.report = cast::report(s, 2);
  const Actions out = step(s, PeerConnected{again, "t@a"});
  EXPECT_EQ(opened(out, 2), peers({9}));
  EXPECT_TRUE(door(s).empty());
  static_cast<void>(cast::linked(s, out));
  EXPECT_EQ(ids_of(door(s)), peers({9}));
}

TEST(Trials, a_member_that_connects_again_and_again_keeps_no_newcomer_out) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(cast::linked(s, comes(s, 9), {2}));
  static_cast<void>(tell(s, 9, word(2)));
  Hello again = hello_of(2, false);
  again.report = cast::report(s, 2);
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(door(s).empty());
    seconds(s, 9);
    EXPECT_EQ(door(s).empty(), time == 0);
    static_cast<void>(step(s, PeerConnected{again, "t@a"}));
    static_cast<void>(tell(s, 9, word(2)));
  }
  seconds(s, 1);
  EXPECT_EQ(ids_of(door(s)), peers({9}));
}

TEST(Trials, what_newcomers_have_said_that_are_gone_is_forgotten) {
  State s = in_office({member(1), member(2), member(3)});
  for (std::uint64_t id = 100; id < 110; ++id) {
    static_cast<void>(comes(s, id));
    static_cast<void>(tell(s, id, word(1, "no route")));
    EXPECT_EQ(s.cannot.size(), 1U);
    static_cast<void>(step(s, id % 2 == 0 ? Event{PeerDisconnected{PeerId{id}}}
                                          : Event{PeerGone{PeerId{id}, "silent"}}));
    static_cast<void>(step(s, Clock{s.now_s + 1, 0}));
  }
  EXPECT_TRUE(s.cannot.empty());
  EXPECT_TRUE(s.why_not.empty());
}

TEST(Trials, a_newcomer_that_is_gone_is_tried_by_nobody) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(cast::linked(s, comes(s, 9)));
  const auto out = sent<Try>(step(s, PeerDisconnected{PeerId{9}}));
  ASSERT_EQ(out.size(), 2U);
  for (const auto& [to, links] : out) EXPECT_EQ(links.drop, peers({9}));
  EXPECT_TRUE(s.trials.empty());
}

TEST(Trials, a_master_that_takes_over_has_the_links_tried_anew) {
  State s = in_office({member(1), member(2)});
  const Register held = *s.held;
  std::vector<Hello> hellos;
  for (const std::uint64_t p : {1U, 2U}) {
    hellos.push_back(hello_of(p, false));
    hellos.back().report = cast::report(s, p);
  }
  State next;
  static_cast<void>(step(next, TakenOver{held}));
  static_cast<void>(step(next, RegisterWritten{*next.writing, true}));
  static_cast<void>(cast::linked(next, comes(next, 9)));
  Actions out;
  for (const Hello& hello : hellos) {
    out = step(next, PeerConnected{hello, "t@a"});
    EXPECT_EQ(opened(out, hello.member.peer().value), peers({9}));
    EXPECT_EQ(opened(out, 9), (std::vector<PeerId>{hello.member.peer()}));
    static_cast<void>(cast::linked(next, out));
  }
  EXPECT_EQ(ids_of(door(next)), peers({9}));
}

TEST(Trials, of_very_many_newcomers_some_are_tried_and_no_origin_keeps_another_out) {
  State s = in_office({member(1)});
  for (std::uint64_t id = 100; id < 300; ++id) static_cast<void>(comes(s, id, "t@a"));
  seconds(s, 1);
  EXPECT_EQ(s.trials.size(), 128U);
  static_cast<void>(comes(s, 9, "t@b"));
  EXPECT_EQ(s.trials.size(), 128U);
  EXPECT_TRUE(s.trials.contains(PeerId{9}));
}

TEST(Trials, a_large_run_is_asked_once_a_second_for_all_newcomers_of_that_second) {
  std::vector<Member> members;
  for (std::uint64_t id = 1; id <= 100; ++id) members.push_back(member(id));
  State s = in_office(members);
  EXPECT_EQ(sent<Try>(comes(s, 201)).size(), 101U) << "the first newcomer at once";
  EXPECT_TRUE(sent<Try>(comes(s, 202)).empty());
  EXPECT_TRUE(sent<Try>(comes(s, 203)).empty());
  static_cast<void>(step(s, PeerDisconnected{PeerId{203}}));
  EXPECT_TRUE(sent<Try>(comes(s, 204)).empty());
  const Actions out = step(s, Clock{s.now_s + 1, 0});
  EXPECT_EQ(opened(out, 100), peers({202, 204}));
  EXPECT_EQ(sent<Try>(out).size(), 103U);
  EXPECT_TRUE(sent<Try>(step(s, Clock{s.now_s + 1, 0})).empty());
}

TEST(Trials, a_newcomer_that_goes_before_anybody_was_asked_for_its_links_is_named_to_nobody) {
  State s = in_office({member(1), member(2)});
  for (std::uint64_t id = 11; id <= 18; ++id) static_cast<void>(comes(s, id));
  EXPECT_TRUE(sent<Try>(comes(s, 19)).empty());
  static_cast<void>(step(s, PeerDisconnected{PeerId{19}}));
  const Actions out = step(s, Clock{s.now_s + 1, 0});
  EXPECT_TRUE(opened(out, 1).empty());
}

TEST(Trials, one_message_tells_of_links_of_several_newcomers) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(cast::linked(s, comes(s, 8), {1}));
  static_cast<void>(cast::linked(s, comes(s, 9), {1}));
  EXPECT_TRUE(door(s).empty());
  static_cast<void>(tell(s, 8, word(1)));
  EXPECT_TRUE(door(s).empty());
  static_cast<void>(tell(s, 1, Tried{{{PeerId{8}, ""}, {PeerId{9}, "no route"}}}));
  EXPECT_EQ(ids_of(door(s)), peers({8, 9})) << "member 2 reaches both ends of the missing link";
}

TEST(Trials, a_full_run_has_no_links_tried) {
  State s = in_office({member(1), member(2)});
  s.config.max_peers = 2;
  EXPECT_TRUE(sent<Try>(comes(s, 9)).empty());
}

TEST(Trials, words_about_links_that_nobody_tries_change_nothing) {
  State s = in_office({member(1), member(2)});
  EXPECT_TRUE(tell(s, 1, word(2, "no route")).empty());
  EXPECT_TRUE(tell(s, 1, word(77)).empty());
  EXPECT_TRUE(s.cannot.empty());
}

}  // namespace
}  // namespace pccl::master
