#include <gtest/gtest.h>

#include "cast.h"
#include "membership/master.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::kEpoch;
using cast::member;
using cast::sent;
using cast::tell;

TEST(Lateness, who_has_not_issued_an_expired_operation_is_evicted_at_its_next_heartbeat) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 4}}));
  EXPECT_TRUE(tell(s, 1, Heartbeat{OpKey{1, 5}}).empty());
  EXPECT_TRUE(tell(s, 2, Heartbeat{OpKey{1, 5}}).empty());
  const Actions out = tell(s, 3, Heartbeat{OpKey{1, 4}});
  ASSERT_EQ(sent<Evicted>(out).size(), 1U);
  EXPECT_EQ(sent<Evicted>(out)[0].first, PeerId{3});
  EXPECT_EQ(s.proposal->members.size(), 2U);
}

TEST(Lateness, who_stands_at_the_boundary_already_is_not_late) {
  State s = in_office({member(1), member(2), member(3)});
  static_cast<void>(tell(s, 1, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 2, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, OpKey{1, 0}}));
  EXPECT_TRUE(tell(s, 2, Heartbeat{OpKey{1, 0}}).empty());
  EXPECT_EQ(sent<Evicted>(tell(s, 3, Heartbeat{OpKey{1, 0}})).size(), 1U);
}

TEST(Lateness, where_programs_differ_about_an_operation_and_a_boundary_the_fewer_go) {
  const OpKey op{1, 2};
  const auto world = [&](const std::vector<std::uint64_t>& callers,
                         const std::vector<std::uint64_t>& standing) {
    State s = in_office({member(1), member(2), member(3)});
    for (const std::uint64_t p : standing) static_cast<void>(tell(s, p, Heartbeat{op}));
    for (const std::uint64_t p : standing) {
      EXPECT_TRUE(sent<Evicted>(tell(s, p, Vote{1, VoteKind::refresh, {}})).empty());
    }
    for (const std::uint64_t p : callers) {
      EXPECT_TRUE(sent<Evicted>(tell(s, p, Heartbeat{OpKey{1, 3}})).empty());
    }
    static_cast<void>(tell(s, callers.front(), Expired{kEpoch, op}));
    return s;
  };
  State s = world({1, 2}, {3});
  EXPECT_TRUE(tell(s, 1, Heartbeat{OpKey{1, 3}}).empty());
  Actions out = tell(s, 3, Heartbeat{op});
  ASSERT_EQ(sent<Evicted>(out).size(), 1U);
  EXPECT_EQ(sent<Evicted>(out)[0].first, PeerId{3});
  EXPECT_NE(sent<Evicted>(out)[0].second.text.find("operation 1.2"), std::string::npos);

  s = world({1}, {2, 3});
  EXPECT_TRUE(tell(s, 2, Heartbeat{op}).empty());
  EXPECT_TRUE(tell(s, 3, Heartbeat{op}).empty());
  out = tell(s, 1, Heartbeat{OpKey{1, 3}});
  ASSERT_EQ(sent<Evicted>(out).size(), 1U);
  EXPECT_EQ(sent<Evicted>(out)[0].first, PeerId{1});

  s = in_office({member(1), member(2)});  // as many: those at the boundary
  static_cast<void>(tell(s, 2, Heartbeat{op}));
  static_cast<void>(tell(s, 2, Vote{1, VoteKind::refresh, {}}));
  static_cast<void>(tell(s, 1, Expired{kEpoch, op}));
  EXPECT_TRUE(tell(s, 1, Heartbeat{OpKey{1, 3}}).empty());
  EXPECT_EQ(sent<Evicted>(tell(s, 2, Heartbeat{op})).size(), 1U);
}

}  // namespace
}  // namespace pccl::master
