// Large operations of ranks on one machine, which read each other's memory: results, losses in
// the middle, operations for which an area has no room.
#include "elastic_run.h"

namespace pccl::testing {
namespace {

EngineOptions in_memory() {
  EngineOptions options;
  options.links.shared_memory = true;
  return options;
}

/// So many elements of float32 go through areas, and are no multiple of anything.
std::size_t count_for(std::size_t ranks) { return ranks * kAreaBytesMinPerRank / 4 + 1001; }

std::vector<float> values_of(std::size_t rank, std::size_t count) {
  return repeating(count, 997, [&](std::size_t i) {
    return 1.0F / static_cast<float>(3 + rank + i) + static_cast<float>(rank);
  });
}

/// Own values first, then those of the ranks behind the one that adds the part.
float sum_at(std::size_t i, std::size_t ranks, std::size_t count) {
  const std::size_t longer = count % ranks;
  const std::size_t each = count / ranks;
  std::size_t owner = 0;
  for (std::size_t end = 0; owner < ranks; ++owner) {
    end += each + (owner < longer ? 1 : 0);
    if (i < end) break;
  }
  float sum = 0;
  for (std::size_t d = 0; d < ranks; ++d) {
    const std::size_t r = (owner + d) % ranks;
    const float value = 1.0F / static_cast<float>(3 + r + i % 997) + static_cast<float>(r);
    sum = d == 0 ? value : sum + value;
  }
  return sum;
}

std::uint64_t shared_by(const FixedWorld& world, std::size_t rank) {
  return world.engines[rank]->counters().value().bytes_shared;
}

TEST(Areas, every_rank_has_the_sum_in_its_order_in_place_and_beside_its_input) {
  for (const std::size_t ranks : {3U, 4U}) {
    FixedWorld world(ranks, GroupId{77}, in_memory());
    ASSERT_TRUE(world.engines[0]->view(world.group).lines.local);
    const std::size_t count = count_for(ranks);
    for (const bool in_place : {true, false}) {
      std::vector<std::vector<float>> inputs(ranks);
      std::vector<std::vector<float>> outputs(ranks, std::vector<float>(in_place ? 0 : count));
      std::vector<std::shared_ptr<Ticket>> tickets;
      for (std::size_t r = 0; r < ranks; ++r) {
        inputs[r] = values_of(r, count);
        OpRequest request = all_reduce(inputs[r]);
        if (!in_place) request.outputs = {buffer(outputs[r])};
        tickets.push_back(world.engines[r]->post(world.group, request));
      }
      for (const auto& ticket : tickets) expect_success(ticket);
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::vector<float>& result = in_place ? inputs[r] : outputs[r];
        for (std::size_t i = 0; i < count; i += 1 + count / 5000) {
          ASSERT_EQ(result[i], sum_at(i, ranks, count)) << ranks << " " << r << " " << i;
        }
        ASSERT_TRUE(same_bits(result, in_place ? inputs[0] : outputs[0])) << r;
        ASSERT_TRUE(in_place || same_bits(inputs[r], values_of(r, count))) << r;
      }
    }
  }
}

/// Of each rank's part among all `values`.
std::vector<Buffer> parts_of(std::vector<float>& values, std::size_t ranks) {
  const std::size_t bytes = values.size() / ranks * sizeof(float);
  std::vector<Buffer> parts;
  for (std::size_t r = 0; r < ranks; ++r) parts.push_back({buffer(values).data + r * bytes, bytes});
  return parts;
}

/// Into `all`, of which `own` may be the part of this rank.
OpRequest all_gather(Buffer own, std::vector<float>& all, std::size_t ranks) {
  OpRequest request;
  request.descriptor = {OpKind::all_gather, ReduceOp::none, DType::f32, -1, all.size() / ranks};
  request.inputs = {own};
  request.outputs = parts_of(all, ranks);
  return request;
}

OpRequest reduce_scatter(std::vector<float>& all, Buffer own, std::size_t ranks,
                         ReduceOp op = ReduceOp::sum) {
  OpRequest request;
  request.descriptor = {OpKind::reduce_scatter, op, DType::f32, -1, all.size() / ranks};
  request.inputs = parts_of(all, ranks);
  request.outputs = {own};
  return request;
}

TEST(Areas, every_rank_gathers_all_parts_in_place_and_beside_its_input) {
  for (const std::size_t ranks : {3U, 4U}) {
    FixedWorld world(ranks, GroupId{77}, in_memory());
    const std::size_t part = count_for(ranks) / ranks;
    const std::uint64_t before = shared_by(world, 0);
    for (const bool in_place : {true, false}) {
      std::vector<std::vector<float>> own(ranks);
      std::vector<std::vector<float>> all(ranks, std::vector<float>(part * ranks));
      std::vector<std::shared_ptr<Ticket>> tickets;
      for (std::size_t r = 0; r < ranks; ++r) {
        own[r] = values_of(r, part);
        const Buffer place = parts_of(all[r], ranks)[r];
        if (in_place) std::memcpy(place.data, own[r].data(), place.bytes);
        tickets.push_back(world.engines[r]->post(
            world.group, all_gather(in_place ? place : buffer(own[r]), all[r], ranks)));
      }
      for (const auto& ticket : tickets) expect_success(ticket);
      std::vector<float> expected;
      for (const auto& values : own) expected.insert(expected.end(), values.begin(), values.end());
      for (std::size_t r = 0; r < ranks; ++r) ASSERT_TRUE(same_bits(all[r], expected)) << r;
    }
    EXPECT_GE(shared_by(world, 0) - before, 2 * (ranks - 1) * part * sizeof(float));
  }
}

TEST(Areas, every_rank_adds_its_part_in_its_order_in_place_and_beside_its_input) {
  for (const std::size_t ranks : {3U, 4U}) {
    FixedWorld world(ranks, GroupId{77}, in_memory());
    const std::size_t part = count_for(ranks) / ranks;
    for (const bool in_place : {true, false}) {
      std::vector<std::vector<float>> all(ranks);
      std::vector<std::vector<float>> own(ranks, std::vector<float>(part));
      std::vector<std::shared_ptr<Ticket>> tickets;
      for (std::size_t r = 0; r < ranks; ++r) {
        all[r] = values_of(r, part * ranks);
        const Buffer to = in_place ? parts_of(all[r], ranks)[r] : buffer(own[r]);
        tickets.push_back(world.engines[r]->post(world.group, reduce_scatter(all[r], to, ranks)));
      }
      for (const auto& ticket : tickets) expect_success(ticket);
      for (std::size_t r = 0; r < ranks; ++r) {
        const float* result = in_place ? all[r].data() + r * part : own[r].data();
        for (std::size_t i = 0; i < part; i += 1 + part / 5000) {
          ASSERT_EQ(result[i], sum_at(r * part + i, ranks, part * ranks)) << ranks << " " << r;
        }
        ASSERT_TRUE(in_place || same_bits(all[r], values_of(r, part * ranks))) << r;
      }
    }
  }
}

TEST(Areas, a_reduce_scatter_of_averages_divides_once) {
  FixedWorld world(3, GroupId{77}, in_memory());
  const std::size_t part = count_for(3) / 3;
  std::vector<std::vector<float>> all(3, std::vector<float>(3 * part, 4.0F));
  std::vector<std::vector<float>> own(3, std::vector<float>(part));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < 3; ++r) {
    tickets.push_back(world.engines[r]->post(
        world.group, reduce_scatter(all[r], buffer(own[r]), 3, ReduceOp::avg)));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (const auto& result : own) {
    EXPECT_EQ(std::ranges::count(result, 4.0F), static_cast<std::ptrdiff_t>(part));
  }
}

TEST(Areas, an_average_is_divided_once) {
  FixedWorld world(3, GroupId{77}, in_memory());
  std::vector<std::vector<float>> values(3, std::vector<float>(count_for(3), 4.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < 3; ++r) {
    tickets.push_back(world.engines[r]->post(world.group, all_reduce(values[r], ReduceOp::avg)));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (const auto& result : values) {
    EXPECT_EQ(std::ranges::count(result, 4.0F), static_cast<std::ptrdiff_t>(result.size()));
  }
}

TEST(Areas, more_operations_than_an_area_has_room_for_end_rightly_at_once) {
  constexpr std::size_t kRanks = 3;
  constexpr std::size_t kOfGroup = 3;  // of which two run at once
  constexpr std::size_t kGroups = kAreaSlots / (2 * kRanks * kAreaDepth) + 1;
  FixedWorld world(kRanks, GroupId{100}, in_memory());
  for (std::size_t g = 1; g < kGroups; ++g) world.connect(GroupId{100 + g});
  const std::size_t count = count_for(kRanks);
  std::vector<std::vector<float>> values;
  std::vector<std::shared_ptr<Ticket>> tickets;
  values.reserve(kGroups * kOfGroup * kRanks);
  for (std::size_t i = 0; i < kGroups * kOfGroup * kRanks; ++i) {
    const auto part = static_cast<float>(i / kRanks + 1);
    values.emplace_back(count, static_cast<float>(i % kRanks + 1) * part);
  }
  // Rank 0 has all of them under way before another one has begun any.
  for (std::size_t r = 0; r < kRanks; ++r) {
    for (std::size_t i = 0; i < kGroups * kOfGroup; ++i) {
      const GroupId group{100 + i % kGroups};
      tickets.push_back(world.engines[r]->post(group, all_reduce(values[i * kRanks + r])));
    }
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float sum = 6.0F * static_cast<float>(i / kRanks + 1);
    ASSERT_EQ(std::ranges::count(values[i], sum), static_cast<std::ptrdiff_t>(count)) << i;
  }
}

TEST(Areas, gathers_and_scatters_of_many_groups_at_once_end_rightly) {
  constexpr std::size_t kRanks = 4;
  constexpr std::size_t kSlots = 2 * kAreaDepth * (1 + kRanks - 1);  // of one of each
  constexpr std::size_t kGroups = kAreaSlots / kSlots + 2;
  FixedWorld world(kRanks, GroupId{100}, in_memory());
  for (std::size_t g = 1; g < kGroups; ++g) world.connect(GroupId{100 + g});
  const std::size_t part = count_for(kRanks) / kRanks;
  struct Of {
    std::vector<float> own;
    std::vector<float> gathered;
    std::vector<float> added;
    std::vector<float> sum;
  };
  std::vector<Of> of(kGroups * kRanks);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < kRanks; ++r) {
    for (std::size_t g = 0; g < kGroups; ++g) {
      Of& one = of[g * kRanks + r];
      one.own = values_of(r + g, part);
      one.gathered.resize(part * kRanks);
      one.added.assign(part * kRanks, static_cast<float>((r + 1) * (g + 1)));
      one.sum.resize(part);
      Engine& engine = *world.engines[r];
      tickets.push_back(
          engine.post(GroupId{100 + g}, all_gather(buffer(one.own), one.gathered, kRanks)));
      tickets.push_back(
          engine.post(GroupId{100 + g}, reduce_scatter(one.added, buffer(one.sum), kRanks)));
    }
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (std::size_t g = 0; g < kGroups; ++g) {
    std::vector<float> expected;
    for (std::size_t r = 0; r < kRanks; ++r) {
      const auto& own = of[g * kRanks + r].own;
      expected.insert(expected.end(), own.begin(), own.end());
    }
    for (std::size_t r = 0; r < kRanks; ++r) {
      const Of& one = of[g * kRanks + r];
      ASSERT_TRUE(same_bits(one.gathered, expected)) << g << " " << r;
      ASSERT_EQ(std::ranges::count(one.sum, static_cast<float>(10 * (g + 1))),
                static_cast<std::ptrdiff_t>(part));
    }
  }
}

TEST(Areas, one_rank_without_memory_keeps_the_group_on_rings) {
  auto engines = make_engines(2, in_memory());
  engines.push_back(make_engines(1).front());
  const std::vector<Handle> handles = handles_of(engines);
  std::vector<std::shared_ptr<Ticket>> made;
  for (std::size_t r = 0; r < 3; ++r) {
    made.push_back(engines[r]->configure_fixed(GroupId{7}, "world", handles,
                                               static_cast<std::int32_t>(r), kTestMs));
  }
  for (const auto& ticket : made) expect_success(ticket);
  std::vector<std::vector<float>> values(3, std::vector<float>(count_for(3), 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_FALSE(engines[r]->view(GroupId{7}).lines.local);
    tickets.push_back(engines[r]->post(GroupId{7}, all_reduce(values[r])));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (const auto& result : values) {
    EXPECT_EQ(std::ranges::count(result, 3.0F), static_cast<std::ptrdiff_t>(result.size()));
  }
}

TEST(Areas, what_a_rank_gives_is_counted_as_shared) {
  FixedWorld world(3, GroupId{77}, in_memory());
  const std::uint64_t before = shared_by(world, 0);
  std::vector<std::vector<float>> values(3, std::vector<float>(count_for(3), 1.0F));
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < 3; ++r) {
    tickets.push_back(world.engines[r]->post(world.group, all_reduce(values[r])));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  const std::uint64_t bytes = 4 * count_for(3);
  EXPECT_GE(shared_by(world, 0) - before, bytes / 3 * 4 - 16) << "two parts, and its sums twice";
}

TEST(Areas, a_loss_in_the_middle_restores_and_replays_among_the_survivors) {
  Founded run(4, in_memory());
  auto& [master, peers, group] = run;
  const std::size_t count = 4 * count_for(4);
  std::vector<std::vector<float>> values(4);
  const auto value = [](std::size_t r, std::size_t i) {  // the sums of which are exact
    return static_cast<float>((r + 1) * 1000 + i % 997);
  };
  for (std::size_t r = 0; r < 4; ++r) {
    values[r] = repeating(count, 997, [&](std::size_t i) { return value(r, i); });
  }
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < 3; ++r) {
    tickets.push_back(peers[r].engine->post(group, all_reduce(values[r])));
  }
  // The fourth one comes late, has given and taken a part of it all, and dies.
  const auto victims = peers[3].engine->post(group, all_reduce(values[3]));
  EXPECT_TRUE(wait_until([&] {
    const auto under_way = peers[0].engine->in_flight(group).value();
    return under_way.empty() || under_way.at(0).bytes_received > 0;
  }));
  peers[3].engine->vanish();
  for (const auto& ticket : tickets) expect_success(ticket);
  ASSERT_TRUE(same_bits(values[0], values[1]));
  ASSERT_TRUE(same_bits(values[0], values[2]));
  const std::size_t ranks = tickets[0]->seen<CollectiveResult>().contributors.size();
  EXPECT_TRUE(ranks == 3 || ranks == 4) << "committed before, or replayed";
  for (std::size_t i = 0; i < count; i += 1 + count / 5000) {
    float sum = 0;
    for (std::size_t r = 0; r < ranks; ++r) sum += value(r, i);
    ASSERT_EQ(values[0][i], sum) << ranks << " " << i;
  }
}

TEST(Areas, gathers_and_scatters_whose_member_dies_in_the_middle_fail_with_outputs_unchanged) {
  Founded run(4, in_memory());
  auto& [master, peers, group] = run;
  const std::size_t part = 4 * count_for(4) / 4;
  struct Of {
    std::vector<float> own;
    std::vector<float> gathered;
    std::vector<float> added;
    std::vector<float> sum;
    std::shared_ptr<Ticket> gather;
    std::shared_ptr<Ticket> scatter;
  };
  std::vector<Of> of(4);
  const auto count_of = [](const std::vector<float>& values, float value) {
    return static_cast<std::size_t>(std::ranges::count(values, value));
  };
  for (std::size_t r = 0; r < 4; ++r) {
    Of& one = of[r];
    one.own.assign(part, static_cast<float>(r + 1));
    one.gathered.assign(4 * part, -1.0F);
    one.added.assign(4 * part, static_cast<float>(10 * (r + 1)));
    one.sum.assign(part, -1.0F);
    Engine& engine = *peers[r].engine;
    one.gather = engine.post(group, all_gather(buffer(one.own), one.gathered, 4));
    one.scatter = engine.post(group, reduce_scatter(one.added, buffer(one.sum), 4));
  }
  EXPECT_TRUE(wait_until([&] {
    const auto under_way = peers[0].engine->in_flight(group).value();
    return under_way.empty() || under_way.at(0).bytes_received > 0;
  }));
  peers[3].engine->vanish();
  for (std::size_t r = 0; r < 3; ++r) {
    const Of& one = of[r];
    const Error gathered = outcome(one.gather);
    const Error scattered = outcome(one.scatter);
    if (gathered.failed()) {
      EXPECT_EQ(gathered.code, ErrorCode::peer_lost) << gathered.text;
      EXPECT_EQ(count_of(one.gathered, -1.0F), 4 * part) << r;
    } else {  // committed before the loss
      for (const float from : {1.0F, 2.0F, 3.0F, 4.0F}) {
        EXPECT_EQ(count_of(one.gathered, from), part) << r;
      }
    }
    EXPECT_EQ(count_of(one.sum, scattered.failed() ? -1.0F : 100.0F), part) << r;
  }
}

}  // namespace
}  // namespace pccl::testing
