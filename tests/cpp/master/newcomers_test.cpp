// Newcomers that die at each stage of their admission: the members go on at once, none of them is
// evicted, and another newcomer is admitted afterwards. And replicas that lack ranks.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "membership/master_rules.h"
#include "server_fixture.h"

namespace pccl::master {
namespace {

class Newcomers : public Server {
 protected:
  /// The two members meet at a boundary, and come out of it as two of so many.
  void boundary(std::size_t members) {
    std::vector<std::uint64_t> before;
    for (const std::size_t i : {0U, 1U}) {
      before.push_back(peers_[i]->steps_entered);
      peers_[i]->refresh();
    }
    EXPECT_TRUE(until([&] {
      return peers_[0]->steps_entered > before[0] && peers_[1]->steps_entered > before[1] &&
             peers_[0]->runs(members) && peers_[1]->runs(members);
    })) << log_text();
  }
  void expect_commit_of_members() {
    const OpKey a = peers_[0]->issue();
    const OpKey b = peers_[1]->issue();
    EXPECT_TRUE(until([&] { return peers_[0]->has_committed(a) && peers_[1]->has_committed(b); }))
        << log_text();
  }
};

template <typename Message, typename Variant>
bool is(const Variant& message) {
  return std::holds_alternative<Message>(message);
}

TEST_F(Newcomers, who_dies_at_any_stage_of_its_admission_costs_no_member_its_place) {
  found(2);
  boundary(2);
  using Stage = std::pair<std::string, std::function<void(FakePeer&)>>;
  const std::vector<Stage> stages = {
      {"after its hello", [](auto& p) { p.dies_after = is<Hello, PeerToMaster>; }},
      {"at the door", [](auto& p) { p.dies_after = is<Knock, PeerToMaster>; }},
      {"while it connects", [](auto& p) { p.dies_at = is<Propose, MasterToPeer>; }},
      {"after ready", [](auto& p) { p.dies_after = is<Ready, PeerToMaster>; }},
      {"at start", [](auto& p) { p.dies_at = is<Start, MasterToPeer>; }},
  };
  std::uint64_t id = 10;
  for (const auto& [what, prepare] : stages) {
    SCOPED_TRACE(what);
    FakePeer& newcomer = peer(++id);
    prepare(newcomer);
    EXPECT_TRUE(until([&] { return !newcomer.reconnects || newcomer.last<Welcome>() != nullptr; }));
    newcomer.refresh();
    EXPECT_TRUE(until([&] { return !newcomer.reconnects || !door(run().state()).empty(); }))
        << log_text();
    expect_commit_of_members();  // the first commit of the step says whether its boundary votes
    boundary(2);
    EXPECT_FALSE(newcomer.reconnects) << "it has not come to this stage";
    EXPECT_TRUE(peers_[0]->failed.empty());
    EXPECT_EQ(peers_[0]->evicted + peers_[1]->evicted, "");
    peers_.pop_back();
  }
  FakePeer& last = peer(99);
  EXPECT_TRUE(until([&] { return last.last<Welcome>() != nullptr; }));
  last.refresh();
  EXPECT_TRUE(until([&] { return !door(run().state()).empty(); }));
  expect_commit_of_members();
  boundary(3);
  EXPECT_TRUE(until([&] { return all_run(3); })) << log_text();
  expect_commit();
}

TEST_F(Newcomers, a_replica_that_lacks_a_rank_is_told_for_whom_it_waits) {
  options_.say_waiting_ms = 50;
  options_.min_peers = 1;
  start();
  const auto rank = [&](std::uint64_t id, const std::string& replica, std::uint32_t number) {
    FakePeer& made = peer(id);
    made.state.self.place = {replica, 0, number, 2};
    return &made;
  };
  const FakePeer* first = rank(1, "west", 0);
  const std::string text = "replica west (attempt 0) has 2 ranks and waits for 1";
  EXPECT_TRUE(until([&] {
    return first->last<Hold>() != nullptr && first->last<Hold>()->text == text;
  })) << log_text();
  rank(2, "west", 1);
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  const FakePeer* other = rank(3, "east", 1);  // of a run that is founded: the same
  EXPECT_TRUE(until([&] { return other->last<Hold>() != nullptr; })) << log_text();
  EXPECT_EQ(other->last<Hold>()->text, "replica east (attempt 0) has 2 ranks and waits for 0");
  EXPECT_EQ(said(text), 1U) << log_text();
}

TEST_F(Newcomers, those_that_come_and_go_without_end_have_few_lines_of_the_log) {
  found(2);
  for (int i = 0; i < 300; ++i) {
    bool open = false;
    const auto dial =
        dial_channel(loop_, "127.0.0.1:" + std::to_string(port_), 1000, [&](auto dialled) {
          EXPECT_TRUE(dialled.ok()) << dialled.error().text;
          open = true;
        });
    ASSERT_TRUE(until([&] { return open; }));
  }
  for (std::uint64_t id = 10; id < 60; ++id) {  // under another id each time
    FakePeer& newcomer = peer(id);
    newcomer.dies_at = is<Welcome, MasterToPeer>;
    EXPECT_TRUE(until([&] { return !newcomer.reconnects && !newcomer.connected(); }));
    peers_.pop_back();
  }
  EXPECT_TRUE(until([&] { return run().state().peers.size() == 2; }));
  EXPECT_EQ(said("a connection that has sent no hello has closed"), 1U) << log_text();
  const std::size_t closed = said("the connection of ");
  EXPECT_GE(closed, 1U);
  EXPECT_LE(closed, kLinesOfOneMax) << log_text();
  expect_commit();
}

TEST_F(Newcomers, they_leave_descriptors_of_the_master_to_members_that_come_back) {
  constexpr std::uint32_t kMembers = 4;
  master_.descriptors = 2 * kMembers;  // half of so few are kept
  found(kMembers);
  FakePeer& newcomer = peer(99);
  EXPECT_TRUE(until([&] { return newcomer.last<Refuse>() != nullptr; })) << log_text();
  ASSERT_NE(newcomer.last<Refuse>(), nullptr);
  EXPECT_NE(newcomer.last<Refuse>()->error.text.find("raise its limit of open files"),
            std::string::npos)
      << newcomer.last<Refuse>()->error.text;
  peers_.pop_back();
  peers_[0]->drop();
  peers_[0]->connect();
  EXPECT_TRUE(until([&] { return all_run(kMembers); })) << log_text();
  expect_commit();
  // A process that reports an epoch may be a member whose register was lost.
  FakePeer& late = peer(98);
  late.state.started = late.state.accepted = peers_[0]->state.started;
  EXPECT_TRUE(until([&] { return late.last<Refuse>() != nullptr; })) << log_text();
  EXPECT_EQ(late.last<Refuse>()->error.text.find("open files"), std::string::npos);
}

}  // namespace
}  // namespace pccl::master
