// Which links are measured when, and which ring follows.
#include "membership/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "base/random.h"
#include "cast.h"

namespace pccl::topology_test {
namespace {

using cast::crossings;
using cast::kLan;
using cast::oceans;
using cast::peers;
using master::Topology;

using RateOf = std::function<std::uint64_t(PeerId from, PeerId to)>;

/// Answers all that is asked in these seconds.
void measure(Topology& topology, const RateOf& rate, std::uint64_t& now_s, std::uint64_t seconds,
             std::uint64_t trip_us = 1000) {
  for (const std::uint64_t end = now_s + seconds; now_s < end; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      topology.measured(from, to, rate(from, to), trip_us, now_s);
    }
  }
}

std::vector<PeerId> numbered(std::size_t size) {
  std::vector<PeerId> members;
  for (std::uint64_t i = 1; i <= size; ++i) members.push_back(PeerId{i});
  return members;
}

TEST(Topology, no_member_measures_two_links_at_a_time_and_all_are_measured) {
  for (const std::size_t size : {4U, 5U, 6U, 13U}) {
    const std::vector<PeerId> members = numbered(size);
    Topology topology;
    topology.begin({{0, members}}, {}, 0);
    std::set<Topology::Pair> seen;
    std::uint64_t now_s = 0;
    for (; topology.lacks() && now_s < 1000; ++now_s) {
      std::set<PeerId> busy;
      const auto asked = topology.next(now_s);
      if (!topology.lacks()) break;
      for (const auto& [from, to, known] : asked) {
        EXPECT_TRUE(busy.insert(from).second);
        EXPECT_TRUE(busy.insert(to).second);
        EXPECT_TRUE(seen.insert({from, to}).second) << "twice";
      }
      for (const auto& [from, to, known] : asked) topology.measured(from, to, 1000, 0, now_s);
    }
    EXPECT_EQ(seen.size(), size * (size - 1));
    EXPECT_LE(now_s, 3 * size + 3);
    EXPECT_FALSE(topology.wants_vote()) << "all are alike";
    EXPECT_EQ(topology.ring(0, members), members);
  }
}

TEST(Topology, members_that_came_in_the_worst_order_cross_an_ocean_twice) {
  for (const std::uint64_t size : {4U, 6U, 12U, 30U}) {
    const std::vector<PeerId> members = numbered(size);
    Topology topology;
    topology.begin({{0, members}}, {}, 0);
    std::uint64_t now_s = 0;
    measure(topology, oceans, now_s, 4 * size + 20);
    EXPECT_TRUE(topology.wants_vote()) << size;
    const std::vector<PeerId> ring = topology.ring(0, members);
    EXPECT_EQ(crossings(ring), 2U) << size;
    EXPECT_FALSE(topology.why(0).empty());
    topology.begin({{0, ring}}, {}, now_s);
    measure(topology, oceans, now_s, 100);
    EXPECT_FALSE(topology.wants_vote());
    EXPECT_EQ(topology.ring(0, members), ring) << "and stays";
  }
}

/// Seconds until a boundary votes; 0: not in so many.
std::uint64_t vote_s(Topology& topology, const RateOf& rate, std::uint64_t& now_s,
                     std::uint64_t seconds) {
  const std::uint64_t begun_s = now_s;
  while (now_s < begun_s + seconds) {
    measure(topology, rate, now_s, 1);
    if (topology.wants_vote()) return now_s - begun_s;
  }
  return 0;
}
RateOf all(std::uint64_t rate) {
  return [rate](PeerId, PeerId) { return rate; };
}

constexpr std::uint64_t kHour = 3600;
constexpr std::uint32_t kLanMbit = kLan / 125'000;

/// A group whose members are far from each other, through its epochs.
struct Far {
  Topology topology;
  std::vector<PeerId> members;
  std::uint64_t now_s = 0;
  std::uint32_t told = 0;
  bool news = false;

