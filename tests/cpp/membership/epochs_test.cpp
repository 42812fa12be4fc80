#include <gtest/gtest.h>

#include "cast.h"
#include "story.h"

namespace pccl::master {
namespace {

using cast::in_office;
using cast::member;
using cast::report;
using cast::sent;

TEST(Epochs, nothing_is_proposed_while_a_member_may_come_back) {
  State s = in_office({member(1), member(2)});
  const Actions away = step(s, PeerDisconnected{PeerId{2}});
  EXPECT_TRUE(sent<Propose>(away).empty());
  EXPECT_EQ(cast::all<StartTimer>(away).size(), 1U);
  EXPECT_TRUE(s.running) << "what is complete is still committed";
  const Actions gone = step(s, PeerGone{PeerId{2}, "not back"});
  ASSERT_EQ(sent<Propose>(gone).size(), 1U);
  EXPECT_EQ(ids_of(sent<Propose>(gone)[0].second.epoch.members), std::vector<PeerId>{PeerId{1}});
}

TEST(Epochs, a_refused_write_deposes_the_master) {
  State s = in_office({member(1)});
  static_cast<void>(step(s, PeerConnected{Hello{"", member(1), report(s, 1), false, {}}}));
  Report ready = report(s, 1);
  const Actions written = step(s, PeerMessage{PeerId{1}, Ready{s.proposal->id, ready}});
  const Register to = cast::all<WriteRegister>(written)[0].to;
  EXPECT_EQ(cast::all<Deposed>(step(s, RegisterWritten{to, false})).size(), 1U);
  EXPECT_FALSE(s.holds);
  EXPECT_FALSE(s.held.has_value());
}

TEST(Epochs, survivors_keep_their_order_and_newcomers_come_last) {
  State s = in_office({member(5), member(2), member(7)});
  cast::newcomer(s, member(3));
  cast::newcomer(s, member(1));
  for (const std::uint64_t p : {5, 2, 7}) {
    report(s, p).vote = VoteKind::refresh;
    report(s, p).root = cast::root(1, 'a');
  }
  Actions out;
  reconsider(s, out);
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_EQ(ids_of(s.proposal->members),
            (std::vector<PeerId>{PeerId{5}, PeerId{2}, PeerId{7}, PeerId{3}, PeerId{1}}));
}

TEST(Epochs, resume_admits_nobody_and_moves_no_state) {
  State s = in_office({member(1), member(2)});
  cast::newcomer(s, member(3));
  report(s, 1).vote = VoteKind::resume;
  report(s, 2).vote = VoteKind::refresh;
  report(s, 2).root = cast::root(1, 'a');
  Actions out;
  reconsider(s, out);
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_EQ(s.proposal->members.size(), 2U);
  for (const auto& [p, propose] : sent<Propose>(out)) EXPECT_FALSE(propose.sync.has_value());
}

TEST(Epochs, one_member_that_resumes_does_not_keep_the_states_of_two_others_apart) {
  State s = in_office({member(1), member(2), member(3)});
  report(s, 1).vote = VoteKind::resume;
  for (const std::uint64_t p : {2, 3}) {
    report(s, p).vote = VoteKind::refresh;
    report(s, p).root = cast::root(p, static_cast<char>('a' + p));
  }
  Actions out;
  reconsider(s, out);
  for (const auto& [p, propose] : sent<Propose>(out)) EXPECT_TRUE(propose.sync.has_value());
}

TEST(Epochs, a_proposal_that_is_right_is_not_repeated) {
  State s = in_office({member(1), member(2)});
  static_cast<void>(step(s, PeerGone{PeerId{2}, "silent"}));
  const EpochId id = s.proposal->id;
  Actions out;
  reconsider(s, out);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(s.proposal->id, id);
}

TEST(Epochs, a_proposal_that_this_master_never_made_shows_that_its_register_was_set_back) {
  State s = in_office({member(1), member(2)});
  s.running = false;
  ++s.held->incarnation;  // this master has not started the register's epoch
  s.counter = 0;
  Report known = report(s, 1);
  static_cast<void>(step(s, PeerConnected{Hello{"", member(1), known, false, {}}}));
  EXPECT_TRUE(s.unknown.empty());
  known.accepted = EpochId::make(2, s.counter + 7);
  static_cast<void>(step(s, PeerConnected{Hello{"", member(1), known, false, {}}}));
  EXPECT_TRUE(s.unknown.contains(PeerId{1}));
  EXPECT_FALSE(s.proposal.has_value()) << "nothing goes on by itself";
}

TEST(Epochs, the_last_vote_opens_the_boundary_in_whatever_order_they_come) {
  for (const std::vector<std::uint64_t>& order :
       {std::vector<std::uint64_t>{1, 2, 3}, {3, 2, 1}, {2, 3, 1}, {2, 1, 3}}) {
    State s = in_office({member(1), member(2), member(3)});
    for (const std::uint64_t p : order) {
      EXPECT_FALSE(s.proposal.has_value());
      const Vote vote{1, VoteKind::refresh, cast::root(1, 'a')};
      static_cast<void>(step(s, PeerMessage{PeerId{p}, vote}));
      static_cast<void>(step(s, PeerMessage{PeerId{p}, vote}));  // repeated
    }
    EXPECT_TRUE(s.proposal.has_value());
  }
}

}  // namespace
}  // namespace pccl::master
