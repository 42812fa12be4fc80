// Which operations of a group wait for others: the rules of must_wait, without links or epochs.
#include "engine/operation_table.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace pccl {
namespace {

constexpr std::uint64_t kPreimageBytesMax = 100;

/// Operations of one member, so a started one is complete at once.
class Table : public ::testing::Test, public OperationPort {
 protected:
  explicit Table(GroupKind kind = GroupKind::fixed) : table(kind, kPreimageBytesMax) {}

  Pending& add(OpKind kind, std::uint64_t begin, std::uint64_t bytes) {
    return add(kind, kind == OpKind::barrier ? Buffer{} : Buffer{memory_.data() + begin, bytes});
  }
  Pending& add(OpKind kind, Buffer memory) {
    OpRequest request;
    request.descriptor = {kind, ReduceOp::sum, DType::u8, -1, memory.bytes};
    if (kind != OpKind::barrier) {
      request.outputs = {memory};
      request.inputs = request.outputs;
    }
    return add(std::move(request));
  }
  Pending& add(OpRequest request) {
    return table.add(std::make_unique<Operation>(pool_, OpKey{0, issued_++}, std::move(request),
                                                 std::make_shared<Ticket>()),
                     nullptr);
  }
  Pending& sum(std::uint64_t begin, std::uint64_t bytes) {
    return add(OpKind::all_reduce, begin, bytes);
  }
  /// Of so many bytes as go through areas where three ranks are on one machine.
  Pending& large(std::size_t number, OpKind kind = OpKind::all_reduce) {
    return add(kind, large_memory(number));
  }
  Buffer large_memory(std::size_t number) {
    constexpr std::size_t kLarge = kAreaRanksMin * kAreaBytesMinPerRank;
    large_.resize(8 * kLarge);
    return {large_.data() + number * kLarge, kLarge};
  }
  /// It begins, among three ranks, and hears of no other one.
  void begin(Pending& pending, bool local) {
    pending.op->start(*this, {0, 1, 2}, 0, 1, false, {.local = local});
  }
  Buffer at(std::uint64_t begin, std::uint64_t bytes) { return {memory_.data() + begin, bytes}; }
  Pending& barrier() { return add(OpKind::barrier, 0, 0); }
  void complete(Pending& pending) { pending.op->start(*this, {0}, 0, 1, false); }
  std::vector<OpKey> to_ask() {
    std::vector<OpKey> keys;
    while (const Pending* next =
               table.next_to_ask(keys.empty() ? std::nullopt : std::optional(keys.back()))) {
      keys.push_back(next->key());
    }
    return keys;
  }
  void finish(OpKey key) {
    table.stopped(table.at(key));
    static_cast<void>(table.take(key));
  }
  void send_segment(Operation&, std::uint32_t, std::uint32_t, std::uint64_t, const std::byte*,
                    std::uint32_t, std::uint32_t) override {}

  OperationTable table;

