// Fixed groups: results, losses, goodbyes, mismatches, time-outs.
#include <map>
#include <mutex>

#include "base/log.h"
#include "engines.h"
#include "mute.h"

namespace pccl::testing {
namespace {

TEST(FixedGroup, all_reduce_gives_the_same_bits_everywhere) {
  for (const std::size_t size : {1U, 2U, 3U, 4U, 5U}) {
    FixedWorld world(size);
    for (const std::size_t count : {0U, 1U, 1000U, 100000U, 3000001U}) {
      std::vector<std::vector<float>> values(size);
      std::vector<std::shared_ptr<Ticket>> tickets;
      for (std::size_t r = 0; r < size; ++r) {
        values[r] =
            repeating(count, 97, [&](auto i) { return 1.0F / static_cast<float>(1 + r + i); });
        tickets.push_back(world.engines[r]->post(world.group, all_reduce(values[r])));
      }
      for (const auto& ticket : tickets) expect_success(ticket);
      for (std::size_t r = 1; r < size; ++r)
        ASSERT_TRUE(same_bits(values[r], values[0])) << size << " " << count;
      for (std::size_t i = 0; i < count; i += 1 + count / 50) {
        double sum = 0;
        for (std::size_t r = 0; r < size; ++r) sum += 1.0 / static_cast<double>(1 + r + i % 97);
        ASSERT_NEAR(values[0][i], sum, 1e-5) << size << " " << count << " " << i;
      }
    }
  }
}

TEST(FixedGroup, counts_its_operations_by_algorithm) {
  FixedWorld world(3);
  for (const std::size_t count : {1U, 2U, 1U << 20}) {
    std::vector<std::vector<float>> values(3, std::vector<float>(count, 1.0F));
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t r = 0; r < 3; ++r) {
      tickets.push_back(world.engines[r]->post(world.group, all_reduce(values[r])));
    }
    for (const auto& ticket : tickets) expect_success(ticket);
  }
  for (const auto& engine : world.engines) {
    const EngineCounters counters = engine->counters().value();
    std::map<std::string, std::uint64_t> named;
    EngineCounters::fields(counters,
                           [&](const char* name, std::uint64_t value) { named[name] = value; });
    EXPECT_EQ(named.at("ops_by_doubling"), 2U);
    EXPECT_EQ(named.at("ops_by_ring"), 1U);
    EXPECT_EQ(named.at("ops_committed"), 3U);
    EXPECT_EQ(named.at("ops_by_tree"), 0U);
  }
}

TEST(FixedGroup, of_one_rank_says_in_its_log_that_it_runs) {
  std::mutex mutex;
  std::string said;
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    said += line;
  });
  {
    FixedWorld world(1);
  }
  set_log_sink(nullptr);
  EXPECT_NE(said.find(": 1 rank, a fixed group; this process is rank 0 ("), std::string::npos)
      << said;
}

TEST(FixedGroup, hundreds_of_operations_in_flight_issued_at_different_times) {
  FixedWorld world(3);
  constexpr std::size_t kOps = 300;
  std::vector<std::vector<std::vector<float>>> values(3);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < 3;
       ++r) {  // one rank after the other: segments arrive before the calls
    for (std::size_t k = 0; k < kOps; ++k) {
      values[r].emplace_back(k % 7 == 0 ? 50000 : 10, static_cast<float>(r + k));
    }
    for (auto& v : values[r]) tickets.push_back(world.engines[r]->post(world.group, all_reduce(v)));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (std::size_t k = 0; k < kOps; ++k) {
    for (std::size_t r = 0; r < 3; ++r)
      EXPECT_EQ(values[r][k].back(), static_cast<float>(3 + 3 * k));
  }
}

