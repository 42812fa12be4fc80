#include "engine/link_keeper.h"

#include <gtest/gtest.h>

#include <set>

#include "base/limits.h"
#include "base/random.h"

namespace pccl {
namespace {

constexpr std::uint64_t kWaitMs = 5000;
const EpochId kFirstEpoch = EpochId::make(1, 1);
const EpochId kSecondEpoch = EpochId::make(1, 2);
const PeerId kPeerA{2};
const PeerId kPeerB{3};

peer::Connect proposal(EpochId epoch, const std::vector<PeerId>& peers,
                       std::map<PeerId, PeerId> via = {}) {
  peer::Connect connect{epoch, {}, std::move(via)};
  for (const PeerId peer : peers) {
    Member member;
    member.handle.peer = peer;
    connect.members.push_back(member);
  }
  return connect;
}

LinkKeeper::Now running(EpochId epoch, std::uint64_t ms = 0) { return {ms, epoch, false, true}; }

/// What the events are, in words.
std::vector<std::string> words(const LinkKeeper::Moves& moves) {
  std::vector<std::string> said;
  for (const peer::Event& event : moves.events) {
    if (const auto* up = std::get_if<peer::LinksUp>(&event)) {
      said.push_back("up " + to_string(up->epoch));
    } else if (const auto* back = std::get_if<peer::LinkBack>(&event)) {
      said.push_back("back " + std::to_string(back->peer.value));
    } else if (const auto* closed = std::get_if<peer::LinkClosed>(&event)) {
      said.push_back((closed->refused ? "refused " : "closed ") +
                     std::to_string(closed->peer.value));
    } else if (const auto* failed = std::get_if<peer::LinkFailed>(&event)) {
      said.push_back("failed " + to_string(failed->epoch) + " " +
                     std::to_string(failed->peer.value));
    } else if (const auto* tried = std::get_if<peer::LinksTried>(&event)) {
      for (const TriedLink& link : tried->links) {
        said.push_back((link.reason.empty() ? "has " : "has not ") +
                       std::to_string(link.peer.value));
      }
    }
  }
  return said;
}

using Words = std::vector<std::string>;

TEST(LinkKeeper, a_proposal_is_connected_when_its_last_link_is_up) {
  LinkKeeper keeper;
  const auto moves =
      keeper.propose(proposal(kFirstEpoch, {kPeerA, kPeerB}, {{kPeerB, kPeerA}}), 0, kWaitMs);
  ASSERT_EQ(moves.dials.size(), 2U);
  EXPECT_FALSE(moves.dials[0].via);
  EXPECT_EQ(moves.dials[1].via, kPeerA);
  EXPECT_EQ(moves.dials[1].deadline_ms, kWaitMs);
  EXPECT_TRUE(words(keeper.up(kPeerA)).empty());
  EXPECT_EQ(words(keeper.up(kPeerB)), Words{"up " + to_string(kFirstEpoch)});
  EXPECT_TRUE(words(keeper.up(kPeerB)).empty());
}

TEST(LinkKeeper, a_proposal_of_nobody_else_is_connected_at_once) {
  LinkKeeper keeper;
  EXPECT_EQ(words(keeper.propose(proposal(kFirstEpoch, {}), 0, kWaitMs)),
            Words{"up " + to_string(kFirstEpoch)});
}

Handle handle_of(PeerId peer) {
  Handle handle;
  handle.peer = peer;
  return handle;
}

LinkKeeper::Now outside(EpochId epoch) { return {0, epoch, false, false}; }

TEST(LinkKeeper, a_link_that_is_tried_is_told_of_once_and_needed_until_it_is_dropped) {
  LinkKeeper keeper;
  const auto moves = keeper.try_links({{handle_of(kPeerA), handle_of(kPeerB)}, {}}, kRedialMs);
  ASSERT_EQ(moves.dials.size(), 2U);
  EXPECT_FALSE(moves.dials[0].via);
  EXPECT_EQ(moves.dials[0].deadline_ms, kRedialMs);
  EXPECT_TRUE(words(keeper.up(kPeerA)).empty()) << "one message tells of both";
  EXPECT_TRUE(words(keeper.up(kPeerA)).empty());
  EXPECT_EQ(words(keeper.down(kPeerB, "no answer", Down::unopened, outside(kFirstEpoch))),
            (Words{"has 2", "has not 3"}));
  EXPECT_TRUE(keeper.tries(kPeerA));
  EXPECT_FALSE(keeper.tries(kPeerB)) << "it is tried again when the master says so";
  EXPECT_EQ(words(keeper.try_links({{handle_of(kPeerA)}, {}}, kRedialMs)), Words{});
  EXPECT_EQ(words(keeper.up(kPeerA)), Words{"has 2"}) << "asked again, it answers again";
  (void)keeper.try_links({{}, {kPeerA}}, kRedialMs);
  EXPECT_FALSE(keeper.tries(kPeerA));
  EXPECT_TRUE(words(keeper.down(kPeerA, "reset", Down::lost, outside(kFirstEpoch))).empty());
}

TEST(LinkKeeper, a_tried_link_waits_for_another_one_no_longer_than_a_tick) {
  LinkKeeper keeper;
  (void)keeper.try_links({{handle_of(kPeerA), handle_of(kPeerB)}, {}}, kRedialMs);
  EXPECT_TRUE(words(keeper.tell_tried()).empty());
  EXPECT_TRUE(words(keeper.up(kPeerA)).empty());
  EXPECT_EQ(words(keeper.tell_tried()), Words{"has 2"});
  EXPECT_TRUE(words(keeper.tell_tried()).empty());
  EXPECT_EQ(words(keeper.up(kPeerB)), Words{"has 3"});
  (void)keeper.try_links({{handle_of(kPeerA), handle_of(kPeerB)}, {}}, kRedialMs);
  (void)keeper.up(kPeerA);
  (void)keeper.try_none();
  EXPECT_TRUE(words(keeper.tell_tried()).empty()) << "a new master asks anew";
  (void)keeper.try_links({{handle_of(kPeerA), handle_of(kPeerB)}, {}}, kRedialMs);
  EXPECT_TRUE(
      words(keeper.down(kPeerA, "no answer", Down::unopened, outside(kFirstEpoch))).empty());
  (void)keeper.try_links({{}, {kPeerA}}, kRedialMs);
  EXPECT_EQ(words(keeper.up(kPeerB)), Words{"has 3"}) << "of a link that is wanted no more";
}

TEST(LinkKeeper, a_tried_link_that_is_lost_is_dialled_again_and_stops_no_epoch) {
  LinkKeeper keeper;
  (void)keeper.try_links({{handle_of(kPeerA)}, {}}, kRedialMs);
  (void)keeper.up(kPeerA);
  const auto moves = keeper.down(kPeerA, "reset", Down::lost, outside(kFirstEpoch));
  EXPECT_EQ(moves.dials.size(), 1U);
  EXPECT_TRUE(words(moves).empty());
  EXPECT_FALSE(moves.again);
  EXPECT_EQ(words(keeper.down(kPeerA, "refused", Down::refused, outside(kFirstEpoch))),
            Words{"has not 2"});
}

TEST(LinkKeeper, a_tried_link_becomes_one_of_the_proposal) {
  LinkKeeper keeper;
  (void)keeper.try_links({{handle_of(kPeerA)}, {}}, kRedialMs);
  (void)keeper.up(kPeerA);
  (void)keeper.propose(proposal(kSecondEpoch, {kPeerA}), 0, kWaitMs);
  EXPECT_EQ(words(keeper.up(kPeerA)), Words{"up " + to_string(kSecondEpoch)});
  (void)keeper.propose(proposal(EpochId::make(1, 3), {kPeerB}), 0, kWaitMs);
  EXPECT_TRUE(keeper.tries(kPeerA)) << "left out of the proposal, it is kept for a later one";
  keeper.stop_trying(kPeerA);
  EXPECT_FALSE(keeper.tries(kPeerA));
  (void)keeper.try_links({{handle_of(kPeerA), handle_of(kPeerB)}, {}}, kRedialMs);
  EXPECT_EQ(keeper.try_none(), (std::vector<PeerId>{kPeerA, kPeerB}));
  EXPECT_FALSE(keeper.tries(kPeerA));
}

TEST(LinkKeeper, a_link_of_the_epoch_before_that_ends_is_dialled_for_the_rest_of_the_time) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kSecondEpoch, {kPeerA}), 1000, kWaitMs);
  auto moves = keeper.down(kPeerA, "reset", Down::lost, running(kFirstEpoch, 3000));
  ASSERT_EQ(moves.dials.size(), 1U);
  EXPECT_EQ(moves.dials[0].deadline_ms, 3000U);
  EXPECT_TRUE(moves.events.empty());
  moves = keeper.down(kPeerA, "reset", Down::lost, running(kFirstEpoch, 1000 + kWaitMs));
  EXPECT_TRUE(moves.dials.empty());
  EXPECT_EQ(words(moves), Words{"failed " + to_string(kSecondEpoch) + " 2"});
}

