// A fixed group whose other members are the test: losses, goodbyes and failures in every order.
#include "base/log.h"
#include "engine/fixed_group.h"
#include "engines.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

class FixedLinks : public ::testing::Test {
 protected:
  static constexpr PeerId kA{10};
  static constexpr PeerId kSelf{20};
  static constexpr PeerId kC{30};
  static constexpr GroupId kMade{5};

  FixedLinks() {
    make_with_links();
    others_are_connected();
  }
  void make_with_links() {
    make(GroupKind::fixed);
    group->link_up(kA);
    group->link_up(kC);
  }
  void others_are_connected() {
    for (const PeerId peer : {kA, kC}) group->control(peer, Connected{kMade, Trips{}});
  }
  void make(GroupKind kind) {
    std::vector<Handle> handles(3);
    handles[0].peer = kA;
    handles[1].peer = kSelf;
    handles[2].peer = kC;
    connected = std::make_shared<Ticket>();
    group.emplace(node.context, kMade, "world", handles, 1, kTestMs, connected, kind);
    group->connect();
  }
  std::shared_ptr<Ticket> post(OpRequest request) {
    auto ticket = std::make_shared<Ticket>();
    group->post(std::move(request), ticket);
    return ticket;
  }
  static OpRequest broadcast(std::vector<float>& memory, std::int32_t root) {
    OpRequest request;
    request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, root, memory.size()};
    request.outputs = {buffer(memory)};
    return request;
  }
  /// A small broadcast of `from` as operation `index`, whole.
  void gets_broadcast(PeerId from, std::uint64_t index, std::int32_t root,
                      const std::vector<float>& sent) {
    SegmentHeader h;
    h.kind = SegmentKind::collective;
    h.group = kMade;
    h.epoch = EpochId::make(0, 1);
    h.op = OpKey{0, index};
    h.bytes = static_cast<std::uint32_t>(sent.size() * sizeof(float));
    h.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, root, sent.size()};
    const Placement at = group->segment_header(from, h);
    if (at.to == nullptr) return;
    std::memcpy(at.to, sent.data(), h.bytes);
    const auto owner = node.context.owners.find(static_cast<std::uint32_t>(at.token));
    ASSERT_NE(owner, node.context.owners.end());
    owner->second->segment_arrived(from, h, at);
  }
  void all_is_sent() {
    while (!node.links.sent.empty()) {
      const FakeLinks::Sent sent = node.links.sent.front();
      node.links.sent.pop_front();
      if (!sent.control.empty()) continue;
      const MemoryToken token = sent.cookie >> 32;
      const auto owner = node.context.owners.find(static_cast<std::uint32_t>(token));
      ASSERT_NE(owner, node.context.owners.end());
      owner->second->segment_sent(token, sent.to, static_cast<std::uint32_t>(sent.cookie));
    }
  }

  Node node{kSelf, GroupKind::fixed};
  std::shared_ptr<Ticket> connected;
  std::optional<FixedGroup> group;
  std::vector<float> values = std::vector<float>(4, 1.0F);
  std::vector<float> others = std::vector<float>(4, 7.0F);
};

TEST_F(FixedLinks, the_line_about_a_link_that_does_not_come_up_says_what_was_seen) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  make(GroupKind::fixed);
  node.links.opening = "nosuch.invalid:4711: unknown node or service";
  group->link_up(kC);
  for (std::uint64_t ms = 0; ms < kSayWaitingMs; ms += kProbeMs) group->tick(kProbeMs);
  set_log_sink(nullptr);
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines.back().find("waiting for a connection with rank 0"), std::string::npos);
  EXPECT_TRUE(lines.back().ends_with("): nosuch.invalid:4711: unknown node or service"))
      << lines.back();
}