TEST(FixedGroup, more_than_the_window_for_operations_that_are_not_issued_yet_is_held_back) {
  FixedWorld world(2);
  constexpr std::size_t kOps = 10;  // half of each leaves unasked: 80 MiB
  std::vector<std::vector<float>> first(kOps, std::vector<float>(4U << 20, 1.0F));
  std::vector<std::vector<float>> second(kOps, std::vector<float>(4U << 20, 2.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (auto& v : first) tickets.push_back(world.engines[0]->post(world.group, all_reduce(v)));
  EXPECT_TRUE(wait_until(
      [&] { return world.engines[0]->counters().value().bytes_sent >= kUngrantedBytesMax; }));
  for (auto& v : second) tickets.push_back(world.engines[1]->post(world.group, all_reduce(v)));
  for (const auto& ticket : tickets) expect_success(ticket);
  for (const auto& v : second) EXPECT_EQ(v.front() + v.back(), 6.0F);
}

TEST(FixedGroup, a_lost_member_fails_pending_and_later_operations_of_all_others) {
  FixedWorld world(3);
  std::vector<float> a(10);
  std::vector<float> b(10);
  const auto pending = world.engines[0]->post(world.group, all_reduce(a));
  const auto other = world.engines[1]->post(world.group, all_reduce(b));
  world.engines[2]->vanish();  // its sockets close without a word, as at a SIGKILL
  for (const auto& ticket : {pending, other}) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::peer_lost);
    EXPECT_NE(error.text.find("rank 2"), std::string::npos) << error.text;
  }
  const Error later = outcome(world.engines[0]->post(world.group, barrier()));
  EXPECT_NE(later.text.find("rank 2"), std::string::npos) << later.text;
}

TEST(FixedGroup, who_leaves_in_good_order_fails_only_what_it_has_not_done) {
  FixedWorld world(3);
  std::vector<std::shared_ptr<Ticket>> first;
  for (const auto& engine : world.engines) first.push_back(engine->post(world.group, barrier()));
  for (const auto& ticket : first) expect_success(ticket);
  std::vector<float> source(1U << 20, 5.0F);
  OpRequest send;
  send.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, source.size()};
  send.inputs = {buffer(source)};
  send.outputs = {buffer(source)};
  expect_success(world.engines[0]->post(world.group, std::move(send)));
  world.engines[0]->shutdown();  // what it owes has left
  std::vector<std::vector<float>> targets(2, std::vector<float>(1U << 20));
  std::vector<std::shared_ptr<Ticket>> second;
  for (std::size_t i = 0; i < 2; ++i) {
    OpRequest recv;
    recv.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, targets[i].size()};
    recv.inputs = {buffer(targets[i])};
    recv.outputs = {buffer(targets[i])};
    second.push_back(world.engines[1 + i]->post(world.group, std::move(recv)));
  }
  for (const auto& ticket : second) expect_success(ticket);
  for (const auto& target : targets) EXPECT_EQ(target.back(), 5.0F);
  const Error error = outcome(world.engines[2]->post(world.group, barrier()));
  EXPECT_EQ(error.code, ErrorCode::peer_lost);
  EXPECT_NE(error.text.find("has left the group"), std::string::npos) << error.text;
}

TEST(FixedGroup, who_leaves_after_its_data_has_arrived_fails_nothing_that_waits_for_others) {
  FixedWorld world(3);
  std::vector<std::vector<float>> values(3, std::vector<float>(100, 1.0F));
  const auto post = [&](std::size_t rank) {
    OpRequest request;
    request.descriptor = {OpKind::reduce, ReduceOp::sum, DType::f32, 2, values[rank].size()};
    request.inputs = {buffer(values[rank])};
    if (rank == 2) request.outputs = {buffer(values[rank])};
    return world.engines[rank]->post(world.group, std::move(request));
  };
  const auto at_root = post(2);
  expect_success(post(1));  // its turn comes after that of rank 0
  world.engines[1]->close(world.group);
  world.engines[1]->shutdown();
  EXPECT_FALSE(at_root->wait(300));
  expect_success(post(0));
  expect_success(at_root);
  EXPECT_EQ(values[2], std::vector<float>(100, 3.0F));
}

TEST(FixedGroup, different_calls_are_named_at_every_rank) {
  FixedWorld world(3);
  std::vector<float> small(4, 1.0F);
  std::vector<float> large(5, 1.0F);
  std::vector<float> again(4, 1.0F);
  std::vector<std::shared_ptr<Ticket>> tickets;
  tickets.push_back(world.engines[0]->post(world.group, all_reduce(small)));
  tickets.push_back(world.engines[1]->post(world.group, all_reduce(large)));
  tickets.push_back(world.engines[2]->post(world.group, all_reduce(again)));
  for (const auto& ticket : tickets) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::mismatch);
    EXPECT_NE(error.text.find("4 elements"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("5 elements"), std::string::npos) << error.text;
  }
  tickets.clear();
  for (const auto& engine : world.engines) tickets.push_back(engine->post(world.group, barrier()));
  for (const auto& ticket : tickets) expect_success(ticket);  // the group goes on
}

