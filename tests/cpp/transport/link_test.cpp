// A link over lanes that are no sockets: what it promises holds whatever its lanes are made of.
#include "transport/link.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/limits.h"
#include "base/random.h"
#include "memory_lane.h"
#include "support.h"
#include "transport/stream_lane.h"
#include "transport/tls_stream.h"

namespace pccl {
namespace {

using test::MemoryLane;

/// A link, and what it tells.
struct LinkEnd : LinkOwner, DirectEvents {
  explicit LinkEnd(std::uint64_t peer) : link(*this, {PeerId{peer}, {}, {}}, 1) {}

  DirectEvents& link_events() override { return *this; }
  void link_sent(const Link&, const Outgoing& frame) override {
    sent_bytes += frame.payload_bytes();
    if (frame.tells || has_message(frame.frame.type)) sent.push_back(frame.cookie);
  }
  void link_received(std::size_t, bool) override {}
  void link_lost(Link& ended, const std::string& reason) override {
    lost = reason;
    ended.end();
  }
  void link_lacks(Link&) override { ++lacks; }
  void link_closed(Link&) override { closed = true; }

  void link_up(PeerId) override {}
  void link_down(PeerId, const std::string&, Down) override {}
  void control_arrived(PeerId, std::span<const std::byte> payload) override {
    messages.push_back(test::text_of(payload));
  }
  void relay_arrived(PeerId, std::span<const std::byte> payload) override {
    relayed.push_back(test::text_of(payload));
  }
  Placement segment_header(PeerId, const SegmentHeader& header) override {
    return {memory.data() + header.offset, 1, 0};
  }
  void segment_arrived(PeerId, const SegmentHeader& header, const Placement&) override {
    arrived.push_back(header.offset);
  }
  void segment_sent(PeerId, std::uint64_t) override {}
  void routed_sent(PeerId, MemoryToken, std::uint64_t) override {}

  Link link;
  std::vector<std::byte> memory = std::vector<std::byte>(8U << 20);
  std::vector<std::string> messages, relayed;
  std::vector<std::uint64_t> arrived, sent;
  std::size_t sent_bytes = 0;
  std::string lost;
  int lacks = 0;
  bool closed = false;
};

struct LinkEnds {
  explicit LinkEnds(std::size_t count = 3) {
    for (std::size_t i = 0; i < count; ++i) {
      auto [near, far] = MemoryLane::pair(loop, a.link, b.link);
      lanes.push_back(near.get());
      if (i == 0) {
        a.link.attach(std::move(near));
        b.link.attach(std::move(far));
      } else {
        a.link.join(std::move(near));
        b.link.await(std::move(far));
      }
    }
    for (LinkEnd* end : {&a, &b}) {
      end->link.state = Link::State::up;
      end->link.start();
    }
    first = lanes.front();
    last = lanes.back();
  }
  static void send(LinkEnd& from, const std::vector<std::byte>& data, std::uint32_t segment_bytes,
                   MemoryToken token) {
    for (std::size_t at = 0; at < data.size(); at += segment_bytes) {
      SegmentHeader header;
      header.offset = at;
      header.bytes =
          static_cast<std::uint32_t>(std::min<std::size_t>(segment_bytes, data.size() - at));
      from.link.send_segment(header, data.data() + at, token, at);
    }
  }
  bool until(const std::function<bool()>& done) { return test::poll_until(loop, done); }

