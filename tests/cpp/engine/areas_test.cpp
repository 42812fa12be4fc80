// Large all-reduces of ranks on one machine, which read each other's memory: results, losses in
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
  const std::size_t ranks = tickets[0]->contributors.size();
  EXPECT_TRUE(ranks == 3 || ranks == 4) << "committed before, or replayed";
  for (std::size_t i = 0; i < count; i += 1 + count / 5000) {
    float sum = 0;
    for (std::size_t r = 0; r < ranks; ++r) sum += value(r, i);
    ASSERT_EQ(values[0][i], sum) << ranks << " " << i;
  }
}

}  // namespace
}  // namespace pccl::testing
