#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::newcomer;
using cast::peers;
using cast::proposed;
using cast::report;

TEST(Reachability, who_cannot_reach_another_stays_once_that_other_is_lost) {
  State s = in_office({member(1), member(2), member(3)});
  s.cannot = {{PeerId{3}, PeerId{1}}, {PeerId{2}, PeerId{1}}, {PeerId{3}, PeerId{2}}};
  EXPECT_EQ(ids_of(survivors(s)), peers({1}));
  s.peers.erase(PeerId{1});
  EXPECT_EQ(ids_of(survivors(s)), peers({2}));
}

TEST(Reachability, two_whose_relay_is_lost_try_without_it_once_before_one_of_them_goes) {
  State s = in_office({member(1), member(2), member(3)});
  s.cannot = {{PeerId{2}, PeerId{1}}};
  s.held->epoch->relays = relays(s, own(s)->members);
  ASSERT_EQ(own(s)->relays.size(), 1U);
  const Actions lost = step(s, PeerGone{PeerId{3}, "silent"});
  ASSERT_EQ(proposed(lost), peers({1, 2})) << "what kept them apart may be over";
  EXPECT_TRUE(s.proposal->relays.empty());
  const Actions apart = cast::tell(s, 2, Cannot{s.proposal->id, PeerId{1}, "", {}});
  EXPECT_EQ(proposed(apart), peers({1})) << "it is not";
}

TEST(Reachability, no_more_third_members_are_kept_than_are_tried) {
  State s = in_office({member(1), member(2), member(3), member(4)});
  for (std::uint64_t via = 100; via < 200; ++via) {
    const EpochId id = s.proposal ? s.proposal->id : cast::kEpoch;
    static_cast<void>(cast::tell(s, 2, Cannot{id, PeerId{1}, "so it says", PeerId{via}}));
  }
  for (const auto& [pair, tried] : s.useless) EXPECT_LE(tried.size(), 2U);
}

TEST(Reachability, the_fewest_go_that_leave_all_others_connected) {
  using Cover = std::set<std::uint64_t>;
  EXPECT_EQ(smallest_cover({}), Cover{});
  EXPECT_EQ(smallest_cover({{0, 1}, {1, 2}, {1, 3}}), Cover{1}) << "not the three younger ones";
  EXPECT_EQ(smallest_cover({{0, 1}}), Cover{1}) << "among equals the youngest";
  EXPECT_EQ(smallest_cover({{0, 1}, {1, 2}, {2, 3}}), (Cover{1, 2}));
  EXPECT_EQ(smallest_cover({{0, 3}, {0, 4}, {1, 3}, {1, 4}, {2, 3}, {2, 4}}), (Cover{3, 4}));
  std::vector<Pair> star;
  for (std::uint64_t i = 0; i < 12; ++i) star.emplace_back(i, 12 + i);
  EXPECT_EQ(smallest_cover(star).size(), 12U) << "more than are searched exactly";
}

TEST(Reachability, a_member_that_two_others_cannot_reach_goes_alone) {
  State s = in_office({member(1), member(2), member(3), member(4)});
  s.cannot = {{PeerId{3}, PeerId{1}}, {PeerId{4}, PeerId{1}}};
  EXPECT_TRUE(excluded(s).empty()) << "over the second it reaches both";
  s.cannot.insert({PeerId{2}, PeerId{1}});
  EXPECT_EQ(excluded(s), std::set<PeerId>{PeerId{1}});
}