  Loop loop;
  LinkEnd a{2};
  LinkEnd b{1};
  std::vector<MemoryLane*> lanes;  // of `a`
  MemoryLane* first = nullptr;
  MemoryLane* last = nullptr;
};

std::vector<std::byte> numbers(std::size_t size, unsigned seed) {
  std::vector<std::byte> data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>((i * 31 + seed) >> 3);
  return data;
}

TEST(Link, over_lanes_that_are_no_sockets_everything_arrives_in_both_directions) {
  LinkEnds ends;
  const auto up = numbers((6U << 20) + 77, 1);
  const auto down = numbers(3U << 20, 5);
  LinkEnds::send(ends.a, up, 1U << 20, 1);
  LinkEnds::send(ends.b, down, 10000, 1);
  for (int i = 0; i < 50; ++i) {
    ends.a.link.send_message(FrameType::control, test::bytes_of(std::to_string(i)));
  }
  ends.b.link.send_message(FrameType::relay, test::bytes_of("for a third"));
  const std::size_t small = (down.size() + 9999) / 10000;
  ASSERT_TRUE(ends.until([&] {
    return ends.b.arrived.size() == 7 && ends.a.arrived.size() == small &&
           ends.b.messages.size() == 50 && ends.a.relayed.size() == 1;
  }));
  EXPECT_EQ(std::memcmp(ends.b.memory.data(), up.data(), up.size()), 0);
  EXPECT_EQ(std::memcmp(ends.a.memory.data(), down.data(), down.size()), 0);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(ends.b.messages[static_cast<std::size_t>(i)], std::to_string(i));
  }
  ASSERT_TRUE(ends.until([&] { return ends.a.sent.size() == 7 + 50; }));
  EXPECT_EQ(ends.a.link.queued_bytes(), 0U);
}

TEST(Link, that_uses_fewer_lanes_for_a_while_loses_nothing) {
  LinkEnds ends(5);
  const auto data = numbers(8U << 20, 7);
  LinkEnds::send(ends.a, data, 128U << 10, 1);
  for (const std::size_t lanes : {1U, 4U, 2U, 1U}) {
    ends.a.link.use(lanes);
    for (int round = 0; round < 3; ++round) static_cast<void>(ends.loop.run_once(false));
  }
  ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 64; }));
  EXPECT_EQ(ends.b.memory, data);
  EXPECT_EQ(ends.a.link.load().lanes, 4U);
}

TEST(Link, sends_a_small_operation_before_the_rest_of_a_large_one) {
  LinkEnds ends;
  const std::vector<std::byte> data(7U << 20);
  for (int i = 0; i < 10; ++i) LinkEnds::send(ends.a, data, 1U << 20, 1);
  SegmentHeader last;
  last.offset = 7U << 20;
  last.bytes = 1U << 20;
  ends.a.link.send_segment(last, data.data(), 2, last.offset);
  ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 71; }));
  const auto at = std::find(ends.b.arrived.begin(), ends.b.arrived.end(), last.offset);
  const auto before = static_cast<std::size_t>(at - ends.b.arrived.begin());
  EXPECT_LE(before, (BulkQueue::kBatchBytes >> 20) + 2 * ends.lanes.size());
}

TEST(Link, what_is_cancelled_is_not_read_any_more_by_a_lane_that_is_no_socket) {
  LinkEnds ends;
  {
    // Freed after cancel: a sanitizer sees every later touch.
    const auto data = numbers(8U << 20, 1);
    LinkEnds::send(ends.a, data, 1U << 20, 4);
    ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() >= 2; }));
    ends.a.link.cancel(4);
    EXPECT_EQ(ends.a.link.queued_bytes(), 0U);
  }
  const std::size_t arrived = ends.b.arrived.size();
  ends.a.link.send_message(FrameType::control, test::bytes_of("end"));
  ASSERT_TRUE(ends.until([&] { return ends.b.messages.size() == 1; }));
  EXPECT_EQ(ends.b.arrived.size(), arrived);
}

TEST(Link, that_is_closed_delivers_what_was_queued_on_lanes_that_are_no_sockets) {
  LinkEnds ends;
  const auto data = numbers(8U << 20, 3);
  LinkEnds::send(ends.a, data, 1U << 20, 1);
  ends.a.link.send_message(FrameType::control, test::bytes_of("last"));
  ends.a.link.close(kHandshakeMs);
  ASSERT_TRUE(ends.until([&] { return !ends.b.lost.empty(); }));
  EXPECT_EQ(ends.b.lost, "the peer has closed the link");
  EXPECT_EQ(ends.b.memory, data);
  EXPECT_EQ(ends.b.messages.size(), 1U);
  ASSERT_TRUE(ends.until([&] { return ends.a.closed; }));
}

