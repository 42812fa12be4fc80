// Quantised all-reduces between engines over real sockets: the bits of a direct computation at
// every rank, restored inputs and a replay after a loss, and a mismatch where ranks differ.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../kernels/quantisations.h"
#include "base/random.h"
#include "elastic_run.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"

namespace pccl::testing {
namespace {

using Values = std::vector<float>;

OpRequest quantised(Values& values, Quantisation how, ReduceOp op = ReduceOp::sum) {
  OpRequest request = all_reduce(values, op);
  request.descriptor.quantisation = how;
  return request;
}

/// Random values that repeat after a prime number of them: no two blocks begin alike.
Values contribution(std::size_t rank, std::size_t count) {
  constexpr std::size_t kPeriod = 65537;
  Random random(rank + 1);
  return repeating(count, kPeriod,
                   [&](std::size_t) { return static_cast<float>(random.below(20001)) / 1e4F - 1; });
}

Values expected(const std::vector<Values>& inputs, Quantisation how, ReduceOp op) {
  const std::size_t count = inputs.front().size();
  Values sum(count);
  std::vector<std::byte> codes(quantised_bytes(count, how));
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    quantise(codes.data(), inputs[rank].data(), count, how);
    if (rank == 0) {
      dequantise(sum.data(), codes.data(), count, how);
    } else {
      add_dequantised(sum.data(), codes.data(), count, how);
    }
  }
  if (op == ReduceOp::avg) {
    finish_average(reinterpret_cast<std::byte*>(sum.data()), count, DType::f32, inputs.size());
  }
  quantise(codes.data(), sum.data(), count, how);
  dequantise(sum.data(), codes.data(), count, how);
  return sum;
}

void reduce_and_check(FixedWorld& world, std::vector<Values> memory, Quantisation how,
                      ReduceOp op) {
  const Values right = expected(memory, how, op);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t r = 0; r < memory.size(); ++r) {
    tickets.push_back(world.engines[r]->post(world.group, quantised(memory[r], how, op)));
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (std::size_t r = 0; r < memory.size(); ++r) {
    EXPECT_TRUE(same_bits(memory[r], right))
        << quantisation_name(how) << ", rank " << r << ", " << right.size() << " values";
  }
}

TEST(Quantised, EveryKindGivesTheBitsOfADirectComputationAtEveryRank) {
  FixedWorld world(3);
  for (const Quantisation how : kQuantisations) {
    for (const std::size_t count : {0U, 1U, 255U, 257U, 5000U, 500001U}) {
      std::vector<Values> memory;
      for (std::size_t r = 0; r < 3; ++r) memory.push_back(contribution(r, count));
      reduce_and_check(world, memory, how, count % 2 == 0 ? ReduceOp::sum : ReduceOp::avg);
    }
  }
}

TEST(Quantised, MoreChunksThanMayBeUnderWay) {
  FixedWorld world(2);
  const std::size_t count = 140 * kQuantisedChunkValues + 3;
  reduce_and_check(world, {contribution(0, count), contribution(1, count)},
                   Quantisation::int8_minmax, ReduceOp::avg);
}

TEST(Quantised, SpecialValuesSpoilTheirBlocksAlone) {
  FixedWorld world(2);
  for (const Quantisation how : kQuantisations) {
    Values odd(6 * kQuantisedBlock, 0.5F);
    odd[3] = std::numeric_limits<float>::quiet_NaN();
    odd[kQuantisedBlock + 3] = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < kQuantisedBlock; ++i) {
      odd[2 * kQuantisedBlock + i] = std::numeric_limits<float>::denorm_min();
    }
    odd[3 * kQuantisedBlock + 3] = 1e37F;
    Values plain(odd.size(), 0.25F);
    reduce_and_check(world, {odd, plain}, how, ReduceOp::sum);
    const Values result = expected({odd, plain}, how, ReduceOp::sum);
    EXPECT_TRUE(std::isnan(result[3])) << quantisation_name(how);
    EXPECT_FALSE(std::isfinite(result[kQuantisedBlock + 3])) << quantisation_name(how);
    for (std::size_t i = 4 * kQuantisedBlock; i < odd.size(); ++i) {
      ASSERT_NEAR(result[i], 0.75F, 1e-6F) << quantisation_name(how);
    }
  }
}

TEST(Quantised, ARankAloneRoundsNothing) {
  FixedWorld world(1);
  Values values = contribution(0, 1000);
  const Values before = values;
  expect_success(world.engines[0]->post(world.group, quantised(values, Quantisation::int4_minmax)));
  EXPECT_TRUE(same_bits(values, before));
}

