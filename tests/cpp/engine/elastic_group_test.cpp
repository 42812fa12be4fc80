// Elastic groups against a real master in this process: founding, commit, loss and replay,
// admission with shared state, leaving.
#include <future>
#include <mutex>

#include "base/log.h"
#include "elastic_run.h"

namespace pccl::testing {
namespace {

TEST(ElasticGroup, two_peers_found_a_run_and_commit) {
  Founded run(2);
  auto& [master, peers, group] = run;
  Peer& a = peers[0];
  Peer& b = peers[1];
  EXPECT_EQ(a.engine->view(group).size, 2);
  EXPECT_NE(a.engine->view(group).rank, b.engine->view(group).rank);
  for (const std::size_t count : {1U, 1000U, 1000000U}) {
    std::vector<float> x(count, 1.0F);
    std::vector<float> y(count, 2.0F);
    const auto one = a.engine->post(group, all_reduce(x, ReduceOp::avg));
    const auto two = b.engine->post(group, all_reduce(y, ReduceOp::avg));
    expect_success(one);
    expect_success(two);
    EXPECT_EQ(x, y);
    EXPECT_EQ(x.back(), 1.5F);
    EXPECT_EQ(one->seen<CollectiveResult>().contributors.size(), 2U);
  }
}

/// What the log says, on whichever thread.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      text_ += std::string(line) + "\n";
    });
  }
  ~LogLines() { set_log_sink(nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  [[nodiscard]] bool with(const std::string& words) {
    const std::lock_guard lock(mutex_);
    return text_.find(words) != std::string::npos;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

/// A wait for this operation returns to the program.
void returns_from(const Peer& peer, const std::shared_ptr<Ticket>& operation) {
  const auto ticket = peer.engine->run().returned(*operation);
  if (ticket) expect_success(ticket);
}

TEST(ElasticGroup, a_loss_in_the_middle_restores_and_replays_among_the_survivors) {
  Founded run(3);
  auto& [master, peers, group] = run;
  // The victim contributes to the first operation, then dies before the second.
  std::vector<std::vector<float>> values(3, std::vector<float>(500000, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t i = 0; i < 3; ++i)
    tickets.push_back(peers[i].engine->post(group, all_reduce(values[i])));
  for (const auto& t : tickets) expect_success(t);
  EXPECT_EQ(values[0].front(), 3.0F);
  tickets.clear();
  for (std::size_t i = 0; i < 2; ++i)
    tickets.push_back(peers[i].engine->post(group, all_reduce(values[i])));
  EXPECT_TRUE(
      wait_until([&] { return peers[0].engine->in_flight(group).value().at(0).bytes_sent > 0; }));
  EXPECT_EQ(peers[0].engine->in_flight(group).value().at(0).algorithm, Algorithm::ring);
  peers[2].engine->vanish();
  for (const auto& t : tickets) {
    expect_success(t);
    EXPECT_EQ(t->seen<CollectiveResult>().contributors.size(), 2U);
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_EQ(values[0].front(), 6.0F);
  EXPECT_GE(peers[0].engine->counters().value().ops_replayed, 1U);
  EXPECT_EQ(peers[0].engine->view(group).size, 3);  // until the first return in the new epoch
  returns_from(peers[0], tickets[0]);
  EXPECT_EQ(peers[0].engine->view(group).size, 2);
}

TEST(ElasticGroup, of_many_operations_that_are_replayed_three_have_a_line_and_the_rest_one) {
  constexpr std::size_t kCalls = 20;
  Founded run(3);
  auto& [master, peers, group] = run;
  std::vector<std::vector<float>> values(2 * kCalls, std::vector<float>(8, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t i = 0; i < values.size(); ++i) {
    tickets.push_back(peers[i / kCalls].engine->post(group, all_reduce(values[i])));
  }
  const auto begun = [&](const Peer& peer) {
    const auto flying = peer.engine->in_flight(group).value();
    return flying.size() == kCalls && flying.back().algorithm != Algorithm::none;
  };
  EXPECT_TRUE(wait_until([&] { return begun(peers[0]) && begun(peers[1]); }));
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::scoped_lock lock(mutex);
    if (line.find("replayed among 2 members") != std::string_view::npos) lines.emplace_back(line);
  });
  peers[2].engine->vanish();
  for (const auto& ticket : tickets) expect_success(ticket);
  set_log_sink(nullptr);
  const auto rest = [](const std::string& line) {
    return line.find("17 more operations, the first of them all_reduce(") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), rest), 2) << lines.back();
  EXPECT_EQ(lines.size(), 8U);
  EXPECT_EQ(peers[0].engine->counters().value().ops_replayed, kCalls);
}

TEST(ElasticGroup, an_event_names_the_members_that_were_lost) {
  std::promise<std::vector<std::string>> heard;
  MasterThread master(master_of(2));
  std::vector<Peer> peers;
  for (const char* name : {"node7/1", "node8/2"}) {
    EngineOptions options;
    options.name = name;
    peers.push_back(start_peer(master.address, options));
  }
  peers[0].engine->run().on_event([&](const GroupEvent& event) {
    if (!event.lost.empty()) heard.set_value(event.lost_names);
  });
  for (const Peer& peer : peers) expect_success(peer.joined);
  peers[1].engine->vanish();
  auto names = heard.get_future();
  ASSERT_EQ(names.wait_for(std::chrono::milliseconds(kTestMs)), std::future_status::ready);
  EXPECT_EQ(names.get(), std::vector<std::string>{"node8/2"});
}

TEST(ElasticGroup, an_operation_that_is_complete_here_says_why_its_commit_does_not_come) {
  LogLines lines;
  std::vector<std::vector<float>> values(2, std::vector<float>(4, 1.0F));
  Founded reached(2);
  Founded cut_off(2);
  const auto half = [&](Founded& run, std::vector<float>& memory) {
    OpRequest request;
    request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, memory.size()};
    request.inputs = request.outputs = {buffer(memory)};
    for (const Peer& peer : run.peers) {  // the root is done when its data have left
      if (peer.engine->view(run.group).rank == 0) return peer.engine->post(run.group, request);
    }
    return std::shared_ptr<Ticket>();
  };
  const auto open = half(reached, values[0]);
  const auto lost = half(cut_off, values[1]);
  cut_off.master.stop();
  const std::string where = "for the commit: it is complete here; ";
  EXPECT_TRUE(wait_until([&] { return lines.with(where + "the master is reached, and other"); }));
  EXPECT_TRUE(wait_until([&] { return lines.with(where + "this process has no connection to"); }));
  EXPECT_FALSE(open->done());
  EXPECT_FALSE(lost->done());
}

TEST(ElasticGroup, a_run_that_is_not_founded_in_time_says_what_founds_it) {
  MasterThread master(master_of(2));
  EngineOptions options;
  options.links.listen_hosts = {"127.0.0.1"};
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok());
  JoinOptions join;
  join.masters = {master.address};
  join.timeout_ms = 100;
  const auto joined = engine.value()->run().join(join);
  ASSERT_TRUE(joined->wait(kTestMs));
  EXPECT_EQ(joined->error().text,
            "the run was not founded within 100 ms: the master at " + master.address +
                " founds it when enough peers have come and reach each other");
}

