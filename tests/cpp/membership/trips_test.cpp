#include "membership/trips.h"

#include <gtest/gtest.h>

#include <map>

namespace pccl {
namespace {

const std::vector<PeerId> kRing{PeerId{3}, PeerId{1}, PeerId{2}};

Trips own(std::uint64_t self, std::map<std::uint64_t, std::uint64_t> trips_us) {
  return own_trips(PeerId{self}, kRing, [&](PeerId peer) { return trips_us[peer.value]; });
}

TEST(Trips, AMemberSaysItsLongestAndThatToTheNextInTheRing) {
  EXPECT_EQ(own(1, {{2, 70}, {3, 900}}), (Trips{900, 70}));
  EXPECT_EQ(own(2, {{1, 70}, {3, 5}}), (Trips{70, 5})) << "the last one's next is the first";
  EXPECT_EQ(own(2, {{1, 70}}), (Trips{70, 0})) << "that is not known";
  EXPECT_EQ(own(4, {{1, 70}}), Trips{}) << "no member";
  EXPECT_EQ(own(1, {{1, 50}, {2, ~0ULL}}), (Trips{kTripUsMax, kTripUsMax}));
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

}  // namespace
}  // namespace pccl