TEST(Quantised, InputsThatComePieceByPieceAreWaitedFor) {
  FixedWorld world(2);
  const std::size_t count = 3 * kQuantisedChunkValues;
  const std::vector<Values> inputs{contribution(0, count), contribution(1, count)};
  Values first(count, -1e30F);
  Values second = inputs[1];
  OpRequest request = quantised(first, Quantisation::int8_minmax);
  const auto gate = std::make_shared<InputGate>();
  request.gate = gate;
  const auto mine = world.engines[0]->post(world.group, std::move(request));
  const auto other =
      world.engines[1]->post(world.group, quantised(second, Quantisation::int8_minmax));
  for (std::size_t done = 0; done < count;) {
    EXPECT_FALSE(mine->wait(20));
    const std::size_t next = std::min(done + kQuantisedChunkValues / 2 + 7, count);
    std::copy(inputs[0].begin() + static_cast<std::ptrdiff_t>(done),
              inputs[0].begin() + static_cast<std::ptrdiff_t>(next),
              first.begin() + static_cast<std::ptrdiff_t>(done));
    done = next;
    gate->bytes.store(done * sizeof(float), std::memory_order_release);
    world.engines[0]->inputs_came(world.group, gate);
  }
  expect_success(mine);
  expect_success(other);
  const Values right = expected(inputs, Quantisation::int8_minmax, ReduceOp::sum);
  EXPECT_TRUE(same_bits(first, right));
  EXPECT_TRUE(same_bits(second, right));
}

void expect_both_descriptions(const std::shared_ptr<Ticket>& ticket, Quantisation first) {
  const Error error = outcome(ticket);
  EXPECT_EQ(error.code, ErrorCode::mismatch);
  const std::string exact = "all_reduce(sum, float32, 100000 elements)";
  const std::string fewer = "all_reduce(sum, float32, 100000 elements, quantised to " +
                            std::string(quantisation_name(first)) + ")";
  EXPECT_NE(error.text.find(exact), std::string::npos) << error.text;
  EXPECT_NE(error.text.find(fewer), std::string::npos) << error.text;
}

TEST(Quantised, RanksThatDifferFailWithBothDescriptions) {
  FixedWorld world(2);
  for (const Quantisation how : kQuantisations) {
    std::vector<Values> memory{contribution(0, 100000), contribution(1, 100000)};
    const auto a = world.engines[0]->post(world.group, quantised(memory[0], how));
    const auto b = world.engines[1]->post(world.group, all_reduce(memory[1]));
    expect_both_descriptions(a, how);
    expect_both_descriptions(b, how);
  }
}

TEST(Quantised, MembersThatDifferKeepTheirInputs) {
  Founded run(2);
  std::vector<Values> memory{contribution(0, 100000), contribution(1, 100000)};
  const std::vector<Values> before = memory;
  const Quantisation how = Quantisation::int8_minmax;
  const auto a = run.peers[0].engine->post(run.group, quantised(memory[0], how));
  const auto b = run.peers[1].engine->post(run.group, all_reduce(memory[1]));
  expect_both_descriptions(a, how);
  expect_both_descriptions(b, how);
  EXPECT_TRUE(same_bits(memory[0], before[0]));
  EXPECT_TRUE(same_bits(memory[1], before[1]));
}

TEST(Quantised, ALostMemberIsReplayedWithoutAsAnyOther) {
  Founded run(3);
  const std::size_t count = 4000000;
  std::vector<Values> memory;
  for (std::size_t r = 0; r < 3; ++r) memory.push_back(contribution(r, count));
  const std::vector<Values> before = memory;
  const auto first =
      run.peers[0].engine->post(run.group, quantised(memory[0], Quantisation::int8_minmax));
  const auto second =
      run.peers[1].engine->post(run.group, quantised(memory[1], Quantisation::int8_minmax));
  run.peers[2].engine->vanish();
  expect_success(first);
  expect_success(second);
  // The ranks of the survivors may differ from the order of `peers`; of two, the order is no
  // matter.
  const Values right = expected({before[0], before[1]}, Quantisation::int8_minmax, ReduceOp::sum);
  EXPECT_TRUE(same_bits(memory[0], right));
  EXPECT_TRUE(same_bits(memory[1], right));
}

}  // namespace
}  // namespace pccl::testing