TEST(ElasticGroup, the_return_of_a_call_that_was_refused_changes_no_rank) {
  Founded run(3);
  auto& [master, peers, group] = run;
  std::vector<std::vector<float>> values(2, std::vector<float>(500000, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t i = 0; i < 2; ++i)
    tickets.push_back(peers[i].engine->post(group, all_reduce(values[i])));
  peers[2].engine->vanish();
  for (const auto& t : tickets) expect_success(t);
  OpRequest wrong = all_reduce(values[0]);  // of another thread, before that one's wait returns
  wrong.descriptor.root = 3;
  const auto refused = peers[0].engine->post(group, std::move(wrong));
  EXPECT_EQ(outcome(refused).code, ErrorCode::invalid);
  EXPECT_EQ(peers[0].engine->run().returned(*refused), nullptr);
  EXPECT_EQ(peers[0].engine->view(group).size, 3);
  returns_from(peers[0], tickets[0]);
  EXPECT_EQ(peers[0].engine->view(group).size, 2);
}

TEST(ElasticGroup, ranks_change_at_a_return_behind_which_no_earlier_call_is_open) {
  Founded run(3);
  auto& [master, peers, group] = run;
  std::vector<std::vector<float>> large(2, std::vector<float>(4'000'000, 1.0F));
  std::vector<std::vector<float>> small(2, std::vector<float>(10, 1.0F));
  std::vector<std::shared_ptr<Ticket>> first;
  std::vector<std::shared_ptr<Ticket>> second;
  for (std::size_t i = 0; i < 2; ++i) {
    first.push_back(peers[i].engine->post(group, all_reduce(large[i])));
    second.push_back(peers[i].engine->post(group, all_reduce(small[i])));
  }
  peers[2].engine->vanish();
  for (std::size_t i = 0; i < 2; ++i) {
    expect_success(second[i]);
    returns_from(peers[i], second[i]);
    EXPECT_TRUE(first[i]->done());
    EXPECT_EQ(peers[i].engine->view(group).size, 2);
  }
}

TEST(ElasticGroup, what_a_newcomer_has_called_runs_where_it_founds_the_next_run) {
  Founded run(1);
  Peer newcomer = start_peer(run.master.address);
  expect_success(newcomer.joined);
  EXPECT_EQ(newcomer.engine->view(run.group).rank, 1);  // provisional
  std::vector<float> values(1000, 3.0F);
  const auto reduced = newcomer.engine->post(run.group, all_reduce(values, ReduceOp::avg));
  OpRequest rooted;
  rooted.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, values.size()};
  rooted.outputs = {buffer(values)};  // as rank 1, which it is no more
  const auto broadcast = newcomer.engine->post(run.group, std::move(rooted));
  EXPECT_TRUE(newcomer.engine->in_flight(run.group).value().empty());
  run.peers[0].engine->shutdown();
  expect_success(reduced);
  EXPECT_EQ(values, std::vector<float>(1000, 3.0F));
  EXPECT_EQ(outcome(broadcast).code, ErrorCode::invalid);
  EXPECT_EQ(newcomer.engine->view(run.group).rank, 0);
}

