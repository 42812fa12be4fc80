#include "engine/stall.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

const EpochId kStalledIn = EpochId::make(1, 1);
const OpKey kStalled{3, 7};
constexpr std::uint64_t kStallLimitMs = 5000;

struct Watch {
  Stall stall;
  std::uint64_t progress = 0;
  std::uint64_t elsewhere = 0;
  std::uint64_t timeout_ms = 0;
  bool of_two = false;
  std::uint32_t waits_at = TellIssued::kNoStep;
  std::vector<PeerId> others{PeerId{2}, PeerId{3}};

  Stall::Verdict tick(std::uint64_t ms = 500) {
    return stall.look({kStalledIn, kStalled, progress, elsewhere, timeout_ms, of_two, waits_at},
                      others, ms, kStallLimitMs);
  }
  void told(std::uint64_t peer, bool issued, std::uint32_t at) {
    TellIssued said;
    said.op = kStalled;
    said.issued = issued ? OpKey{kStalled.step, kStalled.index + 1} : kStalled;
    said.waits_at = at;
    stall.told(PeerId{peer}, said);
  }
  /// Ticks, with both answering each time, until something is found or `ms` are over.
  bool stalls_within(std::uint64_t ms, bool issued2, std::uint32_t at2, bool issued3,
                     std::uint32_t at3) {
    for (std::uint64_t now = 0; now < ms; now += 500) {
      told(2, issued2, at2);
      told(3, issued3, at3);
      if (tick() == Stall::Verdict::stalled) return true;
    }
    return false;
  }
};

TEST(Stall, who_is_late_is_not_stalled_however_long_it_takes) {
  Watch watch;
  EXPECT_FALSE(watch.stall.late(kStalled, PeerId{3})) << "it has not been asked";
  EXPECT_FALSE(watch.stalls_within(100 * kStallLimitMs, true, 0, false, 0));
  EXPECT_TRUE(watch.stall.late(kStalled, PeerId{3}));
  EXPECT_FALSE(watch.stall.late(kStalled, PeerId{2}));
  EXPECT_FALSE(watch.stall.late(OpKey{3, 8}, PeerId{3})) << "of another operation nothing is known";
}

TEST(Stall, a_peer_in_a_later_step_is_past_the_operation_unless_it_still_has_it) {
  Watch watch;
  watch.tick();
  TellIssued said;
  said.op = kStalled;
  said.issued = OpKey{kStalled.step + 1, 0};
  said.waits_at = TellIssued::kNoStep;
  watch.stall.told(PeerId{2}, said);
  said.waits_at = 4;
  watch.stall.told(PeerId{3}, said);
  EXPECT_TRUE(watch.stall.past(kStalled, PeerId{2}));
  EXPECT_FALSE(watch.stall.past(kStalled, PeerId{3}));
  EXPECT_FALSE(watch.stall.past(OpKey{3, 8}, PeerId{2}));
  watch.told(2, true, TellIssued::kNoStep);
  EXPECT_FALSE(watch.stall.past(kStalled, PeerId{2})) << "in the same step";
}

TEST(Stall, what_moves_is_not_stalled) {
  Watch watch;
  for (int i = 0; i < 100; ++i) {
    watch.told(2, true, 0);
    watch.told(3, true, 0);
    ++watch.progress;
    EXPECT_EQ(watch.tick(), Stall::Verdict::moves);
  }
}

TEST(Stall, when_all_have_issued_it_who_waits_for_nothing_older_is_at_fault) {
  Watch watch;
  EXPECT_TRUE(watch.stalls_within(kStallLimitMs + 1000, true, TellIssued::kNoStep, true, 1));
  EXPECT_TRUE(watch.stall.owes(PeerId{2}, 4));
  EXPECT_FALSE(watch.stall.owes(PeerId{3}, 4)) << "it waits at an earlier turn itself";
  EXPECT_TRUE(watch.stall.owes(PeerId{3}, 1)) << "what it waits for does not keep it from sending";
  watch.stall.acted();
  EXPECT_NE(watch.tick(), Stall::Verdict::stalled);
}

constexpr std::uint64_t kTimeoutMs = 60'000;
constexpr std::uint64_t kLateMs = 31 * 60'000;