TEST(Link, sends_segments_in_slices_over_several_lanes_and_tells_of_whole_ones) {
  LinkEnds ends(9);
  const auto up = numbers(8U << 20, 1);
  const auto down = numbers((5U << 20) + 4321, 5);
  ends.a.link.use(8);
  ends.b.link.use(3);
  LinkEnds::send(ends.a, up, 1U << 20, 1);
  LinkEnds::send(ends.b, down, 200000, 1);
  const std::size_t back = (down.size() + 199999) / 200000;
  ASSERT_TRUE(
      ends.until([&] { return ends.b.arrived.size() == 8 && ends.a.arrived.size() == back; }));
  EXPECT_EQ(ends.b.memory, up);
  EXPECT_EQ(std::memcmp(ends.a.memory.data(), down.data(), down.size()), 0);
  ASSERT_TRUE(ends.until([&] { return ends.a.sent.size() == 8 && ends.b.sent.size() == back; }));
  EXPECT_EQ(ends.a.sent_bytes, up.size());
  EXPECT_EQ(ends.a.link.queued_bytes(), 0U);
  // The lanes that had slices before the change take whole segments again.
  ends.a.link.use(1);
  LinkEnds::send(ends.a, up, 1U << 20, 2);
  ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 16; }));
}

TEST(Link, sends_the_slices_of_a_cancelled_segment_that_has_begun_and_no_other) {
  for (std::size_t rounds = 0; rounds < 40; ++rounds) {
    LinkEnds ends(5);
    const auto expected = numbers(4U << 20, 9);
    {
      const auto data = numbers(4U << 20, 9);  // freed after cancel
      ends.a.link.use(4);
      LinkEnds::send(ends.a, data, 1U << 20, 4);
      for (std::size_t i = 0; i < rounds; ++i) static_cast<void>(ends.loop.run_once(false));
      ends.a.link.cancel(4);
    }
    ends.a.link.send_message(FrameType::control, test::bytes_of("end"));
    ASSERT_TRUE(
        ends.until([&] { return ends.b.messages.size() == 1 && ends.a.link.queued_bytes() == 0; }));
    for (int i = 0; i < 200; ++i) static_cast<void>(ends.loop.run_once(false));
    const std::size_t told = ends.a.sent.size() - 1;
    EXPECT_LE(told, ends.b.arrived.size()) << "of whole ones alone";
    EXPECT_EQ(ends.a.sent_bytes % (1U << 20), 3U) << "each one that has begun is whole";
    EXPECT_EQ(ends.b.arrived.size(), ends.a.sent_bytes >> 20);
    for (const std::uint64_t offset : ends.b.arrived) {
      EXPECT_EQ(std::memcmp(&ends.b.memory[offset], &expected[offset], 1U << 20), 0);
    }
  }
}

/// The other end of a lane, which breaks the rules.
struct Stranger : LaneOwner {
  void lane_message(FrameType, std::span<const std::byte>) override {}
  Placement lane_segment_header(const SegmentHeader&) override { return {}; }
  void lane_segment(const SegmentHeader&, const Placement&) override {}
  void lane_received(std::size_t, bool) override {}
  void lane_sent(const Outgoing&) override {}
  std::optional<Outgoing> lane_next(const Lane&) override { return std::nullopt; }
  void lane_joined(Lane&) override {}
  void lane_over(Lane&, const std::string&, bool) override {}
  void lane_lost(Lane&, const std::string&, Leftover) override {}
  void lane_closed(Lane&) override {}
};

TEST(Link, is_lost_where_the_other_end_sends_slices_that_cannot_be) {
  for (const bool far_away : {true, false}) {
    LinkEnds ends;
    Stranger stranger;
    auto [lane, far] = MemoryLane::pair(ends.loop, stranger, ends.b.link);
    lane->start();
    ends.b.link.await(std::move(far));
    const auto data = numbers(3 * kSliceBytes, 1);
    for (int i = 0; i < 2; ++i) {
      Outgoing slice;
      slice.frame.type = FrameType::slice;
      slice.frame.payload_bytes = kSliceBytes;
      slice.frame.segment.bytes = 3 * kSliceBytes;
      slice.frame.segment.slice = {7, 0, kSliceBytes};
      if (i == 1 && far_away) slice.frame.segment.slice.number = 1'000'000;
      if (i == 1 && !far_away) {
        slice.frame.segment.slice.offset = kSliceBytes;
        slice.frame.segment.op.index = 1;
      }
      slice.payload = data.data();
      lane->send(std::move(slice));
    }
    ASSERT_TRUE(ends.until([&] { return !ends.b.lost.empty(); }));
    EXPECT_EQ(ends.b.lost, far_away
                               ? "broken framing: slices of more than 16384 segments, and the rest "
                                 "of none"
                               : "broken framing: a slice of another segment than the one of its "
                                 "number");
    EXPECT_TRUE(ends.b.arrived.empty());
  }
}