TEST(FixedGroup, a_mismatch_that_is_found_late_fails_nothing_that_was_called_before) {
  FixedWorld world(3);
  std::vector<std::vector<float>> cast(3, std::vector<float>(10, 7.0F));
  std::vector<std::vector<float>> values = {std::vector<float>(4), std::vector<float>(5)};
  const auto broadcast = [&](std::size_t rank) {
    OpRequest request;
    request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 2, cast[rank].size()};
    if (rank == 2) request.inputs = {buffer(cast[rank])};
    request.outputs = {buffer(cast[rank])};
    return world.engines[rank]->post(world.group, std::move(request));
  };
  const auto reduce = [&](std::size_t rank) {
    OpRequest request;
    request.descriptor = {OpKind::reduce, ReduceOp::sum, DType::f32, 1, values[rank].size()};
    request.inputs = {buffer(values[rank])};
    if (rank == 1) request.outputs = {buffer(values[rank])};
    return world.engines[rank]->post(world.group, std::move(request));
  };
  const auto message = [&](std::size_t rank, std::int32_t other, std::vector<float>& memory) {
    OpRequest request;
    request.descriptor = {rank == 1 ? OpKind::send : OpKind::recv, ReduceOp::none, DType::bytes, -1,
                          4 * memory.size()};
    (rank == 1 ? request.inputs : request.outputs) = {buffer(memory)};
    request.peer = other;
    return world.engines[rank]->post(world.group, std::move(request));
  };
  const auto older = broadcast(0);
  expect_success(reduce(0));  // it only sends
  const auto other = broadcast(1);
  EXPECT_EQ(outcome(reduce(1)).code, ErrorCode::mismatch);
  std::vector<float> word(1, 1.0F);
  std::vector<float> heard(1);
  const auto said = message(1, 0, word);
  expect_success(message(0, 1, heard));  // and what came before it
  expect_success(said);
  EXPECT_FALSE(older->done());
  const auto source = broadcast(2);
  for (const auto& ticket : {older, other, source}) expect_success(ticket);
  const Error late = outcome(world.engines[0]->post(world.group, barrier()));
  EXPECT_EQ(late.code, ErrorCode::mismatch);
  EXPECT_NE(late.text.find("which this rank had completed"), std::string::npos) << late.text;
}

/// What each rank hears of its call, or of the barriers after it.
std::vector<Error> heard_of(FixedWorld& world, const std::vector<std::shared_ptr<Ticket>>& calls) {
  std::vector<Error> heard;
  for (const auto& call : calls) heard.push_back(outcome(call));
  const auto silent = [&] {
    return std::any_of(heard.begin(), heard.end(), [](const Error& e) { return !e.failed(); });
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTestMs);
  while (silent() && std::chrono::steady_clock::now() < deadline) {
    std::vector<std::shared_ptr<Ticket>> next;
    for (const auto& engine : world.engines) next.push_back(engine->post(world.group, barrier()));
    for (std::size_t r = 0; r < next.size(); ++r) {
      const Error error = outcome(next[r]);
      if (!heard[r].failed()) heard[r] = error;
    }
  }
  return heard;
}

TEST(FixedGroup, different_roots_are_named_at_every_rank_also_where_it_was_done) {
  const std::vector<std::vector<std::int32_t>> kRoots = {
      {1, 0}, {0, 1}, {1, 2, 2}, {0, 1, 2}, {2, 0, 0}};
  bool at_once = false;
  for (const OpKind kind : {OpKind::broadcast, OpKind::reduce, OpKind::gather, OpKind::scatter}) {
    for (const std::vector<std::int32_t>& roots : kRoots) {
      at_once = !at_once;
      FixedWorld world(roots.size());
      std::vector<std::vector<float>> values(roots.size(), std::vector<float>(6, 1.0F));
      std::vector<std::shared_ptr<Ticket>> calls;
      std::string what = std::string(kind_name(kind)) + (at_once ? " at once, roots" : ", roots");
      for (const std::int32_t root : roots) what += " " + std::to_string(root);
      SCOPED_TRACE(what);
      for (std::size_t r = 0; r < roots.size(); ++r) {
        calls.push_back(world.engines[r]->post(world.group,
                                               rooted(kind, roots[r], r, roots.size(), values[r])));
        if (!at_once) calls.back()->wait(20);  // some are done before the others have called
      }
      for (const Error& error : heard_of(world, calls)) {
        EXPECT_EQ(error.code, ErrorCode::mismatch) << error.text;
        EXPECT_GE(roots_in(error.text).size(), 2U) << error.text;
      }
      EXPECT_TRUE(wait_until([&] {  // the group goes on
        std::vector<std::shared_ptr<Ticket>> next;
        for (const auto& engine : world.engines) {
          next.push_back(engine->post(world.group, barrier()));
        }
        return std::none_of(next.begin(), next.end(),
                            [](const auto& ticket) { return outcome(ticket).failed(); });
      }));
    }
  }
}