TEST_F(FixedLinks, a_rank_that_is_silent_for_less_than_a_second_is_lost_with_words_that_fit) {
  node.options.silence_timeout_ms = 10;
  const auto call = post(broadcast(values, 0));
  group->tick(1000);  // asks for a sign of life
  group->tick(50);
  EXPECT_NE(outcome(call).text.find("no sign of life for 50 ms (PCCL_SILENCE_TIMEOUT_S)"),
            std::string::npos)
      << call->error().text;
}

TEST_F(FixedLinks, an_operation_that_fails_takes_nothing_from_those_before_it) {
  expect_success(connected);
  std::vector<float> elsewhere(4);
  const auto first = post(broadcast(values, 0));
  const auto second = post(broadcast(values, 0));  // the same memory: it waits for its turn
  const auto third = post(broadcast(elsewhere, 0));
  gets_broadcast(kA, 1, 0, others);
  group->control(kA, OpFailed{kMade, OpKey{0, 2}, {ErrorCode::mismatch, "they differ"}, false});
  EXPECT_EQ(outcome(third).code, ErrorCode::mismatch);
  gets_broadcast(kA, 0, 0, values);
  all_is_sent();
  EXPECT_TRUE(first->done());
  EXPECT_TRUE(second->done()) << "what came for it while it waited is lost";
  EXPECT_EQ(values, others);
}

TEST_F(FixedLinks, what_a_rank_that_has_left_did_not_deliver_is_not_waited_for) {
  group->control(kA, Farewell{kMade, OpKey{0, 2}});  // "two operations are done and sent"
  gets_broadcast(kA, 0, 0, others);
  group->link_gone(kA);
  group->link_down(kA, "it has died", Down::lost);
  const auto first = post(broadcast(values, 0));
  all_is_sent();
  expect_success(first);
  EXPECT_EQ(values, others);
  const auto second = post(broadcast(values, 0));
  group->tick(50);
  ASSERT_TRUE(second->done()) << "nobody will send it any more";
  EXPECT_EQ(second->error().code, ErrorCode::peer_lost);
  EXPECT_NE(second->error().text.find("rank 0"), std::string::npos) << second->error().text;
}

TEST_F(FixedLinks, a_rank_that_has_left_before_its_link_was_up_is_not_awaited) {
  for (const Down how : {Down::lost, Down::unopened, Down::refused}) {
    make(GroupKind::fixed);
    group->link_up(kC);
    group->control(kA, Farewell{kMade, OpKey{0, 0}});  // it came over the link of another group
    EXPECT_FALSE(connected->done());
    group->link_gone(kA);
    group->link_down(kA, "the other side has closed the connection", how);
    EXPECT_FALSE(connected->done()) << "rank 2 has no link to rank 0 yet";
    group->control(kC, Connected{kMade, Trips{}});
    expect_success(connected);
    const auto call = post(broadcast(values, 0));
    ASSERT_TRUE(call->done());
    EXPECT_EQ(call->error().code, ErrorCode::peer_lost);
  }
}

/// Of members of a run: a link that is not there is the run's to make, in its time.
class OfRunLinks : public FixedLinks {
 protected:
  OfRunLinks() {
    node.links.opened.clear();
    node.links.not_up = {kA};
  }
};

TEST_F(OfRunLinks, a_link_that_the_run_makes_is_given_no_longer_than_the_run_gives_it) {
  make(GroupKind::of_run);
  ASSERT_FALSE(node.links.opened.empty());
  for (const auto& [peer, ms] : node.links.opened) EXPECT_LE(ms, kRedialMs) << to_string(peer);
  group->link_up(kC);
  group->link_down(kA, "nobody answers", Down::unopened);
  EXPECT_FALSE(connected->done()) << "the run has not said what becomes of it";
  group->link_up(kA);  // over a third member, perhaps
  others_are_connected();
  expect_success(connected);
}

TEST_F(OfRunLinks, a_link_that_the_run_makes_over_a_third_member_is_left_to_it) {
  node.links.vias = {{kA, kC}};
  make(GroupKind::of_run);
  for (const auto& [peer, ms] : node.links.opened) EXPECT_NE(peer, kA);
}

