// A master that serves several runs: they know nothing of each other.
#include <gtest/gtest.h>

#include "server_fixture.h"

namespace pccl::master {
namespace {

class SeveralRuns : public Server {
 protected:
  /// Serves the runs "a", founded by two peers, and "b", founded by one.
  void serve_two() {
    RunOptions a = options_;
    a.run = "a";
    RunOptions b = options_;
    b.run = "b";
    b.min_peers = 1;
    server_ = std::make_unique<MasterServer>(network_, master_, std::vector<ServedRun>{{a}, {b}});
    const auto port = server_->start();
    ASSERT_TRUE(port.ok()) << port.error().text;
    port_ = port.value();
  }
  FakePeer& peer_of(const std::string& run, std::uint64_t id) {
    FakePeer& made = peer(id);
    made.state.run = run;
    return made;
  }
  const State& state_of(const std::string& run) { return server_->run(run).value()->state(); }
};

TEST_F(SeveralRuns, each_has_its_members_and_its_limits) {
  serve_two();
  peer_of("a", 1);
  FakePeer& alone = peer_of("b", 2);
  ASSERT_TRUE(until([&] { return alone.runs(1); })) << log_text();
  EXPECT_FALSE(state_of("a").running) << "one peer of two";
  FakePeer& second = peer_of("a", 3);
  ASSERT_TRUE(until([&] { return second.runs(2); })) << log_text();
  EXPECT_TRUE(alone.runs(1));
  EXPECT_GT(said("run \"a\": "), 0U) << log_text();
}

TEST_F(SeveralRuns, a_hello_with_the_id_of_a_peer_of_another_run_touches_that_peer_not) {
  serve_two();
  FakePeer& alone = peer_of("b", 2);
  ASSERT_TRUE(until([&] { return alone.runs(1); })) << log_text();
  FakePeer& forger = peer_of("a", 2);
  ASSERT_TRUE(until([&] { return state_of("a").peers.contains(PeerId{2}); })) << log_text();
  forger.die();
  ASSERT_TRUE(until([&] { return !state_of("a").peers.contains(PeerId{2}); })) << log_text();
  EXPECT_EQ(alone.times_closed, 0);
  EXPECT_TRUE(alone.runs(1));
}

TEST_F(SeveralRuns, each_has_keys_of_its_own) {
  serve_two();
  FakePeer& in_a = peer_of("a", 1);
  FakePeer& in_b = peer_of("b", 2);
  ASSERT_TRUE(until([&] { return in_b.runs(1) && in_a.connected(); })) << log_text();
  in_a.send(store_request(1, StoreOp::set, {"k"}, "of a"));
  ASSERT_TRUE(until([&] { return reply(in_a, 1) != nullptr; }));
  in_b.send(store_request(2, StoreOp::num_keys, {}));
  ASSERT_TRUE(until([&] { return reply(in_b, 2) != nullptr; }));
  EXPECT_EQ(reply(in_b, 2)->amount, 0);
}

TEST_F(SeveralRuns, a_peer_that_names_none_of_them_is_told_their_names) {
  serve_two();
  for (const std::string name : {"", "c"}) {
    FakePeer& stranger = peer_of(name, 7);
    ASSERT_TRUE(until([&] { return stranger.last<Refuse>() != nullptr; })) << log_text();
    EXPECT_NE(stranger.last<Refuse>()->error.text.find("\"a\", \"b\""), std::string::npos);
  }
}

TEST_F(SeveralRuns, who_asks_for_the_status_without_a_name_is_told_all_names_if_it_wishes) {
  serve_two();
  const MasterToPeer all = ask({"", true});
  ASSERT_TRUE(std::holds_alternative<Status>(all));
  EXPECT_EQ(std::get<Status>(all).state, "several");
  EXPECT_EQ(std::get<Status>(all).runs, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(std::holds_alternative<Refuse>(ask({"", false}))) << "as older programs ask";
  const MasterToPeer one = ask({"b", false});
  ASSERT_TRUE(std::holds_alternative<Status>(one));
  EXPECT_EQ(std::get<Status>(one).run, "b");
  EXPECT_TRUE(std::get<Status>(one).runs.empty());
}

TEST_F(SeveralRuns, two_of_one_name_or_none_at_all_are_refused) {
  MasterServer twice(network_, master_, {{options_}, {options_}});
  EXPECT_NE(twice.start().error().text.find("two runs"), std::string::npos);
  MasterServer none(network_, master_, {});
  EXPECT_FALSE(none.start().ok());
}

TEST_F(SeveralRuns, it_ends_when_all_of_them_have_ended) {
  serve_two();
  FakePeer& alone = peer_of("b", 2);
  ASSERT_TRUE(until([&] { return alone.runs(1); })) << log_text();
  bool stopped = false;
  server_->stop(/*ends_wait=*/false, [&] { stopped = true; });
  EXPECT_TRUE(until([&] { return stopped; }));
  EXPECT_FALSE(alone.connected());
}

}  // namespace
}  // namespace pccl::master