TEST(Link, is_lost_with_its_small_lane_and_with_a_lane_that_takes_whole_segments_along) {
  for (const bool small : {true, false}) {
    LinkEnds ends(4);
    const auto data = numbers(8U << 20, 3);
    ASSERT_TRUE(ends.until([&] { return ends.b.link.bulk_lanes() == 3; }));
    ends.last->stick(true);  // with one segment
    LinkEnds::send(ends.a, data, 1U << 20, 1);
    ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 7; }));
    (small ? ends.first : ends.last)->cut();
    ASSERT_TRUE(ends.until([&] { return !ends.a.lost.empty(); }));
    EXPECT_EQ(ends.a.lost, "the other end is gone");
    EXPECT_EQ(ends.a.lacks, 0);
  }
}

TEST(Link, goes_on_without_a_lane_that_carries_slices_or_nothing) {
  LinkEnds ends(6);
  const auto data = numbers(8U << 20, 3);
  ends.a.link.use(5);
  for (int lost = 0; lost < 5; ++lost) {
    const auto begun = ends.b.arrived.size();
    LinkEnds::send(ends.a, data, 1U << 20, 1);
    if (lost % 2 == 0) {
      ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() >= begun + 2; }));
    }
    ends.lanes[5 - static_cast<std::size_t>(lost)]->cut();
    ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == begun + 8; }));
    ASSERT_TRUE(ends.until([&] { return ends.a.lacks == lost + 1 && ends.b.lacks == lost + 1; }));
    EXPECT_EQ(ends.a.link.queued_bytes(), 0U);
    EXPECT_EQ(ends.b.memory, data);
    EXPECT_EQ(ends.a.sent.size(), begun + 8) << "each is told once";
    EXPECT_EQ(ends.a.link.view().lanes_lost, static_cast<std::uint64_t>(lost) + 1);
    std::fill(ends.b.memory.begin(), ends.b.memory.end(), std::byte{0});
  }
  EXPECT_EQ(ends.a.link.bulk_lanes(), 0U) << "the small lane carried the last of it";
  EXPECT_TRUE(ends.a.lost.empty() && ends.b.lost.empty());
  auto [near, far] = MemoryLane::pair(ends.loop, ends.a.link, ends.b.link);
  ends.a.link.join(std::move(near));
  ends.b.link.await(std::move(far));
  LinkEnds::send(ends.a, data, 1U << 20, 2);
  ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 48; }));
  EXPECT_EQ(ends.b.link.bulk_lanes(), 1U);
}

TEST(Link, all_its_lanes_go_by_a_model_also_those_that_join_later) {
  LinkEnds ends(3);
  const auto by_model = [&] {
    return std::count_if(ends.lanes.begin(), ends.lanes.end(),
                         [](const MemoryLane* lane) { return lane->line.by_model; });
  };
  ends.a.link.go_by_model(true);
  EXPECT_EQ(by_model(), 3) << "the small lane carries what the others do not";
  auto [near, far] = MemoryLane::pair(ends.loop, ends.a.link, ends.b.link);
  ends.lanes.push_back(near.get());
  ends.a.link.join(std::move(near));
  EXPECT_EQ(by_model(), 4);
  ends.a.link.go_by_model(false);
  EXPECT_EQ(by_model(), 0);
}