TEST_F(OfRunLinks, the_making_ends_with_its_time_with_the_peer_and_with_the_run) {
  make(GroupKind::of_run);
  group->link_up(kC);
  group->lost_by_run(kA);
  EXPECT_EQ(outcome(connected).code, ErrorCode::peer_lost);

  for (const bool has_said : {false, true}) {
    make(GroupKind::of_run);
    group->link_up(kA);
    group->link_up(kC);
    if (has_said) group->control(kA, Connected{kMade, Trips{}});
    group->lost_by_run(kA);
    EXPECT_EQ(outcome(connected).code, ErrorCode::peer_lost);
  }

  make(GroupKind::of_run);
  group->link_up(kC);
  group->link_down(kA, "nobody answers", Down::unopened);
  for (std::uint64_t ms = 1000; ms < kTestMs; ms += 1000) group->tick(1000);
  EXPECT_FALSE(connected->done());
  group->tick(1000);
  const Error late = outcome(connected);
  EXPECT_EQ(late.code, ErrorCode::unreachable);
  EXPECT_NE(late.text.find("rank 0"), std::string::npos) << late.text;

  make(GroupKind::of_run);
  group->run_over({ErrorCode::evicted, "this replica was evicted"});
  EXPECT_EQ(outcome(connected).code, ErrorCode::evicted);

  make(GroupKind::of_run);
  group->link_up(kC);
  group->link_up(kA);
  others_are_connected();
  group->run_over({ErrorCode::evicted, "this replica was evicted"});
  group->lost_by_run(kA);
  EXPECT_FALSE(group->view().failure.failed()) << "it has all that it needs";
}

TEST_F(OfRunLinks, a_member_that_leaves_the_run_while_it_makes_a_group_is_lost_to_the_others) {
  make(GroupKind::of_run);
  group->link_up(kA);
  group->link_up(kC);
  node.links.sent.clear();
  group->run_over({ErrorCode::closed, "this replica has left the run"});
  EXPECT_EQ(outcome(connected).code, ErrorCode::closed);
  ASSERT_EQ(node.links.sent.size(), 2U);
  for (const FakeLinks::Sent& sent : node.links.sent) {
    const auto message = decode_peer_to_peer(sent.control);
    ASSERT_TRUE(message);
    const Error& told = std::get<GroupFailed>(message.value()).error;
    EXPECT_EQ(told.code, ErrorCode::peer_lost);
    EXPECT_NE(told.text.find("rank 1"), std::string::npos) << told.text;
    EXPECT_NE(told.text.find("has left the run"), std::string::npos) << told.text;
  }
  node.links.sent.clear();
  group->control(kA, Connected{kMade, Trips{}});  // it had no link when this was told
  ASSERT_EQ(node.links.sent.size(), 1U);
  const auto again = decode_peer_to_peer(node.links.sent.front().control);
  EXPECT_EQ(std::get<GroupFailed>(again.value()).error.code, ErrorCode::peer_lost);
}

TEST_F(OfRunLinks, a_member_that_stops_before_it_has_made_the_group_is_lost_after_a_silence) {
  make(GroupKind::of_run);
  group->link_up(kA);
  group->link_up(kC);
  std::uint64_t waited_ms = 0;
  while (!connected->done() && waited_ms < kTestMs) {
    group->tick(1000);
    group->control(kC, TellIssued{kMade, kSignOfLife, OpKey{}, 0});
    waited_ms += 1000;
  }
  const Error lost = outcome(connected);
  EXPECT_EQ(lost.code, ErrorCode::peer_lost) << lost.text;
  EXPECT_NE(lost.text.find("rank 0"), std::string::npos) << lost.text;
  EXPECT_LT(waited_ms, 3 * node.context.options.silence_timeout_ms);
}

