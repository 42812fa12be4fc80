// What the master makes of measured links: questions to members, and the rings of its proposals.
#include <gtest/gtest.h>

#include "cast.h"
#include "membership/status.h"

namespace pccl::rings_test {
namespace {

using namespace cast;
using master::Clock;
using master::State;

/// Members measure what `oceans` says for some seconds.
void measured(State& s, std::uint64_t seconds) {
  for (; seconds > 0; --seconds) {
    for (const auto& [from, asked] : sent<Measure>(step(s, Clock{s.now_s + 1, 0}))) {
      static_cast<void>(tell(s, from.value, Measured{asked.peer, oceans(from, asked.peer), 1000}));
    }
  }
}

std::vector<Member> six() {
  std::vector<Member> members;
  for (std::uint64_t i = 1; i <= 6; ++i) members.push_back(member(i));
  return members;
}

TEST(Rings, a_boundary_votes_for_a_better_ring_and_all_members_get_it) {
  State s = in_office(six());
  master::begin_rings(s);
  measured(s, 30);
  EXPECT_TRUE(wants_boundary(s, ids_of(six()), six()));
  const std::vector<std::uint32_t> places = master::rings(s, six());
  const Epoch epoch{kEpoch, six(), {}, true, {}, places};
  const std::vector<PeerId> ring = ring_of(epoch, 0);
  EXPECT_EQ(crossings(ring), 2U);
  const auto lines = master::changed_rings(s, &*s.held->epoch, epoch);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("another order: ranks 0, "), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("its slowest link carries 100 Mbit/s (before: 100), and 4 MiB go round "
                          "in 808 ms (before: 2016)"),
            std::string::npos)
      << lines[0];
}

TEST(Rings, an_operator_that_wants_rank_order_gets_it_with_the_next_epoch) {
  State s = in_office(six());
  s.held->epoch->ring = {0, 2, 4, 1, 3, 5};
  master::begin_rings(s);
  EXPECT_EQ(master::rings(s, six()), s.held->epoch->ring) << "a new master keeps the order";
  s.config.measure_links = false;
  EXPECT_TRUE(master::rings(s, six()).empty());
}

TEST(Rings, a_master_asks_for_no_measurement_while_no_epoch_runs_or_where_rank_order_is_kept) {
  State s = in_office(six());
  master::begin_rings(s);
  s.running = false;
  EXPECT_TRUE(sent<Measure>(step(s, Clock{1, 0})).empty());
  s.running = true;
  s.config.measure_links = false;
  EXPECT_TRUE(sent<Measure>(step(s, Clock{2, 0})).empty());
  s.config.measure_links = true;
  EXPECT_FALSE(sent<Measure>(step(s, Clock{3, 0})).empty());
}

TEST(Rings, a_ring_of_an_epoch_names_each_member_once_whatever_its_places_say) {
  const Epoch epoch{kEpoch, six(), {}, true, {}, {3, 3, 77, 0, ~0U, 5}};
  EXPECT_EQ(ring_of(epoch, 0), peers({4, 1, 6, 2, 3, 5}));
  EXPECT_TRUE(ring_of(epoch, 1).empty());
}

/// What the members of each peer group hear of their round trips when the next epoch starts.
/// `change` is made before it is proposed; `silent` says nothing of its own.
std::map<PeerId, Lines> heard(const std::function<void(State&)>& change, std::uint64_t silent = 0) {
  const std::vector<Member> members{member(1, "a", 0, 2), member(2, "a", 1, 2),
                                    member(3, "b", 0, 2), member(4, "b", 1, 2)};
  State s = in_office(members);
  change(s);
  static_cast<void>(tell(s, 1, Relinked{kEpoch, PeerId{3}}));
  for (const std::uint64_t p : {1U, 2U, 3U, 4U}) {
    const bool other = p % 2 == 0;
    std::optional<Trips> own = Trips{80'000U + static_cast<std::uint32_t>(p), 80'000U};
    if (other) own = Trips{300, 300};
    if (p == silent) own.reset();
    static_cast<void>(tell(s, p, Ready{s.proposal->id, report(s, p), own}));
  }
  std::map<PeerId, Lines> lines;
  for (const auto& [p, start] : sent<Start>(step(s, master::RegisterWritten{*s.writing, true}))) {
    lines[p] = start.lines;
  }
  return lines;
}

std::map<PeerId, Lines> four(Lines odd, Lines even) {
  return {{PeerId{1}, odd}, {PeerId{2}, even}, {PeerId{3}, odd}, {PeerId{4}, even}};
}

TEST(Rings, all_members_of_a_peer_group_hear_the_same_round_trips) {
  EXPECT_EQ(heard([](State&) {}), four({80'001, 80'000}, {300, 300}));
}

TEST(Rings, round_trips_that_one_member_does_not_know_or_nobody_wants_are_told_to_none) {
  EXPECT_EQ(heard([](State&) {}, 3), four({}, {300, 300})) << "an older build";
  EXPECT_EQ(heard([](State& s) { s.config.measure_links = false; }), four({}, {}));
}

TEST(Rings, far_members_that_heard_of_no_rates_vote_when_they_are_measured) {
  std::vector<Member> members = six();
  for (const std::uint32_t trip_us : {kFarUs, kFarUs - 1}) {
    State s = in_office(members);
    static_cast<void>(tell(s, 1, Relinked{kEpoch, PeerId{3}}));
    for (const Member& m : members) {
      const std::uint64_t p = m.peer().value;
      static_cast<void>(tell(s, p, Ready{s.proposal->id, report(s, p), Trips{trip_us, trip_us}}));
    }
    const auto starts = sent<Start>(step(s, master::RegisterWritten{*s.writing, true}));
    ASSERT_EQ(starts.size(), members.size());
    EXPECT_EQ(starts.begin()->second.lines, (Lines{trip_us, trip_us, 0}));
    const auto alike = [](PeerId, PeerId) { return std::uint64_t{12'500'000}; };
    for (int i = 0; i < 40; ++i) {
      for (const auto& [from, asked] : sent<Measure>(step(s, Clock{s.now_s + 1, 0}))) {
        static_cast<void>(
            tell(s, from.value, Measured{asked.peer, alike(from, asked.peer), trip_us}));
      }
    }
    EXPECT_EQ(wants_boundary(s, ids_of(members), members), trip_us == kFarUs) << trip_us;
    if (trip_us < kFarUs) continue;
    const Lines known = master::lines(s, 0);
    EXPECT_EQ(known, (Lines{trip_us, trip_us, 100}));
    EXPECT_EQ(
        master::rate_text(s, 0, known.mbit_per_s),
        "the members are far from each other, and choose the steps of their calls by the rate "
        "of their slowest link, 100 Mbit/s");
  }
}

TEST(Rings, members_of_one_machine_know_that_also_where_rank_order_is_wanted) {
  State s = in_office(six());
  for (auto& [p, peer] : s.peers) peer.trips = Trips{70, 50, /*local=*/true};
  EXPECT_EQ(master::lines(s, 0), (Lines{.farthest_us = 70, .neighbour_us = 50, .local = true}));
  s.config.measure_links = false;
  EXPECT_EQ(master::lines(s, 0), Lines{.local = true});
  s.peers.at(PeerId{3}).trips->local = false;
  EXPECT_EQ(master::lines(s, 0), Lines{});
}

TEST(Rings, members_of_several_machines_know_who_is_with_whom_unless_rank_order_is_wanted) {
  State s = in_office(six());
  for (auto& [p, peer] : s.peers) {
    peer.trips = Trips{200, 100, /*local=*/false, static_cast<std::uint32_t>(p.value % 2)};
  }
  EXPECT_EQ(master::lines(s, 0).sites, (Sites{0, 1, 0, 1, 0, 1}));
  s.config.measure_links = false;
  EXPECT_EQ(master::lines(s, 0), Lines{});
}

TEST(Rings, members_that_reach_each_other_over_a_third_go_by_no_round_trips) {
  State s = in_office(six());
  for (auto& [p, peer] : s.peers) peer.trips = Trips{80'000, 80'000};
  EXPECT_EQ(master::lines(s, 0), (Lines{80'000, 80'000}));
  s.held->epoch->relays = {Relay{PeerId{2}, PeerId{4}, PeerId{1}}};
  EXPECT_EQ(master::lines(s, 0), Lines{});
  s.held->epoch->relays = {Relay{PeerId{7}, PeerId{8}, PeerId{1}}};
  EXPECT_EQ(master::lines(s, 0), (Lines{80'000, 80'000})) << "another peer group";
}

TEST(Rings, sites_follow_the_ring_and_not_the_ranks) {
  State s = in_office(six());
  s.held->epoch->ring = {0, 2, 4, 1, 3, 5};
  for (auto& [p, peer] : s.peers) {
    const bool last = p.value == 5 || p.value == 6;  // of a continent, in that ring
    peer.trips = Trips{80'000, last ? 80'000U : 300U};
  }
  EXPECT_EQ(master::lines(s, 0).sites, (Sites{0, 0, 0, 1, 1, 1}));
  s.held->epoch->ring = {};
  EXPECT_EQ(master::lines(s, 0).sites, (Sites{0, 0, 0, 0, 0, 1}));
}

TEST(Rings, the_log_names_the_sites_when_they_change) {
  State s = in_office(six());
  s.held->epoch->ring = {0, 2, 4, 1, 3, 5};
  const Sites halves{0, 0, 0, 1, 1, 1};
  EXPECT_EQ(master::text_of_sites(s, 0, {}), "");
  EXPECT_EQ(master::text_of_sites(s, 0, halves),
            "the members stand at 2 sites: ranks 0, 2, 4 | 1, 3, 5; calls may go in two levels");
  EXPECT_EQ(master::text_of_sites(s, 0, halves), "");
  std::vector<std::uint32_t> told;
  for (const MemberStatus& m : master::status_of(s, {}).members) told.push_back(m.site);
  EXPECT_EQ(told, (std::vector<std::uint32_t>{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(master::text_of_sites(s, 0, {}),
            "the members stand at no sites any more: calls go in one level");
  EXPECT_EQ(master::status_of(s, {}).members[1].site, 0U);
}

/// Are sites told to six members, three at each of two, when all links are measured? `slow`: one
/// pair with another rate, Mbit/s; the others have 100.
bool sites_with(std::pair<std::uint64_t, std::uint64_t> slow, std::uint64_t mbit) {
  State s = in_office(six());
  static_cast<void>(tell(s, 1, Relinked{kEpoch, PeerId{3}}));
  for (const std::uint64_t p : {1U, 2U, 3U, 4U, 5U, 6U}) {
    const Trips own{80'000, p == 3 || p == 6 ? 80'000U : 300U};
    static_cast<void>(tell(s, p, Ready{s.proposal->id, report(s, p), own}));
  }
  static_cast<void>(step(s, master::RegisterWritten{*s.writing, true}));
  EXPECT_FALSE(master::lines(s, 0).sites.empty()) << "not measured";
  for (int i = 0; i < 60; ++i) {
    for (const auto& [from, asked] : sent<Measure>(step(s, Clock{s.now_s + 1, 0}))) {
      const bool is_slow = std::pair(from.value, asked.peer.value) == slow;
      const std::uint64_t rate = (is_slow ? mbit : 100) * 125'000;
      static_cast<void>(tell(s, from.value, Measured{asked.peer, rate, 80'000}));
    }
  }
  return !master::lines(s, 0).sites.empty();
}

TEST(Rings, a_slow_link_that_the_ring_leaves_out_leaves_no_sites) {
  // Two levels send S / 3 over each pair, the ring 5 / 3 S over its links: a fifth of its rate is
  // enough.
  EXPECT_TRUE(sites_with({2, 5}, 100));
  EXPECT_TRUE(sites_with({2, 5}, 20));
  EXPECT_FALSE(sites_with({2, 5}, 19));
  EXPECT_FALSE(sites_with({2, 5}, 0)) << "it cannot be measured";
  // The last one of a site sends 4 / 3 S to the first one there, which the ring never does.
  EXPECT_TRUE(sites_with({3, 1}, 80));
  EXPECT_FALSE(sites_with({3, 1}, 79));
  EXPECT_FALSE(sites_with({3, 1}, 0));
  EXPECT_TRUE(sites_with({1, 3}, 1)) << "nobody uses it";
}

}  // namespace
}  // namespace pccl::rings_test