  explicit Far(std::vector<PeerId> who) : members(std::move(who)) { next_epoch(); }
  void next_epoch() {
    topology.begin({{0, topology.ring(0, members)}}, {}, now_s);
    told = topology.mbit(0);
    news = topology.told(0, told);
  }
  std::uint64_t votes_in(std::uint64_t seconds, const RateOf& rate) {
    std::uint64_t votes = 0;
    for (const std::uint64_t end_s = now_s + seconds; now_s < end_s;) {
      if (vote_s(topology, rate, now_s, end_s - now_s) == 0) break;
      ++votes;
      next_epoch();
    }
    return votes;
  }
};

TEST(Topology, a_boundary_votes_for_the_rate_of_far_members_when_all_links_are_measured) {
  Far far(numbered(4));
  EXPECT_EQ(far.told, 0U);
  EXPECT_FALSE(far.news);
  EXPECT_FALSE(far.topology.told(7, 0)) << "there is no such group";
  EXPECT_EQ(far.votes_in(60, all(kLan)), 1U);
  EXPECT_EQ(far.told, kLanMbit);
  EXPECT_TRUE(far.news);
  EXPECT_EQ(far.votes_in(48 * kHour, all(kLan)), 0U);
  EXPECT_EQ(far.votes_in(48 * kHour, all(kLan / 3)), 0U) << "that is no other rate";
  EXPECT_EQ(far.votes_in(96 * kHour, all(kLan / 100)), 1U);
  EXPECT_EQ(far.told, kLanMbit / 100);
}

TEST(Topology, near_members_vote_for_no_rate) {
  const std::vector<PeerId> members = numbered(4);
  Topology topology;
  std::uint64_t now_s = 0;
  topology.begin({{0, members}}, {}, now_s);
  EXPECT_EQ(vote_s(topology, all(kLan), now_s, kHour), 0U);
}

TEST(Topology, one_slow_link_makes_a_slow_rate_also_beside_the_ring) {
  Far far(numbered(4));
  const auto rate = [](PeerId from, PeerId to) {
    return from == PeerId{2} && to == PeerId{3} ? kLan / 50 : kLan;
  };
  EXPECT_GE(far.votes_in(kHour, rate), 1U);
  EXPECT_EQ(far.told, kLanMbit / 50);
}

/// Links that cross from odd to even members, or back, have one line in common.
TEST(Topology, links_that_were_measured_at_once_over_one_line_are_measured_alone) {
  for (const std::uint64_t size : {4U, 8U, 16U}) {
    Far far(numbered(size));
    std::uint64_t votes = 0;
    for (std::uint64_t s = 0; s < kHour; ++s) {
      const auto asked = far.topology.next(++far.now_s);
      const auto crosses = [](const Topology::Question& q) {
        return q.from.value % 2 != q.to.value % 2;
      };
      const auto share = static_cast<std::uint64_t>(
          std::max<std::ptrdiff_t>(1, std::count_if(asked.begin(), asked.end(), crosses)));
      for (const auto& q : asked) {
        far.topology.measured(q.from, q.to, crosses(q) ? kLan / 10 / share : kLan, 80'000,
                              far.now_s);
      }
      if (!far.topology.wants_vote()) continue;
      ++votes;
      far.next_epoch();
    }
    EXPECT_EQ(far.told, kLanMbit / 10) << size;
    EXPECT_LE(votes, 2U) << size << ": for a ring and a rate";
  }
}

TEST(Topology, the_slowest_links_are_measured_beside_no_other_one_of_the_group) {
  // Answers take five seconds, and 18 members have three links measured again at the same time.
  Far far(numbered(18));
  std::map<Topology::Pair, std::uint64_t> under_way;
  std::uint64_t votes = 0;
  for (; far.now_s < 2 * kHour; ++far.now_s) {
    std::map<Topology::Pair, std::uint64_t> shared = under_way;
    for (const auto& [pair, since_s] : shared) {
      if (far.now_s < since_s + 5) continue;
      // All have one line in common.
      far.topology.measured(pair.first, pair.second, kLan / shared.size(), 80'000, far.now_s);
      under_way.erase(pair);
    }
    for (const auto& [from, to, known] : far.topology.next(far.now_s)) {
      under_way[{from, to}] = far.now_s;
    }
    if (!far.topology.wants_vote()) continue;
    ++votes;
    under_way.clear();
    far.next_epoch();
  }
  EXPECT_EQ(votes, 1U);
  EXPECT_EQ(far.told, kLanMbit);
}

TEST(Topology, links_of_the_ring_are_judged_by_operations_but_for_every_eighth_time) {
  for (const std::size_t size : {4U, 13U}) {
    const std::vector<PeerId> members = numbered(size);
    Topology topology;
    topology.begin({{0, members}}, {}, 0);
    Random random(size);
    std::map<Topology::Pair, std::uint64_t> answers;   // when
    std::map<Topology::Pair, std::uint64_t> in_a_row;  // not measured by itself
    std::uint64_t judged = 0;
    for (std::uint64_t now_s = 0; now_s < 12 * kHour; ++now_s) {
      for (const auto& [pair, when_s] : std::map(answers)) {
        if (now_s < when_s) continue;
        topology.measured(pair.first, pair.second, kLan, 0, now_s);
        answers.erase(pair);
      }
      for (const auto& [from, to, known] : topology.next(now_s)) {
        answers[{from, to}] = now_s + random.below(12);
        const bool of_ring = to.value == from.value % size + 1;
        EXPECT_TRUE(of_ring || known == 0);
        if (known == 0) {
          in_a_row[{from, to}] = 0;
          continue;
        }
        EXPECT_EQ(known, kLan);
        ++judged;
        const Topology::Pair pair{from, to};
        EXPECT_LT(++in_a_row[pair], 8U);
      }
    }
    EXPECT_GT(judged, 12 * 60 / 2U) << "half of the minutes, at least";
  }
}

TEST(Topology, of_a_link_that_failed_and_before_a_vote_nothing_is_known) {
  std::vector<PeerId> members = peers({1, 2, 3, 4, 5, 6});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t now_s = 0;
  measure(topology, [](PeerId, PeerId) { return kLan; }, now_s, 30);
  std::optional<Topology::Pair> failed;
  bool asked_again = false;
  for (; now_s < 300 && !asked_again; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      if (failed && *failed == Topology::Pair{from, to}) {
        EXPECT_EQ(known, 0U);
        asked_again = true;
      }
      const bool fails = !failed && known > 0;
      if (fails) failed = {from, to};
      topology.measured(from, to, fails ? 0 : kLan, 0, now_s);
    }
  }
  EXPECT_TRUE(asked_again);
  bool confirmed = false;
  for (; !topology.wants_vote() && now_s < 2 * kHour; ++now_s) {
    std::vector<Topology::Question> asked = topology.next(now_s);
    // More than one at a time: links in which two rings differ.
    const bool confirms = asked.size() > 1;
    confirmed = confirmed || confirms;
    for (const auto& [from, to, known] : asked) {
      EXPECT_TRUE(!confirms || known == 0);
      topology.measured(from, to, oceans(from, to), 0, now_s);
    }
  }
  EXPECT_TRUE(confirmed);
  EXPECT_TRUE(topology.wants_vote());
}

TEST(Topology, a_link_that_fails_once_is_no_slow_one) {
  Far far(numbered(4));
  int failures = 1;
  const auto rate = [&](PeerId, PeerId) { return failures-- > 0 ? 0 : kLan; };
  EXPECT_EQ(far.votes_in(kHour, rate), 1U);
  EXPECT_EQ(far.told, kLanMbit);
}

TEST(Topology, links_that_cannot_be_measured_are_worth_no_vote_for_a_rate) {
  Far far(numbered(4));
  EXPECT_EQ(far.votes_in(48 * kHour, all(0)), 0U);
}

TEST(Topology, a_rate_that_comes_and_goes_makes_few_boundaries_vote) {
  for (const std::size_t size : {4U, 6U}) {
    Far far(numbered(size));
    Random random(size);
    const auto one_is_shaky = [&](PeerId from, PeerId to) {
      return from == PeerId{1} && to == PeerId{2} && random.below(2) == 0 ? kLan / 5 : kLan;
    };
    EXPECT_LE(far.votes_in(24 * kHour, one_is_shaky), 10U) << size;
  }
}

TEST(Topology, newcomers_that_are_not_measured_count_as_slow_and_no_rate_is_forgotten) {
  Far far(numbered(4));
  ASSERT_EQ(far.votes_in(kHour, all(kLan)), 1U);
  far.members.push_back(PeerId{5});
  far.next_epoch();
  EXPECT_EQ(far.told, kMbitAssumed);
  EXPECT_EQ(far.votes_in(kHour, all(kLan)), 1U);
  EXPECT_EQ(far.told, kLanMbit);
  ASSERT_EQ(far.votes_in(96 * kHour, all(kLan / 100)), 1U);
  far.members.push_back(PeerId{6});
  far.next_epoch();
  EXPECT_EQ(far.told, kLanMbit / 100) << "slower than what nobody knows";
  far.members.pop_back();
  far.next_epoch();
  EXPECT_EQ(far.told, kLanMbit / 100);
}

TEST(Topology, a_slow_newcomer_is_not_told_as_fast_as_those_before_it) {
  for (const std::uint64_t slower : {5U, 20U, 50U}) {
    Far far(numbered(4));
    const auto rate = [&](PeerId from, PeerId to) {
      return from == PeerId{5} || to == PeerId{5} ? kLan / slower : kLan;
    };
    ASSERT_EQ(far.votes_in(kHour, rate), 1U);
    far.members.push_back(PeerId{5});
    for (int epoch = 0; epoch < 3; ++epoch) {
      far.next_epoch();
      EXPECT_LE(far.told, std::max(kMbitAssumed, kLanMbit / 5)) << slower;
      static_cast<void>(far.votes_in(60, rate));
    }
    static_cast<void>(far.votes_in(kHour, rate));
    EXPECT_LT(far.told, 4 * kLanMbit / slower);
    EXPECT_GT(4 * far.told, kLanMbit / slower);
  }
}

TEST(Topology, a_vote_for_a_rate_brings_no_ring_that_was_not_confirmed_to_any_group) {
  const std::vector<PeerId> steady = peers({21, 22, 23, 24});
  const std::vector<PeerId> noisy = numbered(4);
  std::size_t votes = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Topology without;
    Topology topology;
    Random random(seed);
    Random same(seed);
    for (Topology* t : {&without, &topology}) t->begin({{0, steady}, {1, noisy}}, {}, 0);
    static_cast<void>(topology.told(0, 0));
    const auto rates = [](Random& chance) {
      return [&chance](PeerId from, PeerId) {
        return from.value > 20 ? kLan : kLan / (1 + chance.below(3));
      };
    };
    std::uint64_t now_s = 0;
    std::uint64_t then_s = 0;
    while (now_s < 100 && !topology.wants_vote()) {
      measure(topology, rates(random), now_s, 1);
      measure(without, rates(same), then_s, 1);
    }
    if (!topology.wants_vote() || without.wants_vote()) continue;
    ++votes;
    EXPECT_EQ(topology.ring(1, noisy), noisy) << seed;
  }
  EXPECT_GT(votes, 50U);
}