TEST_F(FixedLinks, a_time_out_repeats_what_is_known_of_the_links) {
  node.links.troubles[kC] = "nothing large arrives there";
  std::vector<float> memory(8);
  OpRequest request = broadcast(memory, 0);
  request.timeout_ms = 2000;
  const auto ticket = post(std::move(request));
  for (int i = 0; i < 20 && !ticket->done(); ++i) {
    group->tick(500);
    for (const PeerId peer : {kA, kC}) {
      group->control(peer, TellIssued{kMade, OpKey{}, OpKey{0, 9}, 0});
      group->control(peer, TellIssued{kMade, kSignOfLife, OpKey{}, 0});
    }
  }
  const Error late = outcome(ticket);
  EXPECT_EQ(late.code, ErrorCode::timed_out) << late.text;
  EXPECT_NE(late.text.find("; rank 2 ("), std::string::npos) << late.text;
  EXPECT_NE(late.text.find("): nothing large arrives there"), std::string::npos) << late.text;
}

TEST_F(FixedLinks, a_silent_rank_is_lost_with_what_is_known_of_its_link) {
  node.links.troubles[kC] = "nothing large arrives there";
  std::vector<float> memory(8);
  const auto ticket = post(broadcast(memory, 0));
  for (int i = 0; i < 200 && !ticket->done(); ++i) {
    group->tick(500);
    group->control(kA, TellIssued{kMade, kSignOfLife, OpKey{}, 0});
  }
  const Error lost = outcome(ticket);
  EXPECT_EQ(lost.code, ErrorCode::peer_lost) << lost.text;
  EXPECT_NE(lost.text.find("(PCCL_SILENCE_TIMEOUT_S); nothing large arrives there"),
            std::string::npos)
      << lost.text;
}

TEST_F(FixedLinks, all_begin_together_and_choose_by_the_trips_that_all_have_said) {
  node.links.sent.clear();
  make(GroupKind::fixed);
  LinkView far;
  far.round_trip_us = 90'000;
  node.links.links[kA] = far;
  far.round_trip_us = 30'000;
  node.links.links[kC] = far;
  group->control(kA, Connected{kMade, Trips{80'000, 70'000}});  // it was faster
  group->link_up(kA);
  EXPECT_TRUE(node.links.sent.empty()) << "it has no link to rank 2 yet";
  group->link_up(kC);
  ASSERT_EQ(node.links.sent.size(), 2U);
  for (const FakeLinks::Sent& sent : node.links.sent) {
    const auto message = decode_peer_to_peer(sent.control);
    ASSERT_TRUE(message);
    const auto* said = std::get_if<Connected>(&message.value());
    ASSERT_NE(said, nullptr);
    EXPECT_EQ(said->trips, (Trips{90'000, 30'000, /*local=*/false, /*host=*/1}));
  }
  EXPECT_FALSE(connected->done()) << "rank 2 has not said that it has its links";
  group->control(kC, Connected{kMade, Trips{80'000, 80'000}});
  expect_success(connected);
  EXPECT_EQ(group->view().lines, (Lines{80'000, 60'000, 0}));
  group->control(kC, Connected{kMade, Trips{5'000'000, 5'000'000}});  // it thinks otherwise now
  group->control(kA, Connected{kMade, {}});
  EXPECT_EQ(group->view().lines, (Lines{80'000, 60'000, 0}));
}