TEST(LinkKeeper, a_link_that_nobody_answers_fails_the_proposal) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA, kPeerB}), 0, kWaitMs);
  EXPECT_EQ(words(keeper.down(kPeerA, "no answer", Down::unopened, running(EpochId{}))),
            Words{"failed " + to_string(kFirstEpoch) + " 2"});
  EXPECT_EQ(words(keeper.down(kPeerB, "refused", Down::refused, running(EpochId{}))),
            (Words{"refused 3", "failed " + to_string(kFirstEpoch) + " 3"}));
}

TEST(LinkKeeper, a_link_of_a_member_is_evidence_once_and_dialled_again) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA}), 0, kWaitMs);
  (void)keeper.up(kPeerA);
  const auto moves = keeper.down(kPeerA, "reset", Down::lost, running(kFirstEpoch));
  EXPECT_TRUE(moves.again);
  ASSERT_EQ(moves.dials.size(), 1U);
  EXPECT_EQ(moves.dials[0].deadline_ms, kRedialMs);
  EXPECT_EQ(words(moves), Words{"closed 2"});
  EXPECT_TRUE(keeper.dialling(kPeerA));
  EXPECT_EQ(words(keeper.up(kPeerA)), Words{"back 2"});
}

TEST(LinkKeeper, a_link_over_a_relay_that_ends_is_no_evidence) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA, kPeerB}, {{kPeerB, kPeerA}}), 0, kWaitMs);
  (void)keeper.up(kPeerA);
  (void)keeper.up(kPeerB);
  const auto moves = keeper.down(kPeerB, "reset", Down::lost, running(kFirstEpoch));
  EXPECT_TRUE(moves.events.empty());
  ASSERT_EQ(moves.dials.size(), 1U);
  EXPECT_EQ(moves.dials[0].via, kPeerA);
}