TEST(FixedGroup, different_calls_that_all_wait_for_a_first_segment_are_named_too) {
  FixedWorld world(3);
  std::vector<std::vector<float>> values(3, std::vector<float>(4, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  tickets.push_back(world.engines[0]->post(world.group, all_reduce(values[0])));
  for (const std::size_t r : {1U, 2U}) {
    OpRequest request;
    request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, 4};
    request.inputs = {buffer(values[r])};
    request.outputs = {buffer(values[r])};
    tickets.push_back(world.engines[r]->post(world.group, std::move(request)));
  }
  for (const auto& ticket : tickets) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::mismatch) << error.text;
    EXPECT_NE(error.text.find("broadcast"), std::string::npos) << error.text;
  }
}

TEST(FixedGroup, who_was_done_before_anybody_saw_a_difference_hears_of_it_from_its_next_operation) {
  FixedWorld world(2);
  std::vector<float> values(4, 1.0F);
  OpRequest request;
  request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, values.size()};
  request.inputs = {buffer(values)};
  request.outputs = {buffer(values)};
  expect_success(world.engines[0]->post(world.group, std::move(request)));
  std::vector<float> others(4, 1.0F);
  const Error seen = outcome(world.engines[1]->post(world.group, all_reduce(others)));
  EXPECT_EQ(seen.code, ErrorCode::mismatch) << seen.text;
  // "Next" is the first one after the news: rank 0 may have completed others before it came.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  Error heard;
  while (!heard.failed() && std::chrono::steady_clock::now() < deadline) {
    const auto here = world.engines[0]->post(world.group, barrier());
    const auto there = world.engines[1]->post(world.group, barrier());
    heard = outcome(here);
    const Error told = outcome(there);
    if (told.failed()) {
      EXPECT_EQ(told.code, ErrorCode::mismatch) << told.text;
    }
  }
  EXPECT_EQ(heard.code, ErrorCode::mismatch);
  for (const char* word : {"broadcast", "all_reduce", "had completed"}) {
    EXPECT_NE(heard.text.find(word), std::string::npos) << heard.text;
  }
  std::vector<std::shared_ptr<Ticket>> next;
  for (const auto& engine : world.engines) next.push_back(engine->post(world.group, barrier()));
  for (const auto& ticket : next) expect_success(ticket);
}

TEST(FixedGroup, a_difference_from_ranks_that_have_closed_the_group_is_named) {
  for (const bool waits_before : {false, true}) {
    FixedWorld world(3);
    std::vector<std::vector<float>> values(3, std::vector<float>(4, 1.0F));
    const auto post = [&](std::size_t rank, std::int32_t root) {
      OpRequest request = rooted(OpKind::reduce, root, rank, 3, values[rank]);
      request.timeout_ms = 10000;
      return world.engines[rank]->post(world.group, std::move(request));
    };
    std::shared_ptr<Ticket> waits;
    if (waits_before) {
      waits = post(2, 2);
      EXPECT_FALSE(waits->wait(1500));  // it has asked the others, who had not called anything
    }
    // Rank 0 sends to rank 1 alone, and rank 1 drops that, since it has closed the group.
    for (const std::size_t rank : {1U, 0U}) {
      expect_success(post(rank, rank == 1 ? 2 : 1));
      world.engines[rank]->close(world.group);
    }
    if (!waits_before) waits = post(2, 2);
    const Error error = outcome(waits);
    EXPECT_EQ(error.code, ErrorCode::mismatch) << error.text;
    for (const char* part :
         {"rank 2 (", "calls reduce(sum, float32, 4 elements, root 2)", "rank 0 (",
          "has completed reduce(sum, float32, 4 elements, root 1)"}) {
      EXPECT_NE(error.text.find(part), std::string::npos) << error.text;
    }
  }
}