TEST(ElasticGroup, what_is_replayed_while_a_part_of_its_inputs_has_not_come_yet_is_right) {
  Founded run(3);
  auto& [master, peers, group] = run;
  constexpr std::size_t kCount = 1500000;
  std::vector<std::vector<float>> values(2, std::vector<float>(kCount, 1.0F));
  std::vector<std::shared_ptr<InputGate>> gates;
  std::vector<std::shared_ptr<Ticket>> tickets;
  const auto come = [&](std::size_t i, std::size_t begin, std::size_t end) {
    std::fill(values[i].begin() + static_cast<std::ptrdiff_t>(begin),
              values[i].begin() + static_cast<std::ptrdiff_t>(end), static_cast<float>(2 + i));
    gates[i]->bytes.store(end * sizeof(float));
    peers[i].engine->inputs_came(group, gates[i]);
  };
  for (std::size_t i = 0; i < 2; ++i) {
    gates.push_back(std::make_shared<InputGate>());
    OpRequest request = all_reduce(values[i]);
    request.gate = gates[i];
    tickets.push_back(peers[i].engine->post(group, std::move(request)));
    come(i, 0, 2 * kCount / 3);  // whatever ranks these two have, one of them can send
  }
  EXPECT_TRUE(wait_until([&] {
    return peers[0].engine->in_flight(group).value().at(0).bytes_sent +
               peers[1].engine->in_flight(group).value().at(0).bytes_sent >
           0;
  }));
  peers[2].engine->vanish();
  EXPECT_TRUE(wait_until([&] { return peers[0].engine->counters().value().ops_replayed > 0; }));
  for (std::size_t i = 0; i < 2; ++i) come(i, 2 * kCount / 3, kCount);
  for (const auto& t : tickets) expect_success(t);
  EXPECT_EQ(values[0], values[1]);
  EXPECT_EQ(values[0], std::vector<float>(kCount, 5.0F));
}

