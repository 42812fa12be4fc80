// The program at a boundary: what the user's thread hears, and when the time is over. Also the
// contributors of a step, which the thread hears of, and the wait in join.
#include "engine/boundary_stay.h"

#include <gtest/gtest.h>

#include "engine/contributors.h"
#include "engine/join_wait.h"

namespace pccl {
namespace {

struct Program {
  BoundaryStay stay;
  std::shared_ptr<BoundaryTalk> talk = std::make_shared<BoundaryTalk>();

  explicit Program(BoundaryRequest request = {.timeout_ms = 100}) { stay.begin(request, talk); }
  std::optional<Result<BoundaryEvent>> hears() { return talk->next(0); }
};

TEST(BoundaryStay, the_core_is_told_once) {
  Program program(BoundaryRequest{.kind = VoteKind::resume, .verify = true});
  ASSERT_TRUE(program.stay.outside());
  const peer::AtBoundary event = program.stay.enter();
  EXPECT_EQ(event.kind, VoteKind::resume);
  EXPECT_TRUE(event.verify);
  EXPECT_FALSE(event.has_root);
  EXPECT_FALSE(program.stay.outside());
}

TEST(BoundaryStay, finish_comes_with_a_revision_and_without_a_state) {
  Program program(BoundaryRequest{.finish = 41});
  const peer::AtBoundary event = program.stay.enter();
  EXPECT_TRUE(event.finish);
  EXPECT_TRUE(event.has_root);
  EXPECT_EQ(event.root.revision, 41U);
}

TEST(BoundaryStay, the_thread_hears_the_newest_question_and_then_the_end) {
  Program program;
  program.stay.ask_for_root({0, 2});
  auto event = program.hears();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->value().what, BoundaryEvent::What::hash);
  EXPECT_EQ(event->value().contributors, (std::vector<std::uint32_t>{0, 2}));
  program.stay.ask_for_root({});
  program.stay.ask_to_fetch(EpochId::make(1, 2), {});
  event = program.hears();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->value().what, BoundaryEvent::What::fetch);
  EXPECT_EQ(event->value().epoch, EpochId::make(1, 2));
  program.stay.finish({});
  EXPECT_FALSE(program.stay.here());
  EXPECT_TRUE(program.hears());
  program.stay.ask_for_root({});
  program.stay.fail({ErrorCode::closed, "too late"});
  EXPECT_FALSE(program.hears()) << "the program is not at a boundary any more";
}

TEST(BoundaryStay, an_error_ends_it) {
  Program program;
  program.stay.fail({ErrorCode::evicted, "why"});
  EXPECT_FALSE(program.stay.here());
  const auto event = program.hears();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->error().code, ErrorCode::evicted);
}

TEST(BoundaryStay, a_member_times_out_again_and_again) {
  Program program;
  EXPECT_FALSE(program.stay.times_out(60, {}));
  EXPECT_TRUE(program.stay.times_out(60, {}));
  EXPECT_FALSE(program.stay.times_out(60, {}));
  EXPECT_TRUE(program.stay.times_out(60, {}));
  Program patient(BoundaryRequest{.timeout_ms = 0});
  EXPECT_FALSE(patient.stay.times_out(1U << 30, {})) << "there is no time-out";
}

TEST(BoundaryStay, the_time_of_a_newcomer_begins_anew_with_each_byte) {
  Program program;
  for (std::uint64_t bytes = 1; bytes < 100; ++bytes) {
    EXPECT_FALSE(program.stay.times_out(60, bytes));
  }
  EXPECT_TRUE(program.stay.times_out(60, 99));
}

TEST(Contributors, have_contributed_to_all_operations_of_the_step) {
  Contributors contributors;
  contributors.end_step(3);
  EXPECT_EQ(contributors.of_step(), (std::vector<std::uint32_t>{0, 1, 2})) << "no operation";
  EXPECT_TRUE(contributors.note({2, 0, 1}));
  EXPECT_FALSE(contributors.note({0, 1, 2}));
  EXPECT_TRUE(contributors.note({2, 0}));
  EXPECT_TRUE(contributors.note({1, 2}));
  EXPECT_EQ(contributors.of_step(), (std::vector<std::uint32_t>{2}));
  contributors.begin_step();
  EXPECT_FALSE(contributors.so_far());
}