TEST(Topology, of_links_as_fast_as_each_other_the_shorter_ones_are_taken) {
  const std::vector<PeerId> members = peers({1, 2, 3, 4, 5, 6});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t now_s = 0;
  for (; now_s < 40; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      const bool near = from.value % 2 == to.value % 2;
      topology.measured(from, to, kLan, near ? 500 : 80'000, now_s);
    }
  }
  EXPECT_TRUE(topology.wants_vote());
  EXPECT_EQ(crossings(topology.ring(0, members)), 2U);
}

/// A day of measurements of like links whose errors have this deviation, in percent (about normal);
/// returns how often a boundary votes.
std::size_t votes_of_noise(std::size_t size, std::uint64_t percent, std::uint64_t seed) {
  std::vector<PeerId> members = numbered(size);
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  Random random(seed);
  const auto rate = [&](PeerId, PeerId) {
    std::uint64_t sum = 0;  // of four: the middle is the likeliest
    for (int i = 0; i < 4; ++i) sum += random.below(2 * percent + 1);
    return kLan * (1000 + 9 * sum - 36 * percent) / 1000;
  };
  std::size_t votes = 0;
  std::uint64_t now_s = 0;
  while (now_s < 86'400) {
    measure(topology, rate, now_s, 1);
    if (!topology.wants_vote()) continue;
    ++votes;
    members = topology.ring(0, members);
    topology.begin({{0, members}}, {}, now_s);
  }
  return votes;
}