TEST(Link, shares_its_pace_alike_between_lanes_that_go_by_losses_and_all_of_it_where_few_send) {
  for (const bool by_model : {true, false}) {
    LinkEnds ends(9);
    for (MemoryLane* lane : ends.lanes) {
      lane->line.by_model = by_model;
      lane->line.least_trip_us = 80'000;
    }
    ends.a.link.use(8);
    ASSERT_TRUE(ends.until([&] { return ends.b.link.bulk_lanes() == 8; }));
    ends.a.link.pace(16'000'000);
    ends.lanes[1]->line.arrived_bytes = 3'000'000;
    for (std::size_t i = 2; i < 9; ++i) ends.lanes[i]->line.arrived_bytes = 1'000'000;
    ends.a.link.pace(16'000'008);
    const auto last = [&](std::size_t lane) { return ends.lanes[lane]->paces.back(); };
    if (by_model) {
      EXPECT_EQ(last(1), 4'100'002U)
          << "a quarter alike, of the rest the three tenths that it has carried";
      EXPECT_LT(last(2), 2'000'000U);
    } else {
      EXPECT_EQ(last(1), 2'000'001U);
      EXPECT_EQ(last(2), 2'000'001U);
    }
    EXPECT_EQ(ends.lanes[0]->paces, std::vector<std::uint64_t>()) << "the small lane is not held";
    for (MemoryLane* lane : ends.lanes) lane->paces.clear();
    const auto large = numbers(8U << 20, 3);
    LinkEnds::send(ends.a, large, 1U << 20, 1);
    ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 8; }));
    std::uint64_t most = 0;
    for (MemoryLane* lane : ends.lanes) {
      for (const std::uint64_t pace : lane->paces) most = std::max(most, pace);
      lane->paces.clear();
    }
    EXPECT_EQ(most > 2'000'001, !by_model) << "the last slices have the shares of idle lanes";
    const auto small = numbers(kSliceBytes + 100, 4);
    LinkEnds::send(ends.a, small, kSliceBytes + 100, 2);
    ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 9; }));
    for (MemoryLane* lane : ends.lanes) {
      for (const std::uint64_t pace : lane->paces) EXPECT_GE(pace, 4'000'002U);
    }
    LinkEnds::send(ends.a, large, 1U << 20, 3);
    ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() >= 12; }));
    if (!by_model) {
      EXPECT_EQ(last(1), 2'000'001U) << "while many wait";
    }
    ends.a.link.pace(0);
    const std::uint64_t free = by_model ? 0 : 0xFFFFFFFE;  // but spread over the round trip
    for (std::size_t i = 1; i < 9; ++i) EXPECT_EQ(last(i), free);
    ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 17; }));
    for (std::size_t i = 1; i < 9; ++i) EXPECT_EQ(last(i), free) << "and stays so";
    ends.a.link.use(1);
    for (std::size_t i = 1; i < 9; ++i) EXPECT_EQ(last(i), 0U) << "one lane, or none";
  }
}

TEST(Link, gives_one_slice_to_each_lane_before_any_takes_what_its_buffer_holds) {
  LinkEnds ends(5);
  ends.a.link.use(4);
  ASSERT_TRUE(ends.until([&] { return ends.b.link.bulk_lanes() == 4; }));
  for (MemoryLane* lane : ends.lanes) lane->buffers = 4;
  const auto took = [&] {
    std::vector<std::size_t> slices;
    for (MemoryLane* lane : ends.lanes) slices.push_back(std::exchange(lane->buffered, 0));
    return slices;
  };
  const auto six = numbers(6 * kSliceBytes, 3);
  LinkEnds::send(ends.a, six, 1U << 20, 1);
  EXPECT_EQ(took(), (std::vector<std::size_t>{0, 2, 2, 1, 1}));
  const auto two = numbers(2 * kSliceBytes, 3);
  LinkEnds::send(ends.a, two, 1U << 20, 2);
  EXPECT_EQ(took(), (std::vector<std::size_t>{0, 1, 1, 0, 0}));
  const auto many = numbers(18 * kSliceBytes, 3);
  LinkEnds::send(ends.a, many, 1U << 20, 3);
  EXPECT_EQ(took(), (std::vector<std::size_t>{0, 4, 4, 4, 4})) << "and what is left waits";
  ends.lanes[2]->flush();
  EXPECT_EQ(took(), (std::vector<std::size_t>{0, 0, 2, 0, 0})) << "for the lane that can send";
  EXPECT_EQ(ends.a.link.queued_bytes(), 0U);
  for (MemoryLane* lane : ends.lanes) lane->buffers = 1;
  LinkEnds::send(ends.a, six, 1U << 20, 4);
  EXPECT_EQ(took(), (std::vector<std::size_t>{0, 1, 1, 1, 1}));
  for (MemoryLane* lane : ends.lanes) lane->buffers = 4;
  ends.a.link.state = Link::State::closing;
  ends.a.link.cancel(5);  // that of others, which wakes the lanes
  EXPECT_EQ(took(), (std::vector<std::size_t>{0, 2, 0, 0, 0}))
      << "it says goodbye when none is left";
}