TEST(Stall, one_that_says_to_be_late_is_believed_as_long_as_the_master_may_believe_it) {
  Watch watch;
  watch.timeout_ms = kTimeoutMs;
  EXPECT_FALSE(watch.stalls_within(kTimeoutMs + kLateMs, true, 4, false, 0));
  EXPECT_TRUE(watch.stalls_within(2 * kStallLimitMs, true, 4, false, 0));
  EXPECT_TRUE(watch.stall.owes(PeerId{3}, 4));
  Watch two;
  two.others = {PeerId{2}};
  two.of_two = true;
  two.timeout_ms = kTimeoutMs;
  EXPECT_FALSE(two.stalls_within(kTimeoutMs, false, 0, true, 4)) << "the master evicts it now";
  EXPECT_TRUE(two.stalls_within(3 * kStallLimitMs, false, 0, true, 4));
  EXPECT_TRUE(two.stall.owes(PeerId{2}, 4));
}

TEST(Stall, one_that_sends_what_nobody_waits_for_does_not_move_anything_for_ever) {
  Watch watch;
  watch.timeout_ms = kTimeoutMs;
  bool stalled = false;
  std::uint64_t ms = 0;
  for (; !stalled && ms < 2 * kLateMs; ms += 500) {
    ++watch.elsewhere;
    stalled = watch.stalls_within(500, true, TellIssued::kNoStep, true, 4);
  }
  EXPECT_TRUE(stalled);
  EXPECT_GT(ms, kLateMs);
  EXPECT_TRUE(watch.stall.owes(PeerId{2}, 4));
}

TEST(Stall, one_that_says_to_wait_for_older_data_is_believed_less_long_than_its_victims) {
  Watch watch;
  watch.timeout_ms = kTimeoutMs;
  for (std::uint64_t ms = 0; ms < kTimeoutMs + kLateMs; ms += 500) {
    if (watch.stalls_within(500, true, 0, true, 6)) {
      EXPECT_FALSE(watch.stall.owes(PeerId{2}, 4));
      watch.stall.acted();
    }
  }
  EXPECT_TRUE(watch.stalls_within(2 * kStallLimitMs, true, 0, true, 6));
  EXPECT_TRUE(watch.stall.owes(PeerId{2}, 4));
  EXPECT_FALSE(watch.stall.owes(PeerId{3}, 8)) << "the first one may be the reason";
}

TEST(Stall, one_that_waits_at_an_earlier_turn_may_wait_for_this_process) {
  Watch watch;
  watch.timeout_ms = kTimeoutMs;
  watch.waits_at = 3;  // for member 2, which is found as soon as it says no lie any more
  EXPECT_FALSE(watch.stalls_within(kTimeoutMs + kLateMs, false, 0, true, 6));
  EXPECT_TRUE(watch.stalls_within(2 * kStallLimitMs, true, 9, true, 6));
  EXPECT_TRUE(watch.stall.owes(PeerId{2}, 3));
  EXPECT_FALSE(watch.stall.owes(PeerId{3}, 8));
}

TEST(Stall, who_does_not_answer_is_at_fault) {
  Watch watch;
  Stall::Verdict verdict = Stall::Verdict::moves;
  for (std::uint64_t now = 0; now < kStallLimitMs + 1000 && verdict != Stall::Verdict::stalled;
       now += 500) {
    watch.told(2, false, 0);
    verdict = watch.tick();
  }
  EXPECT_EQ(verdict, Stall::Verdict::stalled);
  EXPECT_TRUE(watch.stall.owes(PeerId{3}, 0));
  EXPECT_FALSE(watch.stall.owes(PeerId{2}, 0)) << "it is late";
}

TEST(Stall, a_process_that_was_stopped_itself_holds_nothing_against_the_others) {
  Watch watch;
  watch.tick();
  watch.told(2, true, 0);
  watch.told(3, true, 0);
  EXPECT_NE(watch.tick(100 * kStallLimitMs), Stall::Verdict::stalled);
  watch.told(2, true, 0);  // what had arrived meanwhile
  watch.told(3, true, 0);
  EXPECT_NE(watch.tick(), Stall::Verdict::stalled);
}

TEST(Stall, with_a_short_limit_the_others_are_asked_more_often_than_once) {
  Stall stall;
  int asked = 0;
  for (std::uint64_t now = 0; now < 1500; now += 50) {
    asked +=
        stall.look({kStalledIn, kStalled}, {PeerId{2}}, 50, 1600) == Stall::Verdict::ask ? 1 : 0;
  }
  EXPECT_EQ(asked, 3);
}

TEST(Stall, others_are_asked_every_second_that_nothing_moves) {
  Watch watch;
  int asked = 0;
  for (int i = 0; i < 9; ++i) asked += watch.tick() == Stall::Verdict::ask ? 1 : 0;
  EXPECT_EQ(asked, 4);
}