TEST(LinkKeeper, a_link_over_a_relay_that_comes_back_for_the_next_proposal_is_part_of_that) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA, kPeerB}, {{kPeerB, kPeerA}}), 0, kWaitMs);
  (void)keeper.up(kPeerA);
  (void)keeper.up(kPeerB);
  (void)keeper.down(kPeerB, "reset", Down::lost, running(kFirstEpoch));
  (void)keeper.propose(proposal(kSecondEpoch, {kPeerB}), 0, kWaitMs);
  EXPECT_EQ(words(keeper.up(kPeerB)), Words{"up " + to_string(kSecondEpoch)});
}

TEST(LinkKeeper, a_relay_that_changes_what_it_passes_on_is_given_up_at_once) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA, kPeerB}, {{kPeerB, kPeerA}}), 0, kWaitMs);
  (void)keeper.up(kPeerA);
  (void)keeper.up(kPeerB);
  const auto moves = keeper.down(kPeerB, "changed", Down::spoiled, running(kFirstEpoch));
  EXPECT_TRUE(moves.dials.empty());
  EXPECT_FALSE(moves.again);
  EXPECT_EQ(words(moves), Words{"failed " + to_string(kFirstEpoch) + " 3"});
  EXPECT_FALSE(keeper.dialling(kPeerB));
}

LinkKeeper connected(std::map<PeerId, PeerId> via = {}) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA, kPeerB}, std::move(via)), 0, kWaitMs);
  (void)keeper.up(kPeerA);
  (void)keeper.up(kPeerB);
  return keeper;
}

/// How many times the link to kPeerB ends, `apart_ms` after the time before, until it is given up;
/// 0: it is not. An operation succeeds after each third end, if any does.
unsigned ends_borne(LinkKeeper keeper, std::uint64_t apart_ms, bool succeeds = false) {
  for (unsigned ends = 1; ends <= 100; ++ends) {
    const auto moves =
        keeper.down(kPeerB, "cut", Down::lost, running(kFirstEpoch, ends * apart_ms));
    if (!moves.again) {
      EXPECT_EQ(words(moves), Words{"failed " + to_string(kFirstEpoch) + " 3"});
      return ends;
    }
    EXPECT_EQ(moves.dials.size(), 1U);
    (void)keeper.up(kPeerB);
    if (succeeds && ends % 3 == 0) keeper.succeeded();
  }
  return 0;
}