TEST(Topology, noise_makes_hardly_a_boundary_vote_in_a_day) {
  for (const std::size_t size : {6U, 8U}) {
    EXPECT_EQ(votes_of_noise(size, 5, size), 0U) << size;
    EXPECT_LE(votes_of_noise(size, 10, size), 1U) << size;
    EXPECT_LE(votes_of_noise(size, 20, size), 10U) << size;
  }
}

TEST(Topology, asks_for_few_votes_also_where_links_change_all_the_time) {
  std::vector<PeerId> members = peers({1, 2, 3, 4, 5, 6});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  Random random(2);
  std::uint64_t now_s = 0;
  std::size_t votes = 0;
  while (now_s < 7200) {
    measure(topology, [&](PeerId, PeerId) { return kLan / (1 + random.below(100)); }, now_s, 1);
    if (!topology.wants_vote()) continue;
    ++votes;
    members = topology.ring(0, members);
    topology.begin({{0, members}}, {}, now_s);
  }
  EXPECT_LE(votes, 2U) << "in two hours";
}

/// Seconds from the beginning to the vote, where three measurements in ten find a tenth to all of
/// the rate: a machine that stutters, or other work on the line.
std::uint64_t vote_among_errors_s(std::uint64_t seed) {
  Topology topology;
  topology.begin({{0, numbered(6)}}, {}, 0);
  Random random(seed);
  const auto rate = [&](PeerId from, PeerId to) {
    const bool errs = random.below(10) < 3;
    return oceans(from, to) * (errs ? 100 + random.below(901) : 1000) / 1000;
  };
  std::uint64_t now_s = 0;
  while (now_s < 3600 && !topology.wants_vote()) measure(topology, rate, now_s, 1);
  return now_s;
}