TEST(Link, gives_the_slices_of_a_lane_that_is_stuck_to_the_others) {
  LinkEnds ends(5);
  const auto data = numbers(8U << 20, 3);
  ends.a.link.use(4);
  ASSERT_TRUE(ends.until([&] { return ends.b.link.bulk_lanes() == 4; }));
  ends.last->stick(true);
  LinkEnds::send(ends.a, data, 1U << 20, 1);
  std::uint64_t now_ms = 1;
  const auto look = [&] {
    ends.a.link.mend(now_ms += 10);
    return ends.b.arrived.size() == 8;
  };
  ASSERT_TRUE(ends.until(look));
  EXPECT_EQ(ends.b.memory, data);
  ASSERT_TRUE(ends.until([&] { return ends.a.sent.size() == 8; }));
  EXPECT_EQ(ends.a.link.queued_bytes(), 0U);
  EXPECT_TRUE(ends.a.lost.empty());
  EXPECT_EQ(ends.a.link.view().lanes_lost, 0U);
  // Once it goes on it is used again.
  ends.last->stick(false);
  ends.a.link.mend(now_ms += 10);
  EXPECT_EQ(ends.a.link.load().lanes, 4U);
}

TEST(Link, takes_no_lane_for_stuck_because_nobody_has_looked_for_long) {
  LinkEnds ends(5);
  const auto data = numbers(8U << 20, 3);
  ends.a.link.use(4);
  ASSERT_TRUE(ends.until([&] { return ends.b.link.bulk_lanes() == 4; }));
  ends.a.link.mend(1000);
  ends.last->stick(true);
  LinkEnds::send(ends.a, data, 1U << 20, 1);
  for (const std::uint64_t now_ms : {900'000U, 900'050U, 900'100U}) {
    ends.a.link.mend(now_ms);
    for (int round = 0; round < 500; ++round) static_cast<void>(ends.loop.run_once(false));
  }
  EXPECT_EQ(ends.b.arrived.size(), 7U) << "one waits for the last lane";
  ends.last->stick(false);
  ASSERT_TRUE(ends.until([&] { return ends.b.arrived.size() == 8; }));
  EXPECT_EQ(ends.b.memory, data);
}

/// A link of sockets, whose connections a test can cut as a network does.
struct TcpEnds {
  explicit TcpEnds(bool encrypted, std::size_t lanes = 9) {
    auto listening = std::move(listen_on(loop, {"127.0.0.1"}, 0, 0)).value();
    for (std::size_t i = 0; i < lanes; ++i) {
      const auto kind = i == 0 ? Lane::Kind::small : Lane::Kind::bulk;
      auto [near, far] = connection(listening[0].fd(), encrypted);
      auto here = std::make_unique<StreamLane>(loop, a.link, kind, std::move(near), !encrypted);
      auto there = std::make_unique<StreamLane>(loop, b.link, kind, std::move(far), !encrypted);
      if (i == 0) {
        a.link.attach(std::move(here));
        b.link.attach(std::move(there));
      } else {
        a.link.join(std::move(here));
        b.link.await(std::move(there));
      }
    }
    for (LinkEnd* end : {&a, &b}) {
      end->link.state = Link::State::up;
      end->link.use(lanes - 1);
      end->link.start();
    }
  }
  using Two = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;
  Two connection(int listening, bool encrypted) {
    const int near = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    socklen_t size = sizeof to;
    EXPECT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&to), &size), 0);
    const int small = 64 << 10;  // so that something is under way
    ::setsockopt(near, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    ::setsockopt(near, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    EXPECT_EQ(::connect(near, reinterpret_cast<sockaddr*>(&to), size), 0);
    int far = -1;
    while (far < 0) far = ::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    EXPECT_EQ(::fcntl(near, F_SETFL, O_NONBLOCK), 0);
    fds.push_back(near);
    auto here = std::make_unique<SocketStream>(loop, Socket(loop, near));
    auto there = std::make_unique<SocketStream>(loop, Socket(loop, far));
    if (!encrypted) return {std::move(here), std::move(there)};
    const Secret key = {};
    auto dialled = TlsStream::dial(loop, std::move(here), "test", key);
    auto accepted = TlsStream::accept(loop, std::move(there),
                                      [key](std::string_view) { return std::optional(key); });
    EXPECT_TRUE(
        test::poll_until(loop, [&] { return dialled->established() && accepted->established(); }));
    return {std::move(dialled), std::move(accepted)};
  }
  /// `a` loses the connection at once, with all that it has written and `b` has not acknowledged;
  /// `b` hears of it.
  void cut(std::size_t lane) const {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    EXPECT_EQ(::connect(fds[lane], &none, sizeof none), 0);
  }

  Loop loop;
  LinkEnd a{2};
  LinkEnd b{1};
  std::vector<int> fds;  // of `a`
};