TEST(LinkKeeper, a_link_that_ends_again_and_again_in_one_operation_is_given_up) {
  for (const std::map<PeerId, PeerId>& via : {std::map<PeerId, PeerId>{{kPeerB, kPeerA}}, {}}) {
    EXPECT_EQ(ends_borne(connected(via), 1000), 8U);
    EXPECT_EQ(ends_borne(connected(via), 61'000), 0U) << "it has held for a minute each time";
    EXPECT_EQ(ends_borne(connected(via), 1000, true), 0U) << "operations succeed in between";
  }
}

TEST(LinkKeeper, a_link_that_is_not_back_in_time_fails_the_epoch_that_runs) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA}), 0, kWaitMs);
  (void)keeper.up(kPeerA);
  (void)keeper.down(kPeerA, "reset", Down::lost, running(kFirstEpoch));
  EXPECT_EQ(words(keeper.down(kPeerA, "no answer", Down::unopened, running(kFirstEpoch))),
            Words{"failed " + to_string(kFirstEpoch) + " 2"});
  EXPECT_FALSE(keeper.dialling(kPeerA));
}

TEST(LinkKeeper, a_link_of_a_stranger_says_nothing) {
  LinkKeeper keeper;
  (void)keeper.propose(proposal(kFirstEpoch, {kPeerA}), 0, kWaitMs);
  const auto moves =
      keeper.down(kPeerB, "reset", Down::lost, {0, kFirstEpoch, false, /*member=*/false});
  EXPECT_TRUE(moves.dials.empty());
  EXPECT_TRUE(moves.events.empty());
}

/// Links come and go by chance under proposals that replace each other. A link that was dialled
/// comes up or goes down, as transport.h promises; in the end the last proposal is connected, or it
/// has been said which links failed; and what was dialled again is back or failed.
TEST(LinkKeeper, walks_end_with_every_dial_answered) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    LinkKeeper keeper;
    std::set<PeerId> dialled;  // no outcome yet
    std::set<PeerId> up;
    std::set<PeerId> failed;  // since the last proposal
    std::set<PeerId> members;
    bool connected = false;
    EpochId epoch;
    std::uint64_t now = 0;
    const auto carry_out = [&](const LinkKeeper::Moves& moves) {
      for (const auto& dial : moves.dials) {
        EXPECT_GT(dial.deadline_ms, 0U) << seed;
        EXPECT_TRUE(keeper.proposed().contains(dial.peer.peer)) << seed;
        if (!up.contains(dial.peer.peer)) dialled.insert(dial.peer.peer);
      }
      for (const peer::Event& event : moves.events) {
        if (const auto* all = std::get_if<peer::LinksUp>(&event)) {
          EXPECT_EQ(all->epoch, epoch) << seed;
          EXPECT_FALSE(connected) << seed;
          connected = true;
        } else if (const auto* one = std::get_if<peer::LinkFailed>(&event)) {
          failed.insert(one->peer);
        } else if (const auto* back = std::get_if<peer::LinkBack>(&event)) {
          EXPECT_TRUE(up.contains(back->peer)) << seed;
        }
      }
    };
    const auto outcome = [&](PeerId peer, bool comes) {
      dialled.erase(peer);
      if (comes) {
        up.insert(peer);
        carry_out(keeper.up(peer));
      } else {
        const Down how = random.below(2) == 0 ? Down::unopened : Down::refused;
        carry_out(keeper.down(peer, "chance", how, {now, epoch, false, members.contains(peer)}));
      }
    };
    for (int move = 0; move < 60; ++move) {
      now += random.below(2000);
      const PeerId peer{2 + random.below(4)};
      switch (random.below(4)) {
        case 0: {
          std::vector<PeerId> peers;
          for (std::uint64_t id = 2; id < 6; ++id) {
            if (random.below(3) > 0) peers.emplace_back(id);
          }
          epoch = EpochId::make(1, static_cast<std::uint32_t>(move + 1));
          connected = false;
          failed.clear();
          members = {peers.begin(), peers.end()};
          const auto moves = keeper.propose(proposal(epoch, peers), now, kWaitMs);
          // Links says of a link that is up already that it is up.
          carry_out(moves);
          for (const PeerId here : peers) {
            if (up.contains(here)) carry_out(keeper.up(here));
          }
          break;
        }
        case 1:
        case 2:
          if (dialled.contains(peer)) outcome(peer, random.below(4) > 0);
          break;
        default:
          if (up.erase(peer) > 0) {
            carry_out(keeper.down(peer, "chance", Down::lost,
                                  {now, epoch, false, members.contains(peer)}));
          }
      }
    }
    while (!dialled.empty()) outcome(*dialled.begin(), true);
    for (const PeerId peer : members) {  // a failed link counts as dialled until the next proposal
      if (!failed.contains(peer)) {
        EXPECT_FALSE(keeper.dialling(peer)) << seed;
        EXPECT_TRUE(up.contains(peer)) << seed;
      }
    }
    EXPECT_TRUE(members.empty() || connected || !failed.empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace pccl
