// Fixed groups of members of an elastic run: they need no store and no master, and a member that
// was lost, or is lost while the group is made, ends the making at once.
#include "elastic_run.h"

namespace pccl::testing {
namespace {

const GroupId kMade{1ULL << 31 | 5};

std::vector<PeerId> numbering(const Founded& run) {
  return *run.peers[0].engine->view(run.group).numbering;
}

std::int32_t rank_of(const Founded& run, std::size_t peer) {
  return run.peers[peer].engine->view(run.group).rank;
}

std::shared_ptr<Ticket> make(const Founded& run, std::size_t peer) {
  return run.peers[peer].engine->configure_of_run(kMade, "made", numbering(run), rank_of(run, peer),
                                                  kTestMs);
}

TEST(OfRun, a_group_of_the_members_needs_no_master) {
  Founded run(3);
  run.master.stop();
  std::vector<std::vector<float>> values(3, std::vector<float>(1000, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t i = 0; i < 3; ++i) tickets.push_back(make(run, i));
  for (const auto& connected : tickets) expect_success(connected);
  tickets.clear();
  for (std::size_t i = 0; i < 3; ++i) {
    tickets.push_back(run.peers[i].engine->post(kMade, all_reduce(values[i])));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (const auto& v : values) EXPECT_EQ(v, std::vector<float>(1000, 3.0F));
  const std::vector<Handle> members = run.peers[0].engine->members_of(kMade).value();
  ASSERT_EQ(members.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(members[i].peer, numbering(run)[i]);
}

TEST(OfRun, the_members_choose_by_the_same_lines_as_ranks_of_a_torchrun_group) {
  EngineOptions options;
  options.links.shared_memory = true;
  const Founded run(3, options);
  std::vector<std::shared_ptr<Ticket>> made;
  for (std::size_t i = 0; i < 3; ++i) made.push_back(make(run, i));
  for (const auto& connected : made) expect_success(connected);
  const Lines lines = run.peers[0].engine->view(kMade).lines;
  EXPECT_TRUE(lines.local) << "they share memory";
  for (const Peer& peer : run.peers) EXPECT_EQ(peer.engine->view(kMade).lines, lines);
}

TEST(OfRun, a_member_that_has_not_come_is_waited_for) {
  Founded run(3);
  const auto first = make(run, 0);
  const auto second = make(run, 1);
  EXPECT_FALSE(first->wait(300));
  expect_success(make(run, 2));
  expect_success(first);
  expect_success(second);
}

TEST(OfRun, a_member_that_is_lost_while_the_others_wait_for_it_ends_the_making) {
  Founded run(3);
  const auto first = make(run, 0);
  const auto second = make(run, 1);
  EXPECT_FALSE(first->wait(300));
  run.peers[2].engine->vanish();
  for (const auto& ticket : {first, second}) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::peer_lost) << error.text;
  }
}

TEST(OfRun, a_member_that_was_lost_before_ends_the_making_whether_the_run_knows_it_or_not) {
  for (const bool known : {false, true}) {
    Founded run(3);
    run.peers[2].engine->vanish();
    if (known) {
      EXPECT_TRUE(wait_until([&] {
        const auto gone_on = [&](std::size_t i) {
          return run.peers[i].engine->view(run.group).ring->size() == 2;
        };
        return gone_on(0) && gone_on(1);
      }));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const Error error = outcome(make(run, i));
      EXPECT_EQ(error.code, ErrorCode::peer_lost) << error.text;
      EXPECT_NE(error.text.find("rank " + std::to_string(3 - rank_of(run, 0) - rank_of(run, 1))),
                std::string::npos)
          << error.text;
    }
  }
}

TEST(OfRun, a_member_that_comes_after_a_loss_tells_the_others_of_it) {
  Founded run(3);
  const auto early = make(run, 0);
  std::vector<PeerId> with_a_lost_one = numbering(run);  // as if the run had lost it here already
  with_a_lost_one.at(static_cast<std::size_t>(rank_of(run, 2))) = PeerId{77};
  const auto late = run.peers[1].engine->configure_of_run(kMade, "made", with_a_lost_one,
                                                          rank_of(run, 1), kTestMs);
  for (const auto& ticket : {early, late}) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::peer_lost) << error.text;
    const std::string lost = "rank " + std::to_string(rank_of(run, 2));
    EXPECT_NE(error.text.find(lost), std::string::npos) << error.text;
  }
}

TEST(OfRun, a_member_that_closes_the_group_while_it_is_made_is_lost_to_the_others) {
  Founded run(3);
  std::vector<std::shared_ptr<Ticket>> made{make(run, 0), make(run, 1)};
  run.peers[1].engine->close(kMade);  // as after Ctrl-C
  EXPECT_EQ(outcome(made[1]).code, ErrorCode::closed);
  made.push_back(make(run, 2));
  for (const std::size_t i : {0U, 2U}) {
    const Error error = outcome(made[i]);
    EXPECT_EQ(error.code, ErrorCode::peer_lost) << error.text;
    const std::string gone = "rank " + std::to_string(rank_of(run, 1));
    EXPECT_NE(error.text.find(gone), std::string::npos) << error.text;
  }
}

TEST(OfRun, the_number_of_a_group_that_could_not_be_made_is_used_up) {
  Founded run(3);
  const std::vector<PeerId> all = numbering(run);
  const std::vector<PeerId> own{all[static_cast<std::size_t>(rank_of(run, 0))]};
  run.peers[2].engine->vanish();
  EXPECT_TRUE(wait_until([&] { return run.peers[0].engine->view(run.group).ring->size() == 2; }));
  EXPECT_EQ(outcome(make(run, 0)).code, ErrorCode::peer_lost);
  const Error error =
      outcome(run.peers[0].engine->configure_of_run(kMade, "made", own, 0, kTestMs));
  EXPECT_EQ(error.code, ErrorCode::invalid) << "what others sent for the first one may not meet it";
}

TEST(OfRun, a_newcomer_at_the_door_is_told_to_call_refresh) {
  Founded run(2);
  const Peer newcomer = start_peer(run.master.address);
  expect_success(newcomer.joined);
  const Error error =
      outcome(newcomer.engine->configure_of_run(kMade, "made", numbering(run), 0, kTestMs));
  EXPECT_EQ(error.code, ErrorCode::not_admitted) << error.text;
}

}  // namespace
}  // namespace pccl::testing