TEST(ElasticGroup, what_cannot_be_replayed_fails_at_every_survivor_with_its_tensors_unchanged) {
  Founded run(3);
  auto& [master, peers, group] = run;
  std::vector<std::vector<float>> in(2, std::vector<float>(300000, 4.0F));
  std::vector<std::vector<std::vector<float>>> out(2);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t i = 0; i < 2; ++i) {
    OpRequest request;
    request.descriptor = {OpKind::all_gather, ReduceOp::none, DType::f32, -1, in[i].size()};
    request.inputs = {buffer(in[i])};
    out[i].assign(3, std::vector<float>(300000, 9.0F));
    for (auto& o : out[i]) request.outputs.push_back(buffer(o));
    tickets.push_back(peers[i].engine->post(group, std::move(request)));
  }
  EXPECT_TRUE(wait_until([&] {  // which of the two gets the first bytes depends on their ranks
    return peers[0].engine->in_flight(group).value().at(0).bytes_received +
               peers[1].engine->in_flight(group).value().at(0).bytes_received >
           0;
  }));
  peers[2].engine->vanish();
  for (std::size_t i = 0; i < 2; ++i) {
    const Error error = outcome(tickets[i]);
    EXPECT_EQ(error.code, ErrorCode::peer_lost) << error.text;
    for (const auto& o : out[i]) EXPECT_EQ(o, std::vector<float>(300000, 9.0F));
  }
}

TEST(ElasticGroup, one_that_stands_at_a_boundary_while_the_other_reduces_is_not_waited_for) {
  Founded run(2);
  auto& [master, peers, group] = run;
  std::vector<float> state(10, 1.0F);
  auto boundary = std::async(std::launch::async,
                             [&] { return refresh(*peers[1].engine, state, 0, /*timeout_ms=*/0); });
  std::vector<float> values(1000, 4.0F);
  OpRequest request = all_reduce(values, ReduceOp::avg);
  request.timeout_ms = 300;
  expect_success(peers[0].engine->post(group, std::move(request)));
  EXPECT_EQ(values, std::vector<float>(1000, 4.0F));
  const auto stood = boundary.get();
  ASSERT_FALSE(stood.ok());
  EXPECT_EQ(stood.error().code, ErrorCode::evicted) << stood.error().text;
  EXPECT_NE(stood.error().text.find("has not called operation"), std::string::npos);
}

