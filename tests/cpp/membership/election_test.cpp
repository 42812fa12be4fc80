#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::report;
using cast::root;

State three(std::uint64_t passed, const StateRoot& a, const StateRoot& b, const StateRoot& c) {
  State s = in_office({member(1), member(2), member(3)}, passed);
  report(s, 1).root = a;
  report(s, 2).root = b;
  report(s, 3).root = c;
  return s;
}

TEST(Election, at_the_first_boundary_the_highest_revision_wins) {
  const State s = three(0, root(5, 'a'), root(5, 'a'), root(9, 'c'));
  const SyncPlan plan = elect(s, own(s)->members).at(0);
  EXPECT_EQ(plan.root, root(9, 'c'));
  EXPECT_EQ(plan.sources, std::vector<PeerId>{PeerId{3}});
  EXPECT_NE(plan.why.find("revision 9 of rank 2"), std::string::npos);
}

TEST(Election, later_the_most_popular_state_wins) {
  const State s = three(4, root(9, 'c'), root(5, 'a'), root(5, 'a'));
  const SyncPlan plan = elect(s, own(s)->members).at(0);
  EXPECT_EQ(plan.root, root(5, 'a'));
  EXPECT_EQ(plan.sources, (std::vector<PeerId>{PeerId{2}, PeerId{3}}));
}

TEST(Election, among_equals_the_higher_revision_and_then_the_lowest_rank) {
  State s = three(4, root(5, 'a'), root(6, 'b'), StateRoot{});
  EXPECT_EQ(elect(s, own(s)->members).at(0).root, root(6, 'b'));
  s = three(4, root(5, 'b'), root(5, 'a'), StateRoot{});
  EXPECT_EQ(elect(s, own(s)->members).at(0).root, root(5, 'b'));
}

TEST(Election, a_boundary_without_a_state_has_no_plan) {
  const State s = three(4, StateRoot{}, StateRoot{}, StateRoot{});
  EXPECT_TRUE(elect(s, own(s)->members).empty());
}

TEST(Election, each_peer_group_elects_for_itself) {
  State s = in_office(
      {member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2), member(4, "b", 1, 2)});
  for (std::uint64_t p = 1; p <= 4; ++p) report(s, p).root = root(3, p % 2 == 1 ? 'x' : 'y');
  const auto plans = elect(s, own(s)->members);
  EXPECT_EQ(plans.at(0).root, root(3, 'x'));
  EXPECT_EQ(plans.at(1).sources, (std::vector<PeerId>{PeerId{2}, PeerId{4}}));
}

}  // namespace
}  // namespace pccl::master
