// A member that holds the keys and lies: what it sends never reads or writes memory that is not
// meant for it, never stops the engine, never fills its memory. Its link is given up, with the
// reason.
#include "engines.h"
#include "fake_links.h"
#include "pool_memory.h"

namespace pccl::testing {
namespace {

constexpr PeerId kLiar{10};
constexpr PeerId kReceiver{20};
constexpr PeerId kSound{30};
constexpr GroupId kGroup{1};
constexpr EpochId kEpoch = EpochId::make(1, 1);
constexpr std::uint32_t kSegment = kSegmentBytesMax;

class Lies : public ::testing::Test {
 protected:
  Lies() {
    b.group->number({kLiar, kReceiver, kSound});
    b.group->start(kEpoch, {kLiar, kReceiver, kSound});
  }
  static SegmentHeader header(SegmentKind kind, OpKey op, std::uint64_t offset,
                              std::uint32_t bytes) {
    SegmentHeader h;
    h.kind = kind;
    h.group = kGroup;
    h.epoch = kEpoch;
    h.op = op;
    h.offset = offset;
    h.bytes = bytes;
    h.descriptor.kind = kind == SegmentKind::collective ? OpKind::all_reduce : OpKind::send;
    h.descriptor.reduce = kind == SegmentKind::collective ? ReduceOp::sum : ReduceOp::none;
    h.descriptor.dtype = DType::f32;
    return h;
  }
  void expect_given_up(const std::string& words) {
    ASSERT_FALSE(b.links.given_up.empty());
    EXPECT_EQ(b.links.given_up.front().first, kLiar);
    EXPECT_NE(b.links.given_up.front().second.find(words), std::string::npos)
        << b.links.given_up.front().second;
  }

  /// Outlives the calls that use it.
  std::vector<float>& memory(std::size_t count) { return memory_.emplace_back(count, 1.0F); }