TEST(Topology, a_ring_that_errors_have_hidden_is_looked_for_again_soon) {
  std::vector<std::uint64_t> seconds;
  for (std::uint64_t seed = 0; seed < 200; ++seed) seconds.push_back(vote_among_errors_s(seed));
  std::sort(seconds.begin(), seconds.end());
  EXPECT_LE(seconds[100], 30U);
  EXPECT_LE(seconds[180], 150U);
}

TEST(Topology, a_link_of_the_ring_that_falls_is_found_within_minutes) {
  std::vector<PeerId> members = peers({1, 2, 3, 4, 5});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t now_s = 0;
  measure(topology, [](PeerId, PeerId) { return kLan; }, now_s, 30);
  EXPECT_FALSE(topology.wants_vote());
  const auto falls = [](PeerId from, PeerId to) {
    return from == PeerId{1} && to == PeerId{2} ? kLan / 100 : kLan;
  };
  measure(topology, falls, now_s, 450);
  ASSERT_TRUE(topology.wants_vote());
  members = topology.ring(0, members);
  const auto at = std::find(members.begin(), members.end(), PeerId{1});
  EXPECT_NE(*(at + 1 == members.end() ? members.begin() : at + 1), PeerId{2});
}

TEST(Topology, one_answer_that_is_lost_changes_nothing_and_the_link_is_measured_next) {
  std::vector<PeerId> members = peers({1, 2, 3, 4, 5, 6});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t now_s = 0;
  measure(topology, [](PeerId, PeerId) { return kLan; }, now_s, 30);
  std::optional<Topology::Pair> lost;
  std::uint64_t lost_s = 0;
  bool again = false;
  for (; now_s < 400 && !again; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      again = again || (lost && *lost == Topology::Pair{from, to});
      if (!lost && from == PeerId{1} && to == PeerId{2}) {
        lost = {from, to};
        lost_s = now_s;
      } else {
        topology.measured(from, to, kLan, 0, now_s);
      }
    }
    ASSERT_FALSE(topology.wants_vote()) << now_s;
  }
  EXPECT_TRUE(again);
  EXPECT_LE(now_s, lost_s + 90) << "20 s of silence, and the next turn";
}

TEST(Topology, a_member_that_measures_nothing_holds_up_nobody_and_rings_are_still_compared) {
  std::vector<PeerId> members = peers({1, 2, 3, 4, 5, 6});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t asked_of_6 = 0;
  std::uint64_t now_s = 0;
  for (; now_s < 1200; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      if (from == PeerId{6}) ++asked_of_6;
      topology.measured(from, to, from == PeerId{6} ? 0 : oceans(from, to), 0, now_s);
    }
    if (!topology.wants_vote()) continue;
    members = topology.ring(0, members);
    topology.begin({{0, members}}, {}, now_s);
  }
  EXPECT_GT(asked_of_6, 5U);
  EXPECT_LE(crossings(members), 4U);
  EXPECT_FALSE(topology.lacks());
}

TEST(Topology, a_member_that_does_not_answer_is_waited_for_20_s_at_a_time) {
  const std::vector<PeerId> members = peers({1, 2, 3, 4});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t now_s = 0;
  for (; now_s < 120; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      if (from != PeerId{1}) topology.measured(from, to, kLan, 0, now_s);
    }
  }
  EXPECT_FALSE(topology.lacks());
  EXPECT_FALSE(topology.wants_vote()) << "no ring goes round without a link from it";
}

