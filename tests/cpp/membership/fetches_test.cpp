#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::tell;

constexpr std::uint64_t kMiB = 1U << 20;

/// Members 1 to 3 are ready for an epoch with newcomer 9, which is not.
State asked() {
  State s = in_office({member(1), member(2), member(3)});
  Hello hello;
  hello.member = member(9);
  hello.at_door = true;
  static_cast<void>(cast::linked(s, step(s, PeerConnected{hello, "t@a"})));
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
  }
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    static_cast<void>(tell(s, p, Ready{s.proposal->id, cast::report(s, p)}));
  }
  return s;
}

Heartbeat serves(std::uint64_t served, std::uint64_t state_bytes) {
  return {OpKey{1, 0}, false, false, 0, served, state_bytes};
}
Heartbeat fetches(std::uint64_t fetched) { return {{}, true, true, fetched, 0, 0}; }

/// Seconds until the others go on without newcomer 9; `each` says what the peers say in a second.
template <typename Each>
std::uint64_t held_for_s(State& s, Each&& each) {
  const EpochId before = s.proposal->id;
  for (std::uint64_t second = 1; second <= 3000; ++second) {
    each(second);
    static_cast<void>(step(s, Clock{s.now_s + 1, 0}));
    if (!s.proposal || s.proposal->id != before) return second;
  }
  return 0;
}

TEST(Fetches, a_newcomer_that_says_it_fetches_and_is_served_by_nobody_holds_for_thirty_seconds) {
  State s = asked();
  EXPECT_EQ(held_for_s(s,
                       [&](std::uint64_t second) {
                         static_cast<void>(tell(s, 9, fetches(second * 100 * kMiB)));
                       }),
            30U);
}

TEST(Fetches, heartbeats_that_come_rarely_are_no_silence) {
  State s = asked();
  s.config.heartbeat_ms = 40000;
  EXPECT_EQ(held_for_s(s, [](std::uint64_t) {}), 120U);
}

TEST(Fetches, members_that_say_they_serve_a_silent_newcomer_hold_nobody_either) {
  State s = asked();
  EXPECT_EQ(held_for_s(s,
                       [&](std::uint64_t second) {
                         static_cast<void>(tell(s, 1, serves(second * 100 * kMiB, kMiB << 20)));
                       }),
            30U);
}

TEST(Fetches, one_that_fetches_a_trickle_is_left_out) {
  State s = asked();
  const std::uint64_t held_s = held_for_s(s, [&](std::uint64_t second) {
    for (const std::uint64_t p : {1U, 2U, 3U}) {
      static_cast<void>(tell(s, p, serves(p == 1 ? second * kMiB / 4 : 0, 1000 * kMiB)));
    }
    static_cast<void>(tell(s, 9, fetches(second * kMiB / 4)));
  });
  EXPECT_GE(held_s, 40U) << "30 s, 1,000 MiB at 64 MiB/s, and a second for each MiB";
  EXPECT_LE(held_s, 65U);
}

TEST(Fetches, one_that_fetches_fast_enough_has_half_an_hour_at_most) {
  State s = asked();
  EXPECT_EQ(held_for_s(s,
                       [&](std::uint64_t second) {
                         for (const std::uint64_t p : {1U, 2U}) {
                           static_cast<void>(tell(s, p, serves(second * kMiB, kMiB << 20)));
                         }
                         static_cast<void>(tell(s, 9, fetches(second * 2 * kMiB)));
                       }),
            1800U);
}

TEST(Fetches, nobody_needs_the_state_more_than_once) {
  State s = asked();
  const std::uint64_t held_s = held_for_s(s, [&](std::uint64_t second) {
    for (const std::uint64_t p : {1U, 2U, 3U}) {
      static_cast<void>(tell(s, p, serves(second * 10 * kMiB, 64 * kMiB)));
    }
    static_cast<void>(tell(s, 9, fetches(second * 30 * kMiB)));
  });
  EXPECT_EQ(held_s, 30U + 1U + 64U) << "the grace, to take it over, and 64 MiB at 1 MiB/s";
}