TEST(ElasticGroup, a_newcomer_is_admitted_at_a_boundary_and_holds_the_state) {
  Founded run(2);
  auto& [master, peers, group] = run;
  Peer& a = peers[0];
  Peer& b = peers[1];
  std::vector<float> state_a(100000, 1.25F);
  std::vector<float> state_b(100000, 1.25F);
  const auto step = [&](std::vector<Peer*> members, std::vector<std::vector<float>*> states,
                        std::uint64_t revision) {
    std::vector<std::vector<float>> values(members.size(), std::vector<float>(1000, 1.0F));
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t i = 0; i < members.size(); ++i) {
      tickets.push_back(members[i]->engine->post(group, all_reduce(values[i])));
    }
    for (const auto& t : tickets) expect_success(t);
    std::vector<std::future<Result<BoundaryEvent>>> ends;
    for (std::size_t i = 0; i < members.size(); ++i) {
      ends.push_back(std::async(std::launch::async, [&, i] {
        return refresh(*members[i]->engine, *states[i], revision);
      }));
    }
    std::vector<BoundaryEvent> events;
    for (auto& e : ends) {
      auto result = e.get();
      EXPECT_TRUE(result.ok()) << result.error().text;
      if (result.ok()) events.push_back(result.value());
    }
    return events;
  };
  auto first = step({&a, &b}, {&state_a, &state_b}, 1);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_TRUE(first[0].voted);  // the first boundary of a run always votes
  EXPECT_EQ(first[0].step, 1U);
  auto compared = step({&a, &b}, {&state_a, &state_b}, 2);
  EXPECT_TRUE(compared.at(0).voted);  // after the first step
  auto quiet = step({&a, &b}, {&state_a, &state_b}, 3);
  EXPECT_FALSE(quiet.at(0).voted);  // nobody waits
  Peer c = start_peer(master.address);
  expect_success(c.joined);
  EXPECT_FALSE(c.engine->view(group).admitted);
  EXPECT_EQ(c.engine->view(group).size, 3);  // provisional
  const Error early = outcome(c.engine->post(group, barrier()));
  EXPECT_EQ(early.code, ErrorCode::not_admitted);
  std::vector<float> state_c(100000, 0.0F);
  auto admitted = std::async(std::launch::async, [&] { return refresh(*c.engine, state_c, 0); });
  bool voted = false;
  for (std::uint64_t s = 4; s < 200 && !voted; ++s) {
    auto events = step({&a, &b}, {&state_a, &state_b}, s);
    ASSERT_EQ(events.size(), 2U);
    voted = events[0].voted;
    EXPECT_EQ(events[0].voted, events[1].voted);
  }
  EXPECT_TRUE(voted);
  auto entered = admitted.get();
  ASSERT_TRUE(entered.ok()) << entered.error().text;
  EXPECT_TRUE(entered.value().admitted);
  EXPECT_EQ(state_c, state_a);
  EXPECT_EQ(c.engine->view(group).size, 3);
  EXPECT_EQ(c.engine->view(group).rank, 2);
  auto together = step({&a, &b, &c}, {&state_a, &state_b, &state_c}, 300);
  EXPECT_EQ(together.size(), 3U);
  // One leaves: the others go on without it, and nothing is replayed.
  c.engine->run().leave(/*at_once=*/false);
  BoundaryEvent left;
  for (int s = 0; s < 200 && !left.left; ++s) {
    auto events = step({&a, &b, &c}, {&state_a, &state_b, &state_c}, 301);
    ASSERT_EQ(events.size(), 3U);
    left = events[2];
  }
  EXPECT_TRUE(left.left);
  auto last = step({&a, &b}, {&state_a, &state_b}, 302);
  EXPECT_EQ(last.size(), 2U);
  EXPECT_EQ(a.engine->view(group).size, 2);
  EXPECT_EQ(a.engine->counters().value().ops_replayed, 0U);
}

TEST(ElasticGroup, who_does_not_come_to_a_boundary_in_time_is_evicted_and_the_others_go_on) {
  Founded run(2);
  auto& [master, peers, group] = run;
  std::vector<float> state(10, 1.0F);
  const auto alone = refresh(*peers[0].engine, state, 1, /*timeout_ms=*/300);
  ASSERT_TRUE(alone.ok()) << alone.error().text;
  EXPECT_EQ(peers[0].engine->view(group).size, 1);
  EXPECT_TRUE(wait_until([&] { return peers[1].engine->view(group).evicted; }));
}

