// Founders that cannot reach each other. The story is tests/sim/transcripts/founders_apart.txt.
#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::member;
using cast::peers;
using cast::proposed;
using cast::sent;

/// A master whose register is empty, with these founders connected, of which 2 are enough.
State founding(const std::vector<std::uint64_t>& ids) {
  State s;
  s.config.min_peers = 2;
  s.held.emplace().incarnation = 1;
  s.holds = true;
  s.now_s = 1000;
  for (const std::uint64_t id : ids) {
    cast::newcomer(s, member(id), false);
    s.peers.at(PeerId{id}).member.handle.addresses = {"10.0.0." + std::to_string(id) + ":4000"};
  }
  return s;
}

Actions propose(State& s) { return step(s, FoundingOver{}); }

Actions says_cannot(State& s, std::uint64_t p, std::uint64_t q, std::uint64_t via = 0) {
  return cast::tell(s, p, Cannot{s.proposal->id, PeerId{q}, "connection refused", PeerId{via}});
}

/// Founders 1 and 2 were proposed, and have said that they cannot reach each other.
State apart() {
  State s = founding({1, 2});
  static_cast<void>(propose(s));
  static_cast<void>(says_cannot(s, 1, 2));
  return s;
}

/// Founder `id` connects, from `address`.
Actions founder_comes(State& s, std::uint64_t id, const std::string& address) {
  Hello hello;
  hello.member = member(id);
  hello.member.handle.addresses = {address};
  return step(s, PeerConnected{hello});
}

TEST(Founding, two_that_cannot_reach_each_other_are_told_so_and_what_helps) {
  State s = founding({1, 2});
  ASSERT_EQ(proposed(propose(s)), peers({1, 2}));
  const Actions out = says_cannot(s, 1, 2);
  EXPECT_FALSE(s.proposal);
  EXPECT_TRUE(cast::all<Close>(out).empty());
  const auto holds = sent<Hold>(out);
  ASSERT_EQ(holds.size(), 2U);
  for (const auto& [peer, hold] : holds) {
    for (const char* part :
         {"0000000000000001 at 10.0.0.1:4000", "0000000000000002 at 10.0.0.2:4000",
          "cannot reach each other (connection refused)", "PCCL_ADVERTISE", "PCCL_PORTS",
          "a peer that both reach", "again in 30 s"}) {
      EXPECT_NE(hold.text.find(part), std::string::npos) << part << ": " << hold.text;
    }
  }
  EXPECT_NE(founders_apart(s).find("again in 30 s"), std::string::npos);
  EXPECT_TRUE(propose(s).empty()) << "they have been told";
}

TEST(Founding, they_are_proposed_ever_more_rarely) {
  State s = founding({1, 2});
  static_cast<void>(propose(s));
  for (const std::uint64_t wait_s : {30U, 60U, 120U, 240U, 480U, 480U}) {
    ASSERT_EQ(sent<Hold>(says_cannot(s, 2, 1)).size(), 2U);
    const std::uint64_t now_s = s.now_s;
    EXPECT_TRUE(proposed(step(s, Clock{now_s + wait_s - 1, 0})).empty());
    EXPECT_EQ(proposed(step(s, Clock{now_s + wait_s, 0})), peers({1, 2}));
  }
}

TEST(Founding, a_founder_that_comes_lets_them_be_proposed_at_once_over_it) {
  State s = apart();
  EXPECT_EQ(proposed(founder_comes(s, 3, "10.0.0.3:4000")), peers({1, 2, 3}));
  EXPECT_EQ(s.proposal->relays, (std::vector<Relay>{{PeerId{1}, PeerId{2}, PeerId{3}}}));
  EXPECT_EQ(founders_apart(s), "");
}

TEST(Founding, one_of_them_that_comes_again_is_proposed_at_once) {
  State s = apart();
  EXPECT_EQ(proposed(founder_comes(s, 2, "192.0.2.7:4000")), peers({1, 2}));
}

TEST(Founding, the_run_is_founded_without_one_that_nobody_reaches_who_is_told_why) {
  State s = founding({1, 2, 3});
  static_cast<void>(propose(s));
  EXPECT_EQ(proposed(says_cannot(s, 1, 3)), peers({1, 2, 3})) << "over 2";
  const Actions out = says_cannot(s, 2, 3);
  EXPECT_EQ(proposed(out), peers({1, 2}));
  EXPECT_TRUE(sent<Hold>(out).empty()) << "nobody waits";
  EXPECT_NE(why_apart(s, PeerId{3}).find("cannot reach each other"), std::string::npos);
  EXPECT_EQ(why_apart(s, PeerId{7}), "");
}

TEST(Founding, many_are_proposed_once_in_a_second_whoever_comes_and_goes) {
  State s = founding({});
  std::size_t proposals = 0;
  const auto count = [&](const Actions& out) { proposals += sent<Propose>(out).empty() ? 0 : 1; };
  for (std::uint64_t id = 1; id <= 200; ++id) {
    count(founder_comes(s, id, "10.0.0.1:1"));
    if (id % 3 == 0) count(step(s, PeerDisconnected{PeerId{id - 1}}));
  }
  EXPECT_LE(proposals, 9U);
  EXPECT_EQ(proposed(step(s, Clock{s.now_s + 1, 0})).size(), s.peers.size());
}

}  // namespace
}  // namespace pccl::master
