#include "collectives/ring.h"

#include "runner.h"

namespace pccl::test {
namespace {

/// Of ranks that stand the other way round, with parts of different sizes, some of 0 bytes.
RingOfParts odd_ring(const CollectiveArgs& args) {
  const std::uint32_t n = args.size;
  RingOfParts ring;
  ring.next = around(args.rank, -1, n);
  ring.previous = around(args.rank, 1, n);
  ring.own = n - 1 - args.rank;
  std::uint64_t offset = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint64_t rest = args.input_bytes[0] - offset;
    const std::uint64_t bytes = i + 1 == n ? rest : std::min<std::uint64_t>(rest, i * i % 7 * 8);
    ring.parts.push_back({offset, bytes});
    offset += bytes;
  }
  return ring;
}

Schedule both_halves(const CollectiveArgs& args) {
  const RingOfParts ring = odd_ring(args);
  Builder b(args);
  const auto summed = reduce_half(b, ring, {5, 2}, Builder::Last::yes);
  gather_half(b, ring, {100, 20}, summed ? following(*summed) : Order{});
  return b.take();
}

TEST(RingHalves, MakeAnAllReduceInEveryInterleaving) {
  run_all({.kind = OpKind::all_reduce}, both_halves);
  run_all({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg}, both_halves);
  expect_one_expression({.kind = OpKind::all_reduce, .counts = {41}}, both_halves);
}

TEST(RingHalves, CountChannelsAndTurnsFromTheFirstStep) {
  const CollectiveArgs args = args_of({.kind = OpKind::all_reduce, .size = 4, .counts = {41}}, 0);
  Builder b(args);
  RingOfParts ring = odd_ring(args);
  ring.parts.assign(4, Part{0, 80});
  (void)reduce_half(b, ring, {5, 2}, Builder::Last::no);
  const Schedule schedule = b.take();
  ASSERT_EQ(schedule.steps.size(), 6U);
  for (std::uint32_t s = 0; s < 3; ++s) {
    EXPECT_EQ(schedule.steps[2 * s].channel, 5 + s);
    EXPECT_EQ(schedule.steps[2 * s + 1].channel, 5 + s);
    EXPECT_EQ(schedule.steps[2 * s + 1].turn, 2 + s);
  }
}

TEST(RingHalves, SayWhichStepMakesTheSumIfThereIsOne) {
  CollectiveArgs args =
      args_of({.kind = OpKind::all_reduce, .reduce = ReduceOp::avg, .size = 3, .counts = {9}}, 1);
  for (const Builder::Last last : {Builder::Last::no, Builder::Last::yes}) {
    Builder b(args);
    const RingOfParts ring = odd_ring(args);
    const auto summed = reduce_half(b, ring, {0, 1}, last);
    const Schedule schedule = b.take();
    ASSERT_TRUE(summed.has_value());
    EXPECT_EQ(schedule.steps[*summed].to, output(ring.parts[ring.own]));
    for (std::uint32_t s = 0; s < schedule.steps.size(); ++s) {
      EXPECT_EQ(schedule.steps[s].finish, s == *summed && last == Builder::Last::yes);
    }
  }
  Builder b(args);
  args.rank = 2;  // its part is the first one, of 0 bytes
  EXPECT_FALSE(reduce_half(b, odd_ring(args), {0, 1}, Builder::Last::yes).has_value());
  EXPECT_FALSE(reduce_half(b, {1, 1, {{0, 8}}, 0}, {0, 1}, Builder::Last::yes).has_value());
}

}  // namespace
}  // namespace pccl::test