  std::deque<std::vector<float>> memory_;
  Node b{kReceiver};
  std::vector<std::byte> junk = std::vector<std::byte>(kSegment, std::byte{0xEE});
};

TEST_F(Lies, an_offset_that_wraps_around_writes_nothing) {
  constexpr std::size_t kFloats = kSegment / 4;
  std::vector<float>& whole = memory(3 * kFloats);
  OpRequest request = message(OpKind::recv, 0, whole);
  request.outputs = {{reinterpret_cast<std::byte*>(whole.data() + kFloats), kSegment}};
  const auto received = b.post(std::move(request));
  b.hears(kLiar, Announce{kGroup, kEpoch, 0, 0, kSegment});
  for (const auto& [offset, bytes] : std::initializer_list<std::pair<std::uint64_t, std::uint32_t>>{
           {~std::uint64_t{0} - 65535, 65536},
           {~std::uint64_t{0} - kSegment + 1, kSegment},
           {kSegment, kSegment},
           {0, 4096},
           {4, kSegment - 4}}) {
    b.gets(kLiar, header(SegmentKind::message, {0, 0}, offset, bytes), junk.data());
    expect_given_up("no segment");
    b.links.given_up.clear();
  }
  EXPECT_EQ(whole, std::vector<float>(3 * kFloats, 1.0F));
  EXPECT_FALSE(received->done());
}

TEST_F(Lies, an_announcement_of_a_small_send_that_is_here_does_not_change_its_size) {
  b.gets(kLiar, header(SegmentKind::eager, {0, 0}, 0, 8), junk.data());
  b.hears(kLiar, Announce{kGroup, kEpoch, 0, 0, kSegment});
  expect_given_up("twice");
  std::vector<float>& in = memory(kSegment / 4);
  EXPECT_EQ(outcome(b.post(message(OpKind::recv, 0, in))).code, ErrorCode::mismatch);
}

TEST_F(Lies, memory_in_which_a_lane_writes_is_not_given_to_another_message) {
  constexpr std::uint32_t kSmall = 64U << 10;
  const std::vector<std::byte> bees(kSmall, std::byte{'B'});
  const std::vector<std::byte> cees(kSmall, std::byte{'C'});
  b.reads(kLiar, header(SegmentKind::eager, {0, 0}, 0, kSmall), bees.data(), 1000);
  ASSERT_EQ(b.links.half_read.size(), 1U);
  b.hears(kLiar, Withdraw{kGroup, kEpoch, 0, 0, {ErrorCode::timed_out, "x"}});
  b.gets(kLiar, header(SegmentKind::eager, {0, 1}, 0, kSmall), cees.data());
  b.goes_on(kLiar, 0, bees.data(), 1000);
  std::vector<float>& in = memory(kSmall / 4);
  expect_success(b.post(message(OpKind::recv, 0, in)));
  EXPECT_EQ(std::memcmp(in.data(), cees.data(), kSmall), 0);

  b.reads(kLiar, header(SegmentKind::eager, {0, 2}, 0, kSmall), bees.data(), 1000);
  b.gets(kLiar, header(SegmentKind::eager, {0, 2}, 0, kSmall), cees.data());
  expect_given_up("twice");
  b.group->link_gone(kLiar);
  EXPECT_TRUE(b.links.half_read.empty()) << "no lane writes there any more";
}

TEST_F(Lies, segments_that_are_lost_while_they_are_read_take_no_memory) {
  const std::size_t before = b.pool.used_bytes();
  for (std::uint64_t i = 0; i < 2 * kKeptBytesMax / kSegment; ++i) {
    SegmentHeader early = header(SegmentKind::collective, {0, 5}, i * kSegment, kSegment);
    const Placement at = b.group->segment_header(kLiar, early);
    ASSERT_NE(at.to, nullptr);
    const auto owner = b.context.owners.find(static_cast<std::uint32_t>(at.token));
    ASSERT_NE(owner, b.context.owners.end());
    owner->second->segment_lost(kLiar, at);
  }
  EXPECT_EQ(b.pool.used_bytes(), before);
  EXPECT_TRUE(b.links.given_up.empty()) << "nothing of it is kept";
}

TEST_F(Lies, a_small_send_is_small_and_whole) {
  b.gets(kLiar, header(SegmentKind::eager, {0, 0}, 0, kSegment), junk.data());
  expect_given_up("one segment");
  b.links.given_up.clear();
  b.gets(kLiar, header(SegmentKind::eager, {0, 0}, 4, 8), junk.data());
  expect_given_up("one segment");
}

TEST_F(Lies, a_segment_that_comes_twice_leaves_no_hole_in_a_receive) {
  std::vector<float>& in = memory(kSegment / 2);  // two segments
  const auto received = b.post(message(OpKind::recv, 0, in));
  b.hears(kLiar, Announce{kGroup, kEpoch, 0, 0, 2 * kSegment});
  b.gets(kLiar, header(SegmentKind::message, {0, 0}, 0, kSegment), junk.data());
  b.gets(kLiar, header(SegmentKind::message, {0, 0}, 0, kSegment), junk.data());
  expect_given_up("twice");
  EXPECT_FALSE(received->done());
  b.gets(kLiar, header(SegmentKind::message, {0, 0}, kSegment, kSegment), junk.data());
  expect_success(received);
}

TEST_F(Lies, a_segment_of_a_collective_on_two_lanes_at_once_ends_the_link_and_not_the_engine) {
  b.group->number({kLiar, kReceiver});
  b.group->start(EpochId::make(1, 2), {kLiar, kReceiver});
  std::vector<float>& values = memory(1000);
  const auto ticket = b.post(all_reduce(values));
  ASSERT_FALSE(b.links.sent.empty());
  SegmentHeader h = b.links.sent.front().header;  // as we send it, so the liar does
  b.reads(kLiar, h, junk.data(), 100);
  b.reads(kLiar, h, junk.data(), 100);
  expect_given_up("twice");
  ASSERT_EQ(b.links.half_read.size(), 1U);
  b.goes_on(kLiar, 0, junk.data(), 100);
  EXPECT_TRUE(b.group->mismatches.empty()) << "no reason for an operation to fail";
}

TEST_F(Lies, who_has_completed_an_operation_says_once_that_another_rank_means_another_one) {
  b.group->number({kReceiver, kLiar});
  b.group->start(EpochId::make(1, 2), {kReceiver, kLiar});
  const auto ticket = b.post(rooted(OpKind::reduce, 1, 0, 2, memory(4)));
  ASSERT_FALSE(b.links.sent.empty());
  const FakeLinks::Sent sent = b.links.sent.front();
  b.group->segment_sent(sent.cookie >> 32, kLiar, static_cast<std::uint32_t>(sent.cookie));
  expect_success(ticket);
  SegmentHeader h = sent.header;
  b.hears(kLiar, AskIssued{kGroup, h.op, static_cast<std::uint32_t>(OpKind::reduce),
                           static_cast<std::uint32_t>(ReduceOp::sum),
                           static_cast<std::uint32_t>(DType::f32), 1, 4});
  EXPECT_TRUE(b.group->mismatches.empty()) << "it waits for the data that has left";
  h.descriptor.root = 0;
  b.gets(kLiar, h, junk.data());
  b.gets(kLiar, h, junk.data());
  ASSERT_EQ(b.group->mismatches.size(), 1U);
  EXPECT_EQ(roots_in(b.group->mismatches[0].text), (std::set<char>{'0', '1'}));
}

TEST_F(Lies, the_same_before_the_operation_is_issued) {
  b.group->number({kLiar, kReceiver});
  b.group->start(EpochId::make(1, 2), {kLiar, kReceiver});
  b.post(all_reduce(memory(1000)));
  SegmentHeader h = b.links.sent.front().header;
  h.op = OpKey{0, 1};
  b.gets(kLiar, h, junk.data());
  b.gets(kLiar, h, junk.data());
  EXPECT_TRUE(b.links.given_up.empty());
  b.post(all_reduce(memory(1000)));
  expect_given_up("twice");
}

TEST_F(Lies, who_ignores_its_window_loses_its_link_and_the_memory_is_bounded) {
  for (std::uint64_t i = 0; i < 400; ++i) {
    b.gets(kLiar, header(SegmentKind::collective, {0, i}, 0, kSegment), junk.data());
  }
  expect_given_up("ignores its window");
  EXPECT_LE(b.pool.used_bytes(), kKeptBytesMax);
  EXPECT_EQ(b.context.kept_bytes.of(kSound), 0U);
  b.gets(kSound, header(SegmentKind::collective, {0, 0}, 0, kSegment), junk.data());
  EXPECT_EQ(b.context.kept_bytes.of(kSound), kSegment) << "of its own link";
}

TEST_F(Lies, short_segments_and_messages_count_as_what_they_cost) {
  for (std::uint64_t i = 0; i < (kKeptBytesMax / kKeptBytesMin) + 10; ++i) {
    b.gets(kLiar, header(SegmentKind::collective, {i, 0}, 0, 1), junk.data());
    if (!b.links.given_up.empty()) break;
  }
  expect_given_up("ignores its window");
  EXPECT_LE(b.pool.used_bytes(), kKeptBytesMax);
  b.links.given_up.clear();
  b.group->stop();
  for (std::uint64_t i = 0; i < kKeptBytesMax / kKeptMessageBytes + 10; ++i) {
    b.hears(kSound, Announce{kGroup, kEpoch, 0, i, kSegment});
  }
  EXPECT_TRUE(b.links.given_up.empty()) << "of an epoch that has ended nothing is kept";
}

TEST_F(Lies, announcements_for_operations_that_are_never_called_are_bounded_too) {
  for (std::uint64_t i = 0; i < kKeptBytesMax / kKeptMessageBytes + 10; ++i) {
    b.hears(kLiar, Announce{kGroup, kEpoch, 0, i, kSegment});
    if (!b.links.given_up.empty()) break;
  }
  expect_given_up("ignores its window");
}

TEST_F(Lies, what_came_for_operations_that_were_not_called_goes_with_their_step) {
  for (std::uint64_t i = 0; i < 10; ++i) {
    b.gets(kLiar, header(SegmentKind::collective, {0, i}, 0, kSegment), junk.data());
  }
  b.gets(kLiar, header(SegmentKind::collective, {1, 0}, 0, kSegment), junk.data());
  EXPECT_EQ(b.context.kept_bytes.of(kLiar), 11 * kSegment);
  b.group->enter_step(1);
  EXPECT_EQ(b.context.kept_bytes.of(kLiar), kSegment) << "of the step that begins";
}

TEST_F(Lies, more_of_an_operation_than_there_is_of_it_is_not_kept_while_it_waits_for_its_turn) {
  std::vector<float>& values = memory(1000);
  b.post(all_reduce(values));
  b.post(all_reduce(values));  // the same memory: it waits
  for (std::uint64_t i = 0; i < 100; ++i) {
    SegmentHeader h = header(SegmentKind::collective, {0, 1}, i * kSegment, kSegment);
    b.gets(kLiar, h, junk.data());
  }
  expect_given_up("than there is");
}

TEST_F(Lies, without_memory_an_operation_fails_and_the_engine_goes_on) {
  b.group->number({kLiar, kReceiver});
  b.group->start(EpochId::make(1, 2), {kLiar, kReceiver});
  const PoolMemoryLimit limit(2U << 20);
  std::vector<float>& values = memory(8U << 20);
  const std::vector<float> before = values;
  const auto ticket = b.post(all_reduce(values));
  if (!ticket->done()) {  // memory is needed when the first segment comes
    const SegmentHeader h = b.links.sent.front().header;
    b.gets(kLiar, h, junk.data());
  }
  EXPECT_EQ(outcome(ticket).code, ErrorCode::no_memory);
  EXPECT_EQ(values, before);

  std::vector<float>& in = memory(8U << 20);
  const auto received = b.post(message(OpKind::recv, 0, in));
  b.links.sent.clear();
  b.hears(kLiar, Announce{kGroup, EpochId::make(1, 2), 0, 0, in.size() * 4});
  EXPECT_EQ(outcome(received).code, ErrorCode::no_memory) << "of its preimage";
  ASSERT_EQ(b.links.sent.size(), 1U) << "the sender is told";

  SegmentHeader early = header(SegmentKind::collective, {0, 1}, 0, kSegment);
  early.epoch = EpochId::make(1, 2);
  for (std::uint64_t i = 0; i < 4; ++i) {
    early.offset = i * kSegment;
    b.gets(kLiar, early, junk.data());
  }
  std::vector<float>& small = memory(4);
  EXPECT_EQ(outcome(b.post(all_reduce(small))).code, ErrorCode::no_memory)
      << "a part of it is lost";
  EXPECT_TRUE(b.links.given_up.empty());
  const auto later = b.post(all_reduce(small));
  EXPECT_FALSE(later->done());
}

}  // namespace
}  // namespace pccl::testing