TEST(Reachability, who_has_to_go_passes_nothing_on_for_others) {
  // 4 reaches nobody but 2 and 5, over whom 5 would reach 1 and 2.
  State s = in_office({member(1), member(2), member(3)});
  newcomer(s, member(4));
  newcomer(s, member(5));
  s.cannot = {{PeerId{5}, PeerId{1}}, {PeerId{5}, PeerId{2}}, {PeerId{5}, PeerId{3}}};
  EXPECT_EQ(excluded(s), std::set<PeerId>{PeerId{5}}) << "a newcomer is no help for a newcomer";
  s = in_office({member(1), member(2), member(3), member(4)});
  s.cannot = {{PeerId{4}, PeerId{1}}, {PeerId{4}, PeerId{2}}};
  EXPECT_TRUE(excluded(s).empty());
  report(s, 3).leaving = true;
  EXPECT_EQ(excluded(s), std::set<PeerId>{PeerId{4}}) << "who leaves is no help either";
}

TEST(Reachability, newcomers_never_cost_a_member_its_place) {
  State s = in_office({member(1)});
  newcomer(s, member(3));
  newcomer(s, member(4));
  s.cannot = {{PeerId{3}, PeerId{1}}, {PeerId{4}, PeerId{1}}};
  EXPECT_EQ(excluded(s), (std::set<PeerId>{PeerId{3}, PeerId{4}}));
}

/// Peer `p` says that it reaches `q` neither directly nor over any third member. Returns who goes.
std::set<std::uint64_t> parts_from(State& s, std::uint64_t p, std::uint64_t q) {
  std::set<std::uint64_t> gone;
  for (PeerId via; gone.empty();) {
    const EpochId id = s.proposal ? s.proposal->id : own(s)->id;
    Actions out = cast::tell(s, p, Cannot{id, PeerId{q}, "no", via});
    for (const Relay& relay : s.proposal->relays) via = relay.via;
    if (!s.proposal->relays.empty()) continue;
    const std::vector<Member> members = s.proposal->members;
    for (const Member& m : members) {
      Report its = report(s, m.peer().value);
      for (Action& action : cast::tell(s, m.peer().value, Ready{s.proposal->id, its})) {
        out.push_back(std::move(action));
      }
    }
    for (const Action& action : step(s, RegisterWritten{*s.writing, true})) out.push_back(action);
    for (const auto& [peer, text] : cast::sent<Evicted>(out)) gone.insert(peer.value);
    EXPECT_FALSE(gone.empty());
    for (const std::uint64_t one : gone) static_cast<void>(step(s, PeerDisconnected{PeerId{one}}));
  }
  return gone;
}

TEST(Reachability, one_that_lies_costs_one_sound_member_its_place_and_no_second_one) {
  for (const std::uint64_t liar : {1U, 2U}) {
    State s = in_office({member(1), member(2), member(3), member(4)});
    const std::uint64_t older = 3 - liar;
    EXPECT_EQ(parts_from(s, liar, 4), (std::set<std::uint64_t>{4})) << "of two the younger";
    EXPECT_EQ(parts_from(s, liar, 3), (std::set<std::uint64_t>{liar}));
    EXPECT_TRUE(contains(own(s)->members, PeerId{older}));
  }
}

TEST(Reachability, an_hour_later_or_to_one_that_has_come_since_it_means_nothing) {
  State s = in_office({member(1), member(2), member(3)});
  EXPECT_EQ(parts_from(s, 3, 1), (std::set<std::uint64_t>{3}));
  ASSERT_EQ(s.parted.count(PeerId{1}), 1U);
  State again = s;
  again.peers.at(PeerId{2}).arrived = ++again.arrivals;
  EXPECT_EQ(parts_from(again, 2, 1), (std::set<std::uint64_t>{2}));
  again = s;
  static_cast<void>(step(again, Clock{3600, 0}));
  EXPECT_EQ(parts_from(again, 2, 1), (std::set<std::uint64_t>{2}));
  EXPECT_EQ(parts_from(s, 2, 1), (std::set<std::uint64_t>{1}));
}

TEST(Reachability, replicas_that_cannot_reach_each_other_go_as_a_whole) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  s.cannot = {{PeerId{4}, PeerId{2}}};
  EXPECT_EQ(excluded(s), (std::set<PeerId>{PeerId{3}, PeerId{4}}));
}

}  // namespace
}  // namespace pccl::master