TEST(Topology, what_is_known_of_a_part_is_used_where_an_epoch_begins_anyway) {
  std::vector<PeerId> members = peers({1, 2, 3, 4, 5, 6, 7});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t now_s = 0;
  for (; now_s < 65; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      const bool silent = from == PeerId{7} || to == PeerId{7};
      if (!silent) topology.measured(from, to, oceans(from, to), 0, now_s);
    }
    ASSERT_FALSE(topology.wants_vote()) << "for a part no boundary votes yet";
  }
  ASSERT_TRUE(topology.lacks());
  EXPECT_LT(crossings(topology.ring(0, members)), crossings(members));
}

TEST(Topology, an_answer_that_was_not_asked_for_changes_nothing) {
  const std::vector<PeerId> members = peers({1, 2, 3, 4});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  topology.measured(PeerId{1}, PeerId{2}, 1, 0, 0);
  topology.measured(PeerId{9}, PeerId{9}, ~0ULL, ~0ULL, 0);
  std::uint64_t now_s = 0;
  measure(topology, [](PeerId, PeerId) { return ~0ULL; }, now_s, 30, ~0ULL);
  EXPECT_FALSE(topology.lacks());
  EXPECT_FALSE(topology.wants_vote()) << "and numbers beyond all sense are alike";
}

TEST(Topology, relayed_pairs_are_not_measured_and_not_neighbours) {
  const std::vector<PeerId> members = peers({1, 2, 3, 4});
  Topology topology;
  topology.begin({{0, members}}, {{PeerId{1}, PeerId{2}}}, 0);
  std::uint64_t now_s = 0;
  bool asked = false;
  for (; now_s < 30; ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      asked = asked || (from.value + to.value == 3);
      topology.measured(from, to, kLan, 0, now_s);
    }
  }
  EXPECT_FALSE(asked);
  EXPECT_FALSE(topology.lacks());
  EXPECT_EQ(topology.ring(0, members).size(), 4U);
}

TEST(Topology, the_slowest_link_of_each_sender_is_known_for_people) {
  const std::vector<PeerId> members = peers({1, 2, 3, 4});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  EXPECT_TRUE(topology.slowest().empty());
  std::uint64_t now_s = 0;
  const auto rate = [](PeerId from, PeerId to) {
    if (from == PeerId{4}) return std::uint64_t{0};  // measures nothing
    return to == PeerId{3} ? kLan / 10 : kLan + to.value;
  };
  measure(topology, rate, now_s, 60);
  const auto slowest = topology.slowest();
  ASSERT_EQ(slowest.size(), 3U);
  EXPECT_EQ(slowest.at(PeerId{1}).to, PeerId{3});
  EXPECT_EQ(slowest.at(PeerId{1}).rate, kLan / 10);
  EXPECT_EQ(slowest.at(PeerId{1}).trip_us, 1000U);
  EXPECT_EQ(slowest.at(PeerId{3}).to, PeerId{1});
}

TEST(Topology, newcomers_stand_at_the_end_of_the_ring_and_who_is_lost_leaves_it) {
  const std::vector<PeerId> members = peers({1, 2, 3, 4, 5, 6});
  Topology topology;
  topology.begin({{0, members}}, {}, 0);
  std::uint64_t now_s = 0;
  measure(topology, oceans, now_s, 30);
  const std::vector<PeerId> ring = topology.ring(0, members);
  ASSERT_NE(ring, members);
  std::vector<PeerId> expected = ring;
  std::erase(expected, PeerId{3});
  expected.push_back(PeerId{7});
  EXPECT_EQ(topology.ring(0, peers({1, 2, 4, 5, 6, 7})), expected);
  EXPECT_EQ(topology.ring(1, peers({8, 9})), peers({8, 9})) << "of a group that is not known";
  topology.begin({{0, expected}}, {}, now_s);
  std::set<Topology::Pair> asked;
  for (; topology.lacks(); ++now_s) {
    for (const auto& [from, to, known] : topology.next(now_s)) {
      if (topology.lacks()) asked.insert({from, to});
      topology.measured(from, to, kLan, 0, now_s);
    }
  }
  EXPECT_EQ(asked.size(), 10U) << "to and from the newcomer: the others are known";
}

TEST(Topology, small_groups_and_very_large_ones_are_not_measured) {
  const std::vector<PeerId> many = numbered(master::kMeasuredMost + 1);
  Topology topology;
  topology.begin({{0, peers({1001, 1002, 1003})}, {1, many}}, {}, 0);
  EXPECT_TRUE(topology.next(0).empty());
  EXPECT_FALSE(topology.lacks());
}

}  // namespace
}  // namespace pccl::topology_test