TEST(ElasticGroup, a_newcomer_that_no_boundary_admits_gives_up_at_its_time_out) {
  Founded run(2);
  auto& [master, peers, group] = run;
  Peer newcomer = start_peer(master.address);
  expect_success(newcomer.joined);
  std::vector<float> state(10, 1.0F);
  const auto given_up = refresh(*newcomer.engine, state, 0, /*timeout_ms=*/300);
  ASSERT_FALSE(given_up.ok());
  EXPECT_EQ(given_up.error().code, ErrorCode::timed_out) << given_up.error().text;
  std::vector<float> x(8, 1.0F);  // the members have not noticed
  std::vector<float> y(8, 1.0F);
  const auto one = peers[0].engine->post(group, all_reduce(x));
  const auto two = peers[1].engine->post(group, all_reduce(y));
  expect_success(one);
  expect_success(two);
}

TEST(ElasticGroup, ranks_that_call_different_operations_all_hear_of_it) {
  Founded run(2);
  auto& [master, peers, group] = run;
  Peer& a = peers[0];
  Peer& b = peers[1];
  std::vector<float> x(4);
  std::vector<float> y(5);
  const auto one = a.engine->post(group, all_reduce(x));
  const auto two = b.engine->post(group, all_reduce(y));
  for (const auto& t : {one, two}) {
    const Error error = outcome(t);
    EXPECT_EQ(error.code, ErrorCode::mismatch);
    EXPECT_NE(error.text.find("4 elements"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("5 elements"), std::string::npos) << error.text;
  }
}

TEST(ElasticGroup, different_roots_are_named_also_where_all_only_send_and_it_was_committed) {
  for (const std::uint32_t size : {2U, 3U}) {
    Founded run(size);
    std::vector<std::vector<float>> values(size, std::vector<float>(6, 1.0F));
    std::vector<std::shared_ptr<Ticket>> calls;
    for (std::size_t p = 0; p < size; ++p) {  // each one means the next rank
      Engine& engine = *run.peers[p].engine;
      const auto rank = static_cast<std::uint32_t>(engine.view(run.group).rank);
      const auto root = static_cast<std::int32_t>((rank + 1) % size);
      calls.push_back(engine.post(run.group, rooted(OpKind::reduce, root, rank, size, values[p])));
    }
    std::vector<Error> heard;
    for (const auto& call : calls) heard.push_back(outcome(call));
    EXPECT_TRUE(wait_until([&] {
      std::vector<std::shared_ptr<Ticket>> later;
      for (const Peer& peer : run.peers) later.push_back(peer.engine->post(run.group, barrier()));
      for (std::size_t p = 0; p < size; ++p) {
        const Error error = outcome(later[p]);
        if (!heard[p].failed()) heard[p] = error;
      }
      return std::all_of(heard.begin(), heard.end(), [](const Error& e) { return e.failed(); });
    }));
    for (const Error& error : heard) {
      EXPECT_EQ(error.code, ErrorCode::mismatch) << error.text;
      EXPECT_GE(roots_in(error.text).size(), 2U) << error.text;
    }
  }
}

TEST(ElasticGroup, no_master_is_an_error_that_names_the_address) {
  EngineOptions options;
  options.links.listen_hosts = {"127.0.0.1"};
  options.master_timeout_ms = 500;
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok());
  JoinOptions join;
  join.masters = {"127.0.0.1:1"};
  const Error error = outcome(engine.value()->run().join(join));
  EXPECT_EQ(error.code, ErrorCode::unreachable);
  EXPECT_NE(error.text.find("127.0.0.1:1"), std::string::npos) << error.text;
}

TEST(ElasticGroup, own_abort_and_own_leave_end_a_message_as_closed) {
  for (const bool aborts : {true, false}) {
    SCOPED_TRACE(aborts ? "abort" : "leave");
    Founded run(2);
    Engine& engine = *run.peers[0].engine;
    std::vector<float> memory(10);
    const auto received = engine.post(run.group, message(OpKind::recv, 1, memory));
    if (aborts) {
      engine.abort(run.group, "as the test wants it");
    } else {
      engine.run().leave(/*at_once=*/true);
    }
    EXPECT_EQ(outcome(received).code, ErrorCode::closed) << received->error().text;
  }
}

}  // namespace
}  // namespace pccl::testing
