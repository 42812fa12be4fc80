#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;

Relay relay(std::uint64_t a, std::uint64_t b, std::uint64_t via) {
  return {PeerId{a}, PeerId{b}, PeerId{via}};
}

TEST(Relays, the_work_is_shared_and_the_first_in_rank_order_comes_first) {
  State s = in_office({member(1), member(2), member(3), member(4), member(5)});
  s.cannot = {{PeerId{2}, PeerId{1}}, {PeerId{4}, PeerId{3}}};
  EXPECT_EQ(relays(s, own(s)->members), (std::vector<Relay>{relay(1, 2, 3), relay(3, 4, 1)}));
  s.cannot.insert({PeerId{5}, PeerId{1}});
  // In the order of the younger ones' ids: 2, 4, 5. 3 and 1 pass on for one pair each by then.
  EXPECT_EQ(relays(s, own(s)->members),
            (std::vector<Relay>{relay(1, 2, 3), relay(3, 4, 1), relay(1, 5, 4)}));
}

TEST(Relays, only_members_of_the_same_peer_group_that_reach_both_pass_data_on) {
  State s = in_office({member(1, "a", 0, 2), member(2, "a", 1, 2), member(3, "b", 0, 2),
                       member(4, "b", 1, 2), member(5, "c", 0, 2), member(6, "c", 1, 2)});
  s.cannot = {{PeerId{3}, PeerId{1}}};
  EXPECT_EQ(relays(s, own(s)->members), std::vector<Relay>{relay(1, 3, 5)});
  s.cannot.insert({PeerId{5}, PeerId{3}});
  EXPECT_TRUE(relays(s, own(s)->members).empty());
}

TEST(Relays, two_are_tried_and_no_more) {
  State s = in_office({member(1), member(2), member(3), member(4), member(5)});
  s.cannot = {{PeerId{2}, PeerId{1}}};
  of_no_use(s, PeerId{1}, PeerId{2}, PeerId{3});
  EXPECT_EQ(relays(s, own(s)->members), std::vector<Relay>{relay(1, 2, 4)});
  of_no_use(s, PeerId{2}, PeerId{1}, PeerId{4});
  EXPECT_TRUE(relays(s, own(s)->members).empty());
  EXPECT_FALSE(has_relay(s, PeerId{1}, PeerId{2}, ids_of(own(s)->members)));
  EXPECT_TRUE(reaches_again(s, PeerId{2}));
  EXPECT_FALSE(reaches_again(s, PeerId{2}));
  s.cannot = {{PeerId{2}, PeerId{1}}};
  EXPECT_EQ(relays(s, own(s)->members), std::vector<Relay>{relay(1, 2, 3)}) << "all is forgotten";
}

TEST(Relays, a_choice_stays_while_others_join) {
  State s = in_office({member(1), member(2), member(3)});
  s.cannot = {{PeerId{2}, PeerId{1}}};
  auto members = own(s)->members;
  const auto before = relays(s, members);
  members.push_back(member(8));
  EXPECT_EQ(relays(s, members), before);
}

TEST(Relays, nobody_passes_on_for_those_who_are_not_members) {
  State s = in_office({member(1), member(2), member(3)});
  s.cannot = {{PeerId{7}, PeerId{1}}};
  EXPECT_TRUE(relays(s, own(s)->members).empty());
}

}  // namespace
}  // namespace pccl::master