TEST(FixedGroup, a_rank_that_ends_while_others_still_connect_is_lost_to_them_at_once) {
  const std::vector<std::shared_ptr<Engine>> engines = make_engines(3);
  const std::vector<Handle> handles = handles_of(engines);
  const GroupId id{7};
  const Mute mute;  // which refuses nobody: neither gives up before rank 0 has left
  std::vector<std::shared_ptr<Ticket>> made;
  for (std::size_t r = 0; r < 3; ++r) {
    std::vector<Handle> seen = handles;  // 1 and 2 do not reach each other
    if (r > 0) seen[3 - r].addresses = {mute.address()};
    made.push_back(
        engines[r]->configure_fixed(id, "world", seen, static_cast<std::int32_t>(r), 3000));
  }
  EXPECT_TRUE(wait_until([&] { return engines[0]->links().value().size() == 2; }));
  engines[0]->shutdown();
  for (const std::size_t r : {1U, 2U}) {
    const Error error = outcome(made[r]);
    EXPECT_EQ(error.code, ErrorCode::peer_lost) << "the group cannot be made any more";
    EXPECT_NE(error.text.find("rank 0"), std::string::npos) << error.text;
  }
}

TEST(FixedGroup, who_gave_up_before_a_link_was_up_tells_those_that_still_wait) {
  const std::vector<std::shared_ptr<Engine>> engines = make_engines(2);
  std::vector<Handle> handles = handles_of(engines);
  const GroupId first{7};
  const GroupId id{8};
  // The number is used up at rank 0, which has no link to rank 1 then.
  auto alone = handles;
  alone[1].addresses = {"127.0.0.1:1"};
  const auto given_up = engines[0]->configure_fixed(id, "world", alone, 0, kTestMs);
  engines[0]->abort(id, "enough");
  EXPECT_TRUE(outcome(given_up).failed());
  engines[0]->close(id);
  for (std::size_t r = 0; r < 2; ++r) {
    static_cast<void>(engines[r]->configure_fixed(first, "other", handles,
                                                  static_cast<std::int32_t>(r), kTestMs));
  }
  const auto made = engines[1]->configure_fixed(id, "world", handles, 1, kTestMs);
  const Error error = outcome(made);
  EXPECT_NE(error.text.find("rank 0"), std::string::npos) << error.text;
  EXPECT_NE(error.text.find("has aborted the group: enough"), std::string::npos) << error.text;
}

TEST(FixedGroup, who_gives_up_while_the_group_connects_ends_the_waiting_of_the_others) {
  const std::vector<std::shared_ptr<Engine>> engines = make_engines(2);
  std::vector<Handle> handles = handles_of(engines);
  PublicKey key{};  // of nobody, whom the others await, since its id is the smallest
  do {
    key = KeyPair::make().public_key();
  } while (peer_of(key) > std::min(handles[0].peer, handles[1].peer));
  handles.push_back({peer_of(key), {"127.0.0.1:1"}, key});
  const GroupId id{9};
  std::vector<std::shared_ptr<Ticket>> made;
  for (std::size_t r = 0; r < 2; ++r) {
    made.push_back(
        engines[r]->configure_fixed(id, "world", handles, static_cast<std::int32_t>(r), 60000));
  }
  EXPECT_FALSE(made[1]->wait(300));
  engines[0]->abort(id, "enough");
  for (const auto& ticket : made) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::closed);
    EXPECT_NE(error.text.find("rank 0"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("enough"), std::string::npos) << error.text;
  }
}

TEST(FixedGroup, a_rank_that_does_not_call_is_named_after_the_time_out) {
  FixedWorld world(3);
  std::vector<float> a(10);
  std::vector<float> b(10);
  OpRequest first = all_reduce(a);
  OpRequest second = all_reduce(b);
  first.timeout_ms = second.timeout_ms = 300;
  const auto one = world.engines[0]->post(world.group, std::move(first));
  const auto two = world.engines[1]->post(world.group, std::move(second));
  for (const auto& ticket : {one, two}) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::timed_out) << error.text;
    EXPECT_NE(error.text.find("rank 2"), std::string::npos) << error.text;
    EXPECT_NE(error.text.find("did not call it"), std::string::npos) << error.text;
  }
}

TEST(FixedGroup, overlapping_operations_run_one_after_the_other) {
  FixedWorld world(2);
  std::vector<std::vector<float>> values(2, std::vector<float>(100000, 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (int k = 0; k < 5; ++k) {
    for (std::size_t r = 0; r < 2; ++r) {
      tickets.push_back(world.engines[r]->post(world.group, all_reduce(values[r])));
    }
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  EXPECT_EQ(values[0].back(), 32.0F);
  EXPECT_EQ(values[1].front(), 32.0F);
}

}  // namespace
}  // namespace pccl::testing