TEST(Link, sends_again_what_was_lost_with_a_connection_and_nothing_is_missed) {
  for (const bool encrypted : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Random random(seed);
      TcpEnds ends(encrypted);
      const auto data = numbers(8U << 20, static_cast<unsigned>(seed));
      ASSERT_TRUE(test::poll_until(ends.loop, [&] { return ends.b.link.bulk_lanes() == 8; }));
      LinkEnds::send(ends.a, data, 1U << 20, 1);
      std::size_t lost = 0;
      std::uint64_t wait = random.below(20);
      ASSERT_TRUE(test::poll_until(ends.loop,
                                   [&] {
                                     if (lost < 8 && wait-- == 0) {
                                       ends.cut(++lost);
                                       wait = random.below(20);
                                     }
                                     return ends.b.arrived.size() == 8;
                                   }))
          << "seed " << seed;
      EXPECT_EQ(ends.b.memory, data) << "seed " << seed;
      ASSERT_TRUE(test::poll_until(ends.loop, [&] { return ends.a.sent.size() == 8; }));
      EXPECT_EQ(ends.a.link.queued_bytes(), 0U);
      EXPECT_TRUE(ends.a.lost.empty() && ends.b.lost.empty()) << ends.a.lost << ends.b.lost;
      ASSERT_TRUE(test::poll_until(ends.loop, [&] {
        return ends.a.link.view().lanes_lost == lost && ends.b.link.view().lanes_lost == lost;
      }));
    }
  }
}

TEST(Link, reads_no_memory_that_was_cancelled_for_what_it_sends_again) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    TcpEnds ends(/*encrypted=*/true, 4);
    ASSERT_TRUE(test::poll_until(ends.loop, [&] { return ends.b.link.bulk_lanes() == 3; }));
    {
      const auto data = numbers(8U << 20, 9);  // freed after cancel: a sanitizer sees later touches
      LinkEnds::send(ends.a, data, 1U << 20, 1);
      for (std::uint64_t i = 0; i < seed; ++i) static_cast<void>(ends.loop.run_once(false));
      if (seed % 2 == 0) ends.cut(1);
      for (std::uint64_t i = 0; i < seed % 5; ++i) static_cast<void>(ends.loop.run_once(false));
      ends.a.link.cancel(1);
    }
    ends.cut(2);
    const auto next = numbers(8U << 20, 5);
    const std::size_t arrived = ends.b.arrived.size();
    LinkEnds::send(ends.a, next, 1U << 20, 2);
    ASSERT_TRUE(test::poll_until(ends.loop, [&] {
      return ends.a.link.queued_bytes() == 0 && ends.b.arrived.size() >= arrived + 8;
    }));
    EXPECT_TRUE(ends.a.lost.empty());
  }
}

}  // namespace
}  // namespace pccl
