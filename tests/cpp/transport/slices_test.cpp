// Segments that go in slices: what comes is what was sent, whatever the order; what cannot be is
// refused; memory that goes is not read any more.
#include "transport/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/limits.h"
#include "base/random.h"

namespace pccl {
namespace {

constexpr std::uint32_t kSlice = kSliceBytes;

std::vector<std::byte> payload_of(std::size_t bytes, int seed) {
  std::vector<std::byte> payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 13 >> seed);
  return payload;
}

Outgoing segment_of(const std::vector<std::byte>& payload, MemoryToken token) {
  Outgoing segment;
  segment.frame.type = FrameType::segment;
  segment.frame.payload_bytes = static_cast<std::uint32_t>(payload.size());
  segment.frame.segment.bytes = segment.frame.payload_bytes;
  segment.frame.segment.op = {token, 0};
  segment.payload = payload.data();
  segment.token = token;
  segment.cookie = 100 + token;
  segment.tells = true;
  return segment;
}

std::vector<Outgoing> all_slices(SlicesOut& out) {
  std::vector<Outgoing> slices;
  while (out.cuts()) slices.push_back(out.take());
  return slices;
}

/// The slices as the other end takes them, into memory of its own.
struct Receiver {
  bool take(const Outgoing& slice) {
    const SegmentHeader& header = slice.frame.segment;
    auto found = in.find(header);
    if (!found) return false;
    if (!found.value()) {
      memory.emplace_back(header.bytes);
      found = std::optional<Placement>{Placement{memory.back().data(), 5, memory.size() - 1}};
      in.place(header, *found.value());
    }
    const Placement at = place_of_slice(*found.value(), header);
    if (at.to != nullptr) std::memcpy(at.to, slice.payload, slice.payload_bytes());
    if (const auto whole = in.arrived(header)) {
      EXPECT_FALSE(whole->header.slice.is_one());
      wholes.push_back(*whole);
    }
    return true;
  }
  SlicesIn in;
  std::vector<std::vector<std::byte>> memory;
  std::vector<SlicesIn::Whole> wholes;
};

TEST(Slices, come_together_in_any_order_and_over_each_other) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    SlicesOut out;
    std::vector<std::vector<std::byte>> payloads;
    std::vector<Outgoing> under_way;
    for (int i = 0; i < 10; ++i) {
      payloads.push_back(payload_of(1 + random.below(kSegmentBytesMax), i));
    }
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      out.cut(segment_of(payloads[i], i + 1));
      for (Outgoing& slice : all_slices(out)) under_way.push_back(std::move(slice));
    }
    for (std::size_t i = under_way.size() - 1; i > 0; --i) {
      std::swap(under_way[i], under_way[random.below(i + 1)]);
    }
    Receiver receiver;
    std::vector<std::uint64_t> told;
    for (const Outgoing& slice : under_way) {
      EXPECT_FALSE(slice.tells);
      EXPECT_LE(slice.payload_bytes(), kSlice);
      ASSERT_TRUE(receiver.take(slice));
      if (const auto segment = out.sent(slice)) told.push_back(segment->cookie);
    }
    ASSERT_EQ(receiver.wholes.size(), payloads.size());
    EXPECT_EQ(told.size(), payloads.size());
    EXPECT_EQ(receiver.in.size(), 0U);
    for (const auto& whole : receiver.wholes) {
      EXPECT_EQ(receiver.memory[whole.at.cookie], payloads[whole.header.op.step - 1]);
    }
  }
}

TEST(Slices, a_segment_that_is_cancelled_is_sent_to_its_end_from_a_copy) {
  std::vector<std::byte> payload = payload_of(10 * kSlice + 7, 1);
  const std::vector<std::byte> expected = payload;
  SlicesOut out;
  Outgoing segment = segment_of(payload, 3);
  out.cut(std::move(segment));
  std::vector<Outgoing> slices;
  for (int i = 0; i < 4; ++i) slices.push_back(out.take());
  out.cancel(4);  // another one
  EXPECT_EQ(slices.back().token, 3U);
  out.cancel(3);
  for (Outgoing& slice : slices) own_rest(slice);  // as lanes do
  std::fill(payload.begin(), payload.end(), std::byte{0xEE});
  for (Outgoing& slice : all_slices(out)) slices.push_back(std::move(slice));
  Receiver receiver;
  for (const Outgoing& slice : slices) {
    EXPECT_EQ(slice.token, 0U);
    ASSERT_TRUE(receiver.take(slice));
    if (const auto whole = out.sent(slice)) {
      EXPECT_FALSE(whole->tells);
    }
  }
  EXPECT_EQ(receiver.memory.at(0), expected);
}

TEST(Slices, what_is_cancelled_where_it_arrives_is_dropped_to_its_end) {
  const std::vector<std::byte> payload = payload_of(5 * kSlice, 2);
  SlicesOut out;
  out.cut(segment_of(payload, 1));
  const std::vector<Outgoing> slices = all_slices(out);
  Receiver receiver;
  ASSERT_TRUE(receiver.take(slices[0]));
  receiver.in.cancel(5);
  std::vector<std::byte> before = receiver.memory[0];
  for (std::size_t i = 1; i < slices.size(); ++i) ASSERT_TRUE(receiver.take(slices[i]));
  EXPECT_EQ(receiver.memory[0], before);
  ASSERT_EQ(receiver.wholes.size(), 1U);
  EXPECT_TRUE(receiver.wholes[0].at.drops());
  EXPECT_EQ(receiver.in.size(), 0U);
}

TEST(Slices, one_that_comes_twice_or_belongs_to_another_segment_is_refused) {
  const std::vector<std::byte> payload = payload_of(5 * kSlice, 3);
  SlicesOut out;
  out.cut(segment_of(payload, 1));
  std::vector<Outgoing> slices = all_slices(out);
  Receiver receiver;
  ASSERT_TRUE(receiver.take(slices[1]));
  EXPECT_FALSE(receiver.take(slices[1]));
  Outgoing other = slices[2];
  other.frame.segment.op.index = 9;
  EXPECT_FALSE(receiver.take(other));
  other = slices[2];
  other.frame.segment.bytes += kSlice;
  EXPECT_FALSE(receiver.take(other));
  EXPECT_TRUE(receiver.take(slices[2]));
}

TEST(Slices, segments_that_never_end_have_a_limit) {
  SlicesIn in;
  SegmentHeader header;
  header.bytes = 2 * kSlice;
  for (std::size_t i = 0; i < kSlicedSegmentsMax; ++i) {
    header.slice = {i, 0, kSlice};
    ASSERT_TRUE(in.find(header).ok());
    in.place(header, {});
  }
  header.slice = {kSlicedSegmentsMax, 0, kSlice};
  EXPECT_EQ(in.find(header).error().code, ErrorCode::malformed);
  header.slice = {7, kSlice, kSlice};
  EXPECT_TRUE(in.find(header).ok()) << "those that have begun go on";
}

}  // namespace
}  // namespace pccl