TEST(Stall, a_link_is_made_anew_once_before_anything_is_held_against_its_peer) {
  Stall stall;
  EXPECT_TRUE(stall.first_time(PeerId{2}));
  EXPECT_FALSE(stall.first_time(PeerId{2}));
  stall.forget();
  EXPECT_TRUE(stall.first_time(PeerId{2}));
}

/// Two members sum; the other one, which all wait for, has issued the sum and sends nothing.
struct Sum : OperationPort {
  BufferPool pool{0};
  std::byte memory[8] = {};
  OperationTable operations{GroupKind::elastic, 100};
  Stall stall;

  Sum() {
    OpRequest request;
    request.descriptor = {OpKind::all_reduce, ReduceOp::sum, DType::u8, -1, 8};
    request.inputs = request.outputs = {{memory, 8}};
    Pending& pending = operations.add(
        std::make_unique<Operation>(pool, kStalled, std::move(request), std::make_shared<Ticket>()),
        nullptr);
    pending.contributors = {PeerId{1}, PeerId{2}};
    pending.op->start(*this, {0, 1}, 0, 1, /*keep_preimage=*/false);
  }
  void send_segment(Operation&, std::uint32_t, std::uint32_t, std::uint64_t, const std::byte*,
                    std::uint32_t, std::uint32_t) override {}
  /// Ticks until the other member is at fault.
  Stall::Findings finds() {
    int asked = 0;
    for (int i = 0; i < 1000; ++i) {
      Stall::Findings found =
          stall.watch(operations, {kStalledIn, PeerId{1}, 0, 500, kStallLimitMs});
      if (!found.faults.empty()) {
        EXPECT_GT(asked, 1);
        return found;
      }
      if (found.ask.empty()) continue;
      EXPECT_EQ(found.ask, std::vector{PeerId{2}});
      ++asked;
      TellIssued said;
      said.op = kStalled;
      said.issued = OpKey{kStalled.step, kStalled.index + 1};
      said.waits_at = TellIssued::kNoStep;
      stall.told(PeerId{2}, said);
    }
    return {};
  }
};

TEST(Stall, the_oldest_operation_that_runs_is_watched) {
  Sum sum;
  for (const bool again : {false, true, true}) {
    const Stall::Findings found = sum.finds();
    ASSERT_EQ(found.faults.size(), 1U);
    EXPECT_EQ(found.operation, sum.operations.find(kStalled));
    EXPECT_EQ(found.faults.front().peer, PeerId{2});
    EXPECT_EQ(found.faults.front().again, again);
  }
}

TEST(Stall, what_waits_for_its_turn_is_not_watched) {
  Sum sum;
  sum.operations.at(kStalled).op->stop();
  EXPECT_TRUE(sum.finds().faults.empty());
}

TEST(Stall, who_never_says_whether_messages_have_come_holds_a_barrier_back_not_for_ever) {
  for (const bool of_two : {true, false}) {
    BufferPool pool{0};
    OperationTable operations{GroupKind::elastic, 100};
    Stall stall;
    OpRequest request;
    request.descriptor.kind = OpKind::barrier;
    request.timeout_ms = kTimeoutMs;
    Pending& barrier = operations.add(
        std::make_unique<Operation>(pool, kStalled, std::move(request), std::make_shared<Ticket>()),
        nullptr);
    barrier.unanswered = {PeerId{2}};
    std::uint64_t waited_ms = 0;
    Stall::Findings found;
    for (; found.faults.empty() && waited_ms < 3'600'000; waited_ms += 500) {
      found = stall.watch(operations, {kStalledIn, PeerId{1}, 0, 500, kStallLimitMs, of_two});
      if (found.ask.empty()) continue;
      EXPECT_EQ(found.ask, std::vector{PeerId{2}});
      TellIssued said;
      said.op = kStalled;
      said.issued = OpKey{kStalled.step, kStalled.index + 1};
      stall.told(PeerId{2}, said);
    }
    ASSERT_EQ(found.faults.size(), 1U);
    EXPECT_EQ(found.faults.front().peer, PeerId{2});
    EXPECT_GT(waited_ms, kTimeoutMs) << "the answer may wait for messages, which have time-outs";
    EXPECT_EQ(waited_ms < kTimeoutMs + 4 * kStallLimitMs, of_two);
    barrier.unanswered.clear();
    EXPECT_TRUE(stall.watch(operations, {kStalledIn, PeerId{1}, 0, 500, kStallLimitMs, of_two})
                    .faults.empty());
  }
}

}  // namespace
}  // namespace pccl