constexpr JoinWait::Seen kNothing{false, false, false};
constexpr JoinWait::Seen kWelcomed{true, false, false};
constexpr JoinWait::Seen kFailed{false, true, false};
constexpr JoinWait::Seen kRefused{false, true, true};

TEST(JoinWait, ends_by_the_founding_or_by_one_of_its_limits) {
  using Verdict = JoinWait::Verdict;
  const auto ticket = std::make_shared<Ticket>();
  JoinWait founded(ticket, {100, 100, 1000000});
  EXPECT_EQ(founded.tick(99, kNothing), Verdict::none);
  EXPECT_EQ(founded.tick(1000, kWelcomed), Verdict::say);
  EXPECT_EQ(founded.tick(kSayWaitingMs, kWelcomed), Verdict::none) << "once";
  founded.end({});
  EXPECT_TRUE(ticket->done());
  EXPECT_FALSE(ticket->error().failed());
  founded.end({ErrorCode::closed, "later"});
  EXPECT_EQ(founded.tick(1000000, kWelcomed), Verdict::none);

  JoinWait alone(std::make_shared<Ticket>(), {100, 100, 1000});
  EXPECT_EQ(alone.tick(100, kNothing), Verdict::no_master);
  JoinWait early(std::make_shared<Ticket>(), {1000, 1000, 1000});
  EXPECT_EQ(early.tick(999, kWelcomed), Verdict::none);
  EXPECT_EQ(early.tick(1, kWelcomed), Verdict::not_founded);
}

TEST(JoinWait, another_program_in_place_of_the_master_gets_its_limit_from_its_first_answer) {
  using Verdict = JoinWait::Verdict;
  JoinWait wait(std::make_shared<Ticket>(), {60000, 10000, 1000000});
  EXPECT_EQ(wait.tick(40000, kFailed), Verdict::say_no_master);
  EXPECT_EQ(wait.left_ms(), 20000U);
  EXPECT_NE(wait.tick(50, kRefused), Verdict::no_master) << "its first answer";
  EXPECT_EQ(wait.left_ms(), 10000U);
  EXPECT_NE(wait.tick(9000, kRefused), Verdict::no_master);
  EXPECT_NE(wait.tick(50, kFailed), Verdict::no_master) << "that program has ended";
  EXPECT_NE(wait.tick(50, kRefused), Verdict::no_master);
  EXPECT_NE(wait.tick(9999, kRefused), Verdict::no_master);
  EXPECT_EQ(wait.left_ms(), 1U);
  EXPECT_EQ(wait.tick(1, kRefused), Verdict::no_master);
  JoinWait late(std::make_shared<Ticket>(), {60000, 10000, 1000000});
  EXPECT_EQ(late.tick(55000, kRefused), Verdict::say_no_master);
  EXPECT_EQ(late.left_ms(), 5000U) << "the limit of the whole wait holds too";
}

TEST(JoinWait, without_a_master_it_is_said_at_once_and_after_longer_and_longer_times) {
  using Verdict = JoinWait::Verdict;
  JoinWait wait(std::make_shared<Ticket>(), {60000, 10000, 1000000});
  EXPECT_EQ(wait.tick(10, kNothing), Verdict::none);
  EXPECT_EQ(wait.tick(10, kFailed), Verdict::say_no_master);
  EXPECT_EQ(wait.tick(4979, kFailed), Verdict::none);
  EXPECT_EQ(wait.tick(1, kFailed), Verdict::say_no_master);
  EXPECT_EQ(wait.tick(4999, kFailed), Verdict::none);
  EXPECT_EQ(wait.tick(1, kFailed), Verdict::say_no_master);
  EXPECT_EQ(wait.waited_ms(), 10000U);
  EXPECT_EQ(wait.tick(50000, kFailed), Verdict::no_master);
  JoinWait hung(std::make_shared<Ticket>(), {60000, 10000, 1000000});  // no attempt has ended
  EXPECT_EQ(hung.tick(1000, kNothing), Verdict::say_no_master);
}

}  // namespace
}  // namespace pccl