 private:
  BufferPool pool_{0};
  std::array<std::byte, 1000> memory_{};
  std::vector<std::byte> large_;
  std::uint64_t issued_ = 0;
};

class ElasticTable : public Table {
 protected:
  ElasticTable() : Table(GroupKind::elastic) {}
};

TEST_F(Table, what_touches_the_same_memory_runs_in_the_order_of_the_calls) {
  const OpKey first = sum(0, 10).key();
  Pending& same = sum(9, 10);
  Pending& beside = sum(19, 10);
  EXPECT_FALSE(table.must_wait(table.at(first)));
  EXPECT_TRUE(table.must_wait(same));
  EXPECT_FALSE(table.must_wait(beside));
  finish(first);
  EXPECT_FALSE(table.must_wait(same));
}

TEST_F(Table, two_large_operations_at_most_go_through_areas_at_once_and_small_ones_pass_them) {
  Pending& first = large(0);
  Pending& over_a_line = large(1);
  Pending& second = large(2);
  Pending& third = large(3);
  Pending& copied = add(OpKind::broadcast, third.op->request().outputs[0]);
  Pending& gathers = large(4, OpKind::all_gather);
  Pending& scatters = large(5, OpKind::reduce_scatter);
  Pending& broadcasts = large(6, OpKind::broadcast);
  OpRequest uneven = gathers.op->request();
  uneven.outputs = {at(500, 10), large_memory(7)};
  uneven.inputs = {at(500, 10)};
  Pending& of_a_ring = add(uneven);
  begin(first, /*local=*/true);
  begin(over_a_line, /*local=*/false);
  EXPECT_FALSE(table.must_wait(second));
  begin(second, /*local=*/true);
  EXPECT_TRUE(table.must_wait(third));
  EXPECT_TRUE(table.must_wait(copied)) << "it uses the memory of one that waits";
  EXPECT_TRUE(table.must_wait(gathers));
  EXPECT_TRUE(table.must_wait(scatters));
  EXPECT_FALSE(table.must_wait(broadcasts)) << "these never go through areas";
  EXPECT_FALSE(table.must_wait(of_a_ring)) << "nor parts that differ";
  EXPECT_FALSE(table.must_wait(sum(0, 10)));
  first.op->stop();
  EXPECT_FALSE(table.must_wait(third));
}

TEST_F(Table, an_operation_uses_its_inputs_and_outputs_and_nothing_beside_them) {
  const Pending& op = sum(10, 10);
  EXPECT_TRUE(op.op->uses({at(0, 5), at(19, 1)}));
  EXPECT_FALSE(op.op->uses({at(0, 10), at(20, 10), Buffer{}}));
  EXPECT_FALSE(op.op->uses({}));
}

TEST_F(Table, a_barrier_waits_until_all_before_it_is_complete_and_nothing_waits_for_it) {
  Pending& before = sum(0, 10);
  Pending& waits = barrier();
  Pending& after = sum(10, 10);
  EXPECT_TRUE(table.must_wait(waits));
  EXPECT_FALSE(table.must_wait(after));
  complete(before);
  EXPECT_FALSE(table.must_wait(waits));
}

TEST_F(Table, in_a_fixed_group_nothing_waits_for_a_deferred_call_or_for_preimages) {
  table.started(sum(0, 100));
  table.defer(sum(50, 100));
  EXPECT_FALSE(table.must_wait(sum(200, 100)));
}

TEST_F(ElasticTable, a_call_after_a_deferred_one_waits) {
  Pending& before = sum(0, 10);
  Pending& deferred = sum(0, 10);
  Pending& after = sum(10, 10);
  table.defer(deferred);
  EXPECT_FALSE(table.must_wait(before));
  EXPECT_TRUE(table.must_wait(after));
  table.started(deferred);
  EXPECT_FALSE(table.must_wait(after));
}

TEST_F(ElasticTable, what_does_not_fit_in_the_memory_for_preimages_waits_and_the_oldest_never) {
  Pending& large = sum(0, kPreimageBytesMax + 1);
  Pending& small = sum(300, 1);
  EXPECT_FALSE(table.must_wait(large));
  table.started(large);
  EXPECT_TRUE(table.must_wait(small));
  table.stopped(large);
  EXPECT_FALSE(table.must_wait(small));
  table.started(small);
  Pending& fits = sum(400, kPreimageBytesMax - 1);
  EXPECT_FALSE(table.must_wait(fits));
  table.started(fits);
  EXPECT_TRUE(table.must_wait(sum(600, 1)));
}

TEST_F(Table, says_what_is_deferred_and_whether_a_barrier_is) {
  Pending& one = sum(0, 10);
  Pending& two = barrier();
  table.defer(two);
  table.defer(two);
  table.defer(one);
  EXPECT_TRUE(table.is_deferred(one.key()));
  EXPECT_TRUE(table.is_deferred(two.key()));
  EXPECT_TRUE(table.barrier_deferred());
  table.started(two);
  table.stopped(two);
  EXPECT_FALSE(table.is_deferred(two.key()));
  EXPECT_FALSE(table.barrier_deferred());
  EXPECT_TRUE(table.is_deferred(one.key()));
}

TEST_F(Table, what_waits_for_memory_is_asked_again_when_the_last_one_before_it_there_has_ended) {
  const OpKey running = sum(0, 10).key();
  Pending& second = sum(5, 10);
  Pending& third = sum(0, 10);
  Pending& for_all = barrier();
  for (Pending* pending : {&second, &third, &for_all}) table.defer(*pending);
  EXPECT_EQ(to_ask(), (std::vector<OpKey>{for_all.key()}));
  table.stopped(second);
  finish(second.key());  // fails before it has begun
  EXPECT_EQ(to_ask(), (std::vector<OpKey>{third.key(), for_all.key()}));
  EXPECT_TRUE(table.must_wait(third));
  table.defer(third);
  EXPECT_EQ(to_ask(), (std::vector<OpKey>{for_all.key()}));
  table.stopped(third);  // its epoch ends, and it is called in the next
  EXPECT_FALSE(table.is_deferred(third.key()));
  table.defer(third);
  finish(running);
  EXPECT_EQ(to_ask(), (std::vector<OpKey>{third.key(), for_all.key()}));
  EXPECT_FALSE(table.must_wait(third));
  table.started(third);
  EXPECT_EQ(to_ask(), (std::vector<OpKey>{for_all.key()}));
}

TEST_F(Table, finds_by_number_and_what_was_called_next) {
  const OpKey first = sum(0, 10).key();
  const OpKey second = barrier().key();
  EXPECT_EQ(table.keys(), (std::vector<OpKey>{first, second}));
  ASSERT_NE(table.after(first), nullptr);
  EXPECT_EQ(table.after(first)->key(), second);
  EXPECT_EQ(table.after(second), nullptr);
  finish(first);
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_EQ(table.size(), 1U);
}

}  // namespace
}  // namespace pccl