TEST(Fetches, a_large_state_takes_time_to_be_taken_over) {
  State s = asked();
  const std::uint64_t held_s = held_for_s(s, [&](std::uint64_t second) {
    const std::uint64_t moved = std::min<std::uint64_t>(second, 10);
    for (const std::uint64_t p : {1U, 2U, 3U}) {
      static_cast<void>(tell(s, p, serves(moved * 1000 * kMiB, 10000 * kMiB)));
    }
    static_cast<void>(tell(s, 9, fetches(moved * 3000 * kMiB + second)));
  });
  EXPECT_EQ(held_s, 10U + 30U + 10000U / 64U);
}

TEST(Fetches, the_size_of_the_state_is_what_most_say) {
  State s = asked();
  const std::uint64_t held_s = held_for_s(s, [&](std::uint64_t) {
    static_cast<void>(tell(s, 1, serves(0, kMiB << 30)));
    static_cast<void>(tell(s, 2, serves(0, kMiB)));
    static_cast<void>(tell(s, 3, serves(0, kMiB)));
  });
  EXPECT_EQ(held_s, 30U);
}

TEST(Fetches, the_ranks_of_a_replica_may_have_states_of_very_different_sizes) {
  State s = in_office({member(1, "a", 0, 3), member(2, "a", 1, 3), member(3, "a", 2, 3)});
  for (std::uint64_t id = 7; id <= 9; ++id) {
    Hello hello;
    hello.member = member(id, "b", static_cast<std::uint32_t>(id - 7), 3);
    hello.at_door = true;
    static_cast<void>(cast::linked(s, step(s, PeerConnected{hello, "t@a"})));
  }
  for (const std::uint64_t p : {1U, 2U, 3U}) {
    static_cast<void>(tell(s, p, Vote{1, VoteKind::refresh, {}}));
  }
  for (const std::uint64_t p : {1U, 2U, 3U, 8U, 9U}) {
    static_cast<void>(tell(s, p, Ready{s.proposal->id, cast::report(s, p)}));
  }
  const std::uint64_t held_s = held_for_s(s, [&](std::uint64_t second) {
    const std::uint64_t moved = std::min<std::uint64_t>(second, 200) * 100 * kMiB;
    static_cast<void>(tell(s, 1, serves(moved, 20000 * kMiB)));
    for (const std::uint64_t p : {2U, 3U}) static_cast<void>(tell(s, p, serves(0, kMiB)));
    static_cast<void>(tell(s, 7, fetches(moved)));
  });
  EXPECT_EQ(held_s, 200U + 30U + 20000U / 64U) << "most of those that are ready have 1 MiB";
}

TEST(Fetches, what_a_peer_says_first_on_a_connection_is_not_what_it_has_moved) {
  State s = asked();
  const std::uint64_t held_s = held_for_s(s, [&](std::uint64_t) {
    for (const std::uint64_t p : {1U, 2U, 3U}) {
      static_cast<void>(tell(s, p, serves(kMiB << 20, kMiB << 10)));
    }
    static_cast<void>(tell(s, 9, fetches(kMiB << 20)));
  });
  EXPECT_EQ(held_s, 30U + (kMiB << 10) / (64 * kMiB));
}

TEST(Fetches, numbers_at_their_limits_are_no_short_or_long_waits) {
  State s = asked();
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const std::uint64_t held_s = held_for_s(s, [&](std::uint64_t second) {
    for (const std::uint64_t p : {1U, 2U, 3U}) {
      static_cast<void>(tell(s, p, serves(second % 2 == 0 ? kMost : 0, kMost)));
    }
    static_cast<void>(tell(s, 9, fetches(second % 2 == 0 ? kMost : 0)));
  });
  EXPECT_EQ(held_s, 1800U);
}

}  // namespace
}  // namespace pccl::master