TEST_F(FixedLinks, sites_are_found_in_the_order_of_ranks) {
  make(GroupKind::fixed);
  LinkView link;
  link.round_trip_us = 300;
  node.links.links[kA] = link;
  link.round_trip_us = 80'000;
  node.links.links[kC] = link;  // this rank, 1, is the last one of its site
  group->link_up(kA);
  group->link_up(kC);
  group->control(kA, Connected{kMade, Trips{80'000, 300}});
  group->control(kC, Connected{kMade, Trips{80'000, 80'000}});
  expect_success(connected);
  EXPECT_EQ(group->view().lines.sites, (Sites{0, 0, 1}));
  EXPECT_EQ(group->view().lines.near_us, 300U);
}

TEST_F(FixedLinks, where_two_reach_each_other_over_a_third_bytes_alone_choose) {
  make_with_links();
  group->control(kA, Connected{kMade, {}});
  group->control(kC, Connected{kMade, Trips{80'000, 80'000}});
  expect_success(connected);
  EXPECT_EQ(group->view().lines, Lines{});
  node.links.vias = {{kA, kC}};
  node.links.sent.clear();
  make_with_links();
  EXPECT_EQ(node.links.sent.size(), 2U);
  for (const FakeLinks::Sent& sent : node.links.sent) {
    const auto message = decode_peer_to_peer(sent.control);
    ASSERT_TRUE(message);
    EXPECT_EQ(std::get<Connected>(message.value()).trips, std::nullopt);
  }
}

TEST_F(FixedLinks, a_failure_that_comes_while_the_group_is_made_is_told_to_the_others) {
  make_with_links();
  node.links.sent.clear();
  const GroupFailed failed{kMade, {ErrorCode::closed, "the group has ended here"}};
  group->control(kA, failed);  // rank 2 may have had no link to it then
  EXPECT_EQ(outcome(connected).code, ErrorCode::closed);
  std::set<PeerId> told;
  for (const FakeLinks::Sent& sent : node.links.sent) {
    EXPECT_EQ(decode_peer_to_peer(sent.control).value(), PeerToPeer{failed});
    told.insert(sent.to);
  }
  EXPECT_TRUE(told.contains(kC));
  node.links.sent.clear();
  group->control(kC, failed);  // it knows
  EXPECT_TRUE(node.links.sent.empty());
  group->control(kC, Connected{kMade, Trips{}});  // its link came up after that
  ASSERT_EQ(node.links.sent.size(), 1U);
  const auto answer = decode_peer_to_peer(node.links.sent.front().control);
  EXPECT_TRUE(std::holds_alternative<GroupFailed>(answer.value()));
}

TEST_F(FixedLinks, a_member_that_has_left_is_not_lost_for_its_silence) {
  make_with_links();
  group->control(kA, TellIssued{kMade, kSignOfLife, OpKey{}, 0});
  group->tick(1000);
  group->tick(1000);  // a question is on its way
  group->control(kA, Farewell{kMade, OpKey{0, 0}});
  for (int i = 0; i < 60; ++i) group->tick(1000);
  EXPECT_FALSE(connected->done()) << "rank 2 is late";
  EXPECT_FALSE(group->view().failure.failed());
}

TEST_F(FixedLinks, a_member_that_dies_while_others_are_waited_for_was_lost) {
  make_with_links();
  group->control(kC, Connected{kMade, Trips{}});
  group->link_down(kC, "the other side has closed the connection", Down::lost);
  const Error error = outcome(connected);
  EXPECT_EQ(error.code, ErrorCode::peer_lost);
  EXPECT_NE(error.text.find("rank 2"), std::string::npos) << error.text;
  EXPECT_EQ(error.text.find("cannot be reached"), std::string::npos) << error.text;
}

TEST_F(FixedLinks, a_link_that_is_lost_while_the_group_is_made_is_dialled_once_more) {
  make_with_links();
  const auto opened = node.links.opened.size();
  const auto loses_it = [&] {
    group->link_gone(kA);
    group->link_down(kA, "the peer has lost the link and dialled anew", Down::lost);
  };
  loses_it();
  ASSERT_FALSE(connected->done());
  ASSERT_EQ(node.links.opened.size(), opened + 1);
  EXPECT_EQ(node.links.opened.back().first, kA);
  node.links.sent.clear();
  group->link_up(kA);
  EXPECT_EQ(node.links.sent.size(), 2U) << "it says again that it is connected";
  loses_it();
  EXPECT_EQ(outcome(connected).code, ErrorCode::peer_lost);

  make_with_links();
  loses_it();
  group->link_up(kA);
  others_are_connected();
  expect_success(connected);
}

TEST_F(FixedLinks,
       a_link_that_is_lost_while_the_group_is_made_and_refused_then_was_of_a_dead_peer) {
  make_with_links();
  group->link_down(kA, "the other side has closed the connection", Down::lost);
  group->link_down(kA, "connection refused", Down::refused);
  EXPECT_EQ(outcome(connected).code, ErrorCode::peer_lost);
}

TEST_F(FixedLinks, a_link_of_the_run_that_is_lost_while_a_group_is_made_is_the_runs_to_dial) {
  make(GroupKind::of_run);
  const auto opened = node.links.opened.size();
  node.links.sent.clear();  // of the group before
  group->link_down(kA, "connection reset by peer", Down::lost);
  EXPECT_FALSE(connected->done());
  EXPECT_EQ(node.links.opened.size(), opened);
  group->link_up(kC);
  EXPECT_TRUE(node.links.sent.empty());
  group->link_up(kA);
  others_are_connected();
  expect_success(connected);
}

TEST_F(FixedLinks, a_member_that_does_not_make_the_group_is_named_when_the_time_is_over) {
  make_with_links();
  group->control(kA, Connected{kMade, Trips{}});
  for (std::uint64_t ms = 0; ms < kTestMs; ms += 1000) {
    group->tick(1000);
    group->control(kA, TellIssued{kMade, kSignOfLife, OpKey{}, 0});
    group->control(kC, TellIssued{kMade, kSignOfLife, OpKey{}, 0});  // its program is elsewhere
  }
  EXPECT_FALSE(connected->done()) << "it may not reach rank 0, and will say so";
  for (int i = 0; i < 11; ++i) group->tick(1000);
  const Error late = outcome(connected);
  EXPECT_EQ(late.code, ErrorCode::timed_out);
  EXPECT_NE(late.text.find("rank 2"), std::string::npos) << late.text;
  EXPECT_EQ(late.text.find("rank 0"), std::string::npos) << late.text;
}

TEST_F(FixedLinks, a_member_that_stops_before_it_has_made_the_group_is_lost_after_a_silence) {
  for (const bool has_said : {false, true}) {
    make_with_links();
    group->control(kA, Connected{kMade, Trips{}});
    const auto second = [&] {
      group->tick(1000);
      group->control(kA, TellIssued{kMade, kSignOfLife, OpKey{}, 0});
    };
    for (int i = 0; i < 60; ++i) second();
    EXPECT_FALSE(connected->done()) << "perhaps its program has not asked for the link yet";
    if (has_said) {
      make_with_links();
      group->control(kC, Connected{kMade, Trips{}});  // and rank 0 is late
    } else {
      group->control(kC, TellIssued{kMade, kSignOfLife, OpKey{}, 0});
    }
    std::uint64_t waited_ms = 0;
    for (; !connected->done() && waited_ms < kTestMs; waited_ms += 1000) second();
    const Error lost = outcome(connected);
    EXPECT_EQ(lost.code, ErrorCode::peer_lost) << lost.text;
    EXPECT_NE(lost.text.find("rank 2"), std::string::npos) << lost.text;
    EXPECT_LT(waited_ms, 3 * node.context.options.silence_timeout_ms);
  }
}

TEST_F(FixedLinks, a_sibling_that_is_lost_while_a_group_is_made_takes_this_process_with_it) {
  node.host.sibling = kA;
  for (const Down how : {Down::lost, Down::refused}) {
    make(GroupKind::fixed);
    group->link_down(kA, "connection refused", how);
    const Error error = outcome(connected);
    EXPECT_EQ(error.code, ErrorCode::evicted) << error.text;
    EXPECT_NE(error.text.find("its replica goes as a whole"), std::string::npos) << error.text;
  }
  make(GroupKind::fixed);
  group->link_down(kA, "no answer within 10000 ms", Down::unopened);
  EXPECT_EQ(outcome(connected).code, ErrorCode::unreachable) << "it may live";
  make(GroupKind::fixed);
  group->link_down(kC, "connection refused", Down::refused);
  EXPECT_EQ(outcome(connected).code, ErrorCode::unreachable) << "it is of no replica";
}

TEST_F(FixedLinks, the_eviction_of_another_replica_is_a_loss_here) {
  const auto ticket = post(broadcast(values, 0));
  group->control(kC, GroupFailed{kMade, {ErrorCode::evicted, "this replica was evicted"}});
  const Error error = outcome(ticket);
  EXPECT_EQ(error.code, ErrorCode::peer_lost) << error.text;
  EXPECT_NE(error.text.find("rank 2"), std::string::npos) << error.text;
}

TEST_F(FixedLinks, failures_that_are_told_ahead_are_bounded_and_the_nearest_are_known) {
  constexpr std::uint64_t kTold = 10000;
  constexpr std::uint64_t kKnown = 4096;
  const Error told{ErrorCode::mismatch, std::string(kTextBytesMax, 'x')};
  for (std::uint64_t i = kTold; i-- > 0;) group->control(kA, OpFailed{kMade, {0, i}, told, false});
  for (std::uint64_t i = 0; i < kKnown; ++i) {
    const auto ticket = post(barrier());
    ASSERT_TRUE(ticket->done()) << i;
    ASSERT_EQ(ticket->error().code, ErrorCode::mismatch);
    ASSERT_LT(ticket->error().text.size(), 1000U);
  }
  EXPECT_FALSE(post(barrier())->done());
}

TEST_F(FixedLinks, what_a_group_sent_to_a_peer_that_was_lost_counts_no_more_when_it_is_closed) {
  std::vector<float> out(4, 1.0F);
  for (const std::int32_t to : {0, 2}) post(message(OpKind::send, to, out));
  Windows& windows = node.context.windows;
  EXPECT_EQ(windows.of(kA).eager_sends, 1U);
  node.links.not_up.insert(kA);
  group->link_down(kA, "cut", Down::lost);
  group.reset();
  EXPECT_EQ(windows.of(kA).eager_sends, 0U);
  EXPECT_EQ(windows.of(kC).eager_sends, 1U);  // may still have the group
  windows.forget(kC);
  EXPECT_EQ(windows.of(kC).eager_sends, 0U);
}

/// Each waits for the one before it, and ends as soon as it begins.
TEST(FixedAlone, a_long_row_of_operations_on_one_memory_needs_no_deep_stack) {
  constexpr std::size_t kCount = 100000;
  const PeerId self{20};
  Node node{self, GroupKind::fixed};
  std::vector<Handle> handles(1);
  handles[0].peer = self;
  FixedGroup group(node.context, GroupId{5}, "alone", handles, 0, kTestMs,
                   std::make_shared<Ticket>(), GroupKind::fixed);
  group.connect();
  std::vector<float> in(4, 1.0F);
  std::vector<float> out(4);
  OpRequest request = all_reduce(out);
  request.inputs = {buffer(in)};
  std::vector<std::shared_ptr<Ticket>> tickets;
  const auto gate = std::make_shared<InputGate>();
  for (std::size_t i = 0; i < kCount; ++i) {
    tickets.push_back(std::make_shared<Ticket>());
    OpRequest next = request;
    if (i == 0) next.gate = gate;
    group.post(std::move(next), tickets.back());
  }
  EXPECT_FALSE(tickets.back()->done());
  gate->bytes.store(in.size() * sizeof(float));
  group.inputs_came(*gate);
  for (const auto& ticket : tickets) ASSERT_TRUE(ticket->done());
  EXPECT_EQ(out, in);
}

}  // namespace
}  // namespace pccl::testing
