#include <gtest/gtest.h>

#include "cast.h"

namespace pccl::master {
namespace {

using cast::member;
using cast::peers;
using cast::proposed;
using cast::sent;

/// A master that has just taken over, from a register that another master has left.
struct Successor {
  State s;
  Actions out;

  explicit Successor(const Register& left) {
    static_cast<void>(step(s, TakenOver{left}));
    out = step(s, RegisterWritten{*s.writing, true});
  }
  void hello(const Member& m, const Report& report) {
    Hello hello;
    hello.member = m;
    hello.report = report;
    out = step(s, PeerConnected{hello, ""});
  }
  void all_hello(const Report& first);
  /// All members of the proposal are ready. Their reports are those of their hello.
  void all_ready() {
    const Epoch epoch = *s.proposal;
    for (const Member& m : epoch.members) {
      if (!s.proposal || s.proposal->id != epoch.id) return;
      Report report = s.peers.at(m.peer()).report;
      report.accepted = epoch.id;
      out = cast::tell(s, m.peer().value, Ready{epoch.id, report});
    }
  }
};

Report begun(EpochId started, std::vector<PeerId> members, std::uint64_t at_step,
             std::uint64_t passed, std::vector<PeerId> pinned) {
  Report r;
  r.started = r.accepted = started;
  r.started_members = std::move(members);
  r.step = at_step;
  r.passed = passed;
  r.pinned = std::move(pinned);
  r.committed.below = r.issued = OpKey{at_step, 0};
  return r;
}

Report voted(Report r) {
  r.vote = VoteKind::refresh;
  return r;
}

const std::vector<Member> kFour = {member(1), member(2), member(3), member(4)};

/// 1, 2 and 3 have started 1.1, and stand at the boundary of step 6; 4 waits at the door. The
/// master has written the boundary's epoch 1.9, and has died before it was started.
Register unstarted_boundary() {
  Register left{1, Epoch{EpochId::make(1, 9), kFour, EpochId::make(1, 1), true}, 7, false};
  left.pinned = ids_of(kFour);
  left.before_passed = 6;
  left.before_pinned = peers({1, 2, 3});
  left.admitted = peers({4});
  return left;
}

Report sound() {
  return voted(begun(EpochId::make(1, 1), peers({1, 2, 3}), 6, 6, peers({1, 2, 3})));
}

/// What 1 says: it alone has started 1.5, a number between that of the others and the register's.
Report lie(std::uint64_t passed, std::vector<PeerId> pinned, std::vector<PeerId> members) {
  return begun(EpochId::make(1, 5), std::move(members), std::max<std::uint64_t>(6, passed), passed,
               std::move(pinned));
}

/// 1 says `first`; 2 and 3 say what is true, and 4 that it has begun nothing.
void Successor::all_hello(const Report& first) {
  hello(member(1), first);
  hello(member(2), sound());
  hello(member(3), sound());
  hello(member(4), Report{});
}

TEST(Numbering, control_without_a_lie) {
  Successor next(unstarted_boundary());
  next.all_hello(sound());
  ASSERT_TRUE(next.s.proposal.has_value());
  EXPECT_EQ(proposed(next.out), peers({1, 2, 3}));
  next.all_ready();
  ASSERT_TRUE(next.s.writing.has_value());
  EXPECT_EQ(next.s.writing->passed, 6U);
  EXPECT_EQ(next.s.writing->pinned, peers({1, 2, 3}));
}

TEST(Numbering, one_that_alone_names_a_newer_epoch_does_not_say_by_what_the_others_divide) {
  Successor next(unstarted_boundary());
  next.all_hello(lie(7, peers({1}), peers({1, 2, 3})));
  ASSERT_TRUE(next.s.proposal.has_value());
  next.all_ready();
  ASSERT_TRUE(next.s.writing.has_value());
  EXPECT_NE(next.s.writing->pinned, peers({1}));
  const Actions started = step(next.s, RegisterWritten{*next.s.writing, true});
  for (const auto& [to, start] : sent<Start>(started)) {
    EXPECT_NE(start.verdict.pinned, peers({1})) << to_string(to);
    EXPECT_EQ(start.verdict.passed, 6U) << to_string(to);
  }
}

TEST(Numbering, one_that_alone_names_a_newer_epoch_makes_no_newcomer_a_member) {
  Successor next(unstarted_boundary());
  next.all_hello(lie(6, peers({1, 2, 3}), peers({1, 2, 3, 4})));
  ASSERT_TRUE(next.s.proposal.has_value());
  EXPECT_EQ(proposed(next.out), peers({1, 2, 3}));
}

TEST(Numbering, one_that_alone_names_a_newer_epoch_costs_no_sound_member_its_place) {
  Successor next(unstarted_boundary());
  next.all_hello(lie(5, peers({1, 2, 3}), peers({1, 2, 3})));
  ASSERT_TRUE(next.s.proposal.has_value());
  next.all_ready();
  ASSERT_TRUE(next.s.writing.has_value());
  EXPECT_EQ(next.s.writing->passed, 6U);
  // This master dies too, when its write has been made.
  Successor third(*next.s.writing);
  third.hello(member(1), lie(5, peers({1, 2, 3}), peers({1, 2, 3})));
  third.hello(member(2), sound());
  third.hello(member(3), sound());
  ASSERT_TRUE(third.s.proposal.has_value());
  std::size_t evicted = 0;
  for (int i = 0; i < 3 && third.s.proposal && !third.s.writing; ++i) {
    third.all_ready();
    for (const auto& [to, why] : sent<Evicted>(third.out)) {
      if (to == PeerId{1}) continue;
      ++evicted;
      ADD_FAILURE() << "a sound member is evicted: " << why.text;
    }
  }
  EXPECT_EQ(evicted, 0U);
}

TEST(Numbering, of_two_that_have_begun_an_epoch_one_puts_no_replica_out) {
  const std::vector<Member> six = {member(1, "a", 0, 2), member(2, "a", 1, 2),
                                   member(3, "b", 0, 2), member(4, "b", 1, 2),
                                   member(5, "c", 0, 2), member(6, "c", 1, 2)};
  // The founding 1.1 was started at 1 and 3 when its master died, and 2.1 at nobody.
  Register left{2, Epoch{EpochId::make(2, 1), six, EpochId::make(1, 1), false}, 0, false};
  left.pinned = ids_of(six);
  Successor next(left);
  const auto founded = begun(EpochId::make(1, 1), ids_of(six), 0, 0, ids_of(six));
  auto lies = founded;
  lies.started_members = peers({3, 4});
  next.hello(six[0], founded);
  next.hello(six[1], Report{});
  next.hello(six[2], lies);
  next.hello(six[3], Report{});
  next.hello(six[4], Report{});
  next.hello(six[5], Report{});
  ASSERT_TRUE(next.s.proposal.has_value());
  EXPECT_EQ(ids_of(next.s.proposal->members), ids_of(six));
  next.all_ready();
  ASSERT_TRUE(next.s.writing.has_value());
  const Actions started = step(next.s, RegisterWritten{*next.s.writing, true});
  for (const auto& [to, why] : sent<Evicted>(started)) {
    ADD_FAILURE() << "a sound member is evicted: " << to_string(to) << " " << why.text;
  }
}

TEST(Numbering, of_a_boundary_by_an_older_master_the_register_knows_who_was_pinned) {
  Register left = unstarted_boundary();
  left.pinned.clear();  // an older master wrote it
  left.before_passed = 0;
  left.before_pinned.clear();
  left.admitted.clear();
  Successor next(left);
  auto first = begun(EpochId::make(1, 9), ids_of(kFour), 7, 7, peers({1}));
  next.all_hello(first);  // the one that has heard its Start, or says so
  ASSERT_TRUE(next.s.proposal.has_value());
  next.all_ready();
  ASSERT_TRUE(next.s.writing.has_value());
  EXPECT_EQ(next.s.writing->passed, 7U);
  EXPECT_EQ(next.s.writing->pinned, ids_of(kFour));
}

TEST(Numbering, what_a_leaver_has_started_has_passed_for_those_that_stay) {
  // Epoch 1.1 is a boundary that began step 7 and admitted 4. 3 alone has heard its Start, and
  // wishes to leave at once; 1 and 2 vote at the boundary of step 6, in which nothing was issued.
  State s = cast::in_office(kFour, 7);
  const auto old = voted(begun(EpochId::make(0, 9), peers({1, 2, 3}), 6, 4, peers({1, 2, 3})));
  static_cast<void>(cast::tell(s, 3, Leave{true}));
  Actions out;
  for (const std::uint64_t p : {1, 2, 3, 4}) {
    out = cast::tell(s, p, Heartbeat{OpKey{p == 3 ? 7U : 6U, 0}});
  }
  ASSERT_TRUE(s.at_once);
  const auto again = [&](std::uint64_t p, Report report) {
    static_cast<void>(step(s, PeerDisconnected{PeerId{p}}));
    report.accepted = EpochId::make(1, 1);
    Hello hello;
    hello.member = member(p);
    hello.report = report;
    out = step(s, PeerConnected{hello, ""});
  };
  again(1, old);
  again(2, old);
  again(4, Report{});
  ASSERT_TRUE(s.proposal.has_value());
  EXPECT_EQ(ids_of(s.proposal->members), peers({1, 2, 4}));
  const Epoch epoch = *s.proposal;
  for (const Member& m : epoch.members) {
    Report report = s.peers.at(m.peer()).report;
    report.accepted = epoch.id;
    report.calm = true;
    out = cast::tell(s, m.peer().value, Ready{epoch.id, report});
  }
  ASSERT_TRUE(s.writing.has_value());
  EXPECT_EQ(s.writing->passed, 7U) << "3 has begun step 7";
  EXPECT_EQ(s.writing->pinned, ids_of(kFour)) << "4 would not be in its own numbering";
}

}  // namespace
}  // namespace pccl::master
