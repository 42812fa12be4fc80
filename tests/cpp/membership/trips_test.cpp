#include "membership/trips.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace pccl {
namespace {

const std::vector<PeerId> kRing{PeerId{3}, PeerId{1}, PeerId{2}};

Trips own(std::uint64_t self, std::map<std::uint64_t, std::uint64_t> trips_us) {
  Trips own =
      own_trips(PeerId{self}, kRing, [&](PeerId peer) { return Trip{trips_us[peer.value]}; });
  own.host = 0;  // where nobody is on its machine: its own place
  return own;
}

TEST(Trips, AMemberSaysItsLongestAndThatToTheNextInTheRing) {
  EXPECT_EQ(own(1, {{2, 70}, {3, 900}}), (Trips{900, 70}));
  EXPECT_EQ(own(2, {{1, 70}, {3, 5}}), (Trips{70, 5})) << "the last one's next is the first";
  EXPECT_EQ(own(2, {{1, 70}}), (Trips{70, 0})) << "that is not known";
  EXPECT_EQ(own(4, {{1, 70}}), Trips{}) << "no member";
  EXPECT_EQ(own(1, {{1, 50}, {2, ~0ULL}}), (Trips{kTripUsMax, kTripUsMax}));
}

TEST(Trips, AGroupIsLocalIfAllLinksOfAllMembersAre) {
  const auto own_local = [](std::vector<PeerId> ring, std::uint64_t far) {
    return own_trips(PeerId{1}, ring, [&](PeerId peer) { return Trip{0, peer.value != far}; });
  };
  EXPECT_TRUE(own_local(kRing, 0).local);
  EXPECT_FALSE(own_local(kRing, 3).local);
  EXPECT_FALSE(own_local({PeerId{1}}, 0).local) << "it has no link";
  EXPECT_TRUE(lines_of_all({{0, 0, true}, {0, 0, true}}, 0).local);
  EXPECT_FALSE(lines_of_all({{0, 0, true}, {0, 0, false}}, 0).local);
}

TEST(Trips, TheGroupTakesWhatTwoSayAndTheMeanOfTheNeighbours) {
  EXPECT_EQ(lines_of_all({}, 1), Lines{});
  EXPECT_EQ(lines_of_all({{500, 500}}, 1), Lines{});
  EXPECT_EQ(lines_of_all({{500, 500}, {480, 480}}, 70), (Lines{480, 480, 70}));
  EXPECT_EQ(lines_of_all({{900, 70}, {70, 10}, {890, 890}}, 0), (Lines{890, 970 / 3, 0}));
}

TEST(Trips, OneThatLiesChangesLittle) {
  constexpr std::uint32_t kAll = ~0U;
  const std::vector<Trips> sound{{900, 70}, {70, 10}, {890, 890}};
  for (std::size_t liar = 0; liar < sound.size(); ++liar) {
    for (const Trips lie : {Trips{kAll, kAll}, Trips{0, kAll}, Trips{kAll, 0}, Trips{}}) {
      std::vector<Trips> said = sound;
      said[liar] = lie;
      const Lines all = lines_of_all(said, 0);
      EXPECT_LE(all.farthest_us, 900U);
      EXPECT_LE(all.neighbour_us, (970U + 900U) / 3);
    }
  }
  EXPECT_EQ(lines_of_all({{kAll, kAll}, {kAll, kAll}}, 0), (Lines{kTripUsMax, kTripUsMax, 0}));
}

/// The sites of a ring whose neighbours are so far from each other; the farthest two: 80 ms.
Sites sites(const std::vector<std::uint32_t>& neighbours_ms) {
  std::vector<Trips> said;
  for (const std::uint32_t ms : neighbours_ms) said.push_back({80'000, ms * 1000});
  return lines_of_all(said, 0).sites;
}

TEST(Trips, SitesLieBetweenFarNeighbours) {
  EXPECT_EQ(sites({0, 80, 1, 80}), (Sites{0, 0, 1, 1}));
  EXPECT_EQ(sites({80, 0, 80, 0}), (Sites{0, 1, 1, 0})) << "the ring begins within one";
  EXPECT_EQ(sites({80, 9, 9, 80}), (Sites{0, 1, 1, 1})) << "less than an eighth is near";
  EXPECT_EQ(sites({80, 10, 0, 80}), (Sites{0, 1, 2, 2}));
  EXPECT_EQ(sites({0, 20, 0, 80, 80}), (Sites{0, 0, 1, 1, 2}));
  EXPECT_EQ(sites({80, 80, 80, 80}), Sites{}) << "each alone";
  EXPECT_EQ(sites({0, 0, 0, 80}), Sites{}) << "a border on one side only is none";
  EXPECT_EQ(sites({0, 0}), Sites{});
  EXPECT_EQ(sites({80, 80}), Sites{});
}

TEST(Trips, NeighboursOfOneSiteHaveAMeanOfTheirOwn) {
  // Far ones that are not the farthest, and near ones of no time at all, change nothing about it.
  const auto near = [](const std::vector<std::uint32_t>& neighbours_us) {
    std::vector<Trips> said;
    for (const std::uint32_t us : neighbours_us) said.push_back({80'123, us});
    return lines_of_all(said, 0).near_us;
  };
  EXPECT_EQ(near({0, 80'000, 0, 80'123}), 0U);
  EXPECT_EQ(near({200, 80'000, 400, 30'000}), 300U);
  EXPECT_EQ(near({80'000, 80'000, 80'000, 80'000}), 0U) << "no sites";
  EXPECT_EQ(near({200, 300, 400, 500}), 0U) << "no sites";
}

TEST(Trips, TheLogNamesTheRanksOfEachSite) {
  EXPECT_EQ(sites_text({0, 1, 1, 0}, {3, 0, 2, 1}), "2 sites: ranks 3, 1 | 0, 2");
  const Sites many(4096, 0);
  const std::vector<std::uint32_t> ranks(4096, 1234);
  EXPECT_LE(sites_text(many, ranks).size(), kTextBytesMax);
}

TEST(Trips, AMemberSaysWhoIsTheFirstOfItsMachine) {
  const std::vector<PeerId> ring{PeerId{3}, PeerId{1}, PeerId{2}, PeerId{4}};
  const auto host = [&](std::uint64_t self, std::vector<std::uint64_t> local) {
    return own_trips(PeerId{self}, ring,
                     [&](PeerId peer) {
                       return Trip{0, std::ranges::find(local, peer.value) != local.end()};
                     })
        .host;
  };
  EXPECT_EQ(host(3, {}), 0U);
  EXPECT_EQ(host(2, {}), 2U);
  EXPECT_EQ(host(2, {4}), 2U);
  EXPECT_EQ(host(4, {2}), 2U);
  EXPECT_EQ(host(4, {1, 2}), 1U);
  EXPECT_EQ(host(1, {2, 3, 4}), 0U);
}

/// The sites of a ring whose members say so of their machines; the farthest two: `us`.
Sites machines(const std::vector<std::uint32_t>& hosts, std::uint32_t us = 200) {
  std::vector<Trips> said;
  for (const std::uint32_t host : hosts) said.push_back({us, us, /*local=*/false, host});
  return lines_of_all(said, 0).sites;
}

TEST(Trips, MachinesAreTheSitesOfNearRanks) {
  EXPECT_EQ(machines({0, 0, 2, 2}), (Sites{0, 0, 1, 1}));
  EXPECT_EQ(machines({0, 1, 0, 1}), (Sites{0, 1, 0, 1})) << "in any order";
  EXPECT_EQ(machines({0, 0, 2}), (Sites{0, 0, 1}));
  EXPECT_EQ(machines({0, 0, 0}), Sites{}) << "one machine";
  EXPECT_EQ(machines({0, 1, 2}), Sites{}) << "each alone";
  EXPECT_EQ(machines({0, 0, 2, 2}, kFarUs), Sites{}) << "not over long lines";
  EXPECT_EQ(machines({0, 0, ~0U, 2}), (Sites{0, 0, 1, 2})) << "a lie is a site of its own";
  std::vector<std::uint32_t> many(2 * (kSitesMax + 1));
  for (std::uint32_t i = 0; i < many.size(); ++i) many[i] = i / 2 * 2;
  EXPECT_EQ(machines(many), Sites{});
  many.resize(2 * std::size_t{kSitesMax});
  EXPECT_EQ(machines(many).back(), kSitesMax - 1);
  EXPECT_EQ(lines_of_all({{9, 9, true, 0}, {9, 9, false, 0}, {9, 9, false, 2}}, 7),
            (Lines{9, 9, 7, {0, 0, 1}}))
      << "no mean of near neighbours";
}

TEST(Trips, NearRanksHaveNoSites) {
  EXPECT_EQ(lines_of_all({{1999, 0}, {1999, 1999}, {1999, 0}, {1999, 1999}}, 0).sites, Sites{});
  EXPECT_EQ(lines_of_all({{2000, 0}, {2000, 2000}, {2000, 0}, {2000, 2000}}, 0).sites,
            (Sites{0, 0, 1, 1}));
  EXPECT_EQ(lines_of_all({{4000, 0}, {4000, 1999}, {4000, 0}, {4000, 4000}}, 0).sites, Sites{});
}

}  // namespace
}  // namespace pccl
