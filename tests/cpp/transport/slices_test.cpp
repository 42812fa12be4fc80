// Segments that go in slices: what comes is what was sent, whatever the order; what cannot be is
// refused; memory that goes is not read any more.
#include "transport/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
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

/// Of one segment for each payload, of the tokens 1, 2, …
std::vector<Outgoing> all_slices(SlicesOut& out,
                                 const std::vector<std::vector<std::byte>>& payloads) {
  std::vector<Outgoing> slices;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    out.cut(segment_of(payloads[i], i + 1));
    for (Outgoing& slice : all_slices(out)) slices.push_back(std::move(slice));
  }
  return slices;
}

template <class Item>
void shuffle(std::vector<Item>& items, Random& random) {
  for (std::size_t i = items.size() - 1; i > 0; --i) {
    std::swap(items[i], items[random.below(i + 1)]);
  }
}

/// The slices as the other end takes them, into memory of its own.
struct Receiver {
  /// The header has come.
  std::optional<Placement> begin(const Outgoing& slice) {
    const SegmentHeader& header = slice.frame.segment;
    auto found = in.find(header);
    if (!found) return std::nullopt;
    if (!found.value()) {
      memory.emplace_back(header.bytes);
      found = std::optional<Placement>{Placement{memory.back().data(), 5, memory.size() - 1}};
      in.place(header, *found.value());
    }
    return place_of_slice(*found.value(), header);
  }
  /// The payload has come. Must others that read the slice drop it?
  bool end(const Outgoing& slice) {
    const SlicesIn::Arrival arrival = in.arrived(slice.frame.segment);
    if (arrival.whole) {
      EXPECT_FALSE(arrival.whole->header.slice.is_one());
      wholes.push_back(*arrival.whole);
    }
    return arrival.twice;
  }
  bool take(const Outgoing& slice) {
    const auto at = begin(slice);
    if (!at) return false;
    if (at->to != nullptr) std::memcpy(at->to, slice.payload, slice.payload_bytes());
    static_cast<void>(end(slice));
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
    for (int i = 0; i < 10; ++i) {
      payloads.push_back(payload_of(1 + random.below(kSegmentBytesMax), i));
    }
    std::vector<Outgoing> under_way = all_slices(out, payloads);
    shuffle(under_way, random);
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
  for (Outgoing& slice : slices) own_payload(slice);  // as lanes do
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

TEST(Slices, one_that_comes_twice_is_dropped_and_one_of_another_segment_is_refused) {
  const std::vector<std::byte> payload = payload_of(5 * kSlice, 3);
  SlicesOut out;
  out.cut(segment_of(payload, 1));
  std::vector<Outgoing> slices = all_slices(out);
  Receiver receiver;
  ASSERT_TRUE(receiver.take(slices[1]));
  std::fill_n(receiver.memory[0].begin() + kSlice, kSlice, std::byte{0xEE});
  const std::vector<std::byte> before = receiver.memory[0];
  ASSERT_TRUE(receiver.take(slices[1]));
  EXPECT_EQ(receiver.memory[0], before);
  Outgoing other = slices[2];
  other.frame.segment.op.index = 9;
  EXPECT_FALSE(receiver.take(other));
  other = slices[2];
  other.frame.segment.bytes += kSlice;
  EXPECT_FALSE(receiver.take(other));
  for (const std::size_t i : {0U, 2U, 3U, 4U}) ASSERT_TRUE(receiver.take(slices[i]));
  ASSERT_EQ(receiver.wholes.size(), 1U);
  for (const Outgoing& slice : slices) ASSERT_TRUE(receiver.take(slice)) << "long since whole";
  EXPECT_EQ(receiver.wholes.size(), 1U);
  EXPECT_EQ(receiver.memory.size(), 1U) << "no new place was asked for";
  EXPECT_EQ(receiver.in.size(), 0U);
}

/// A lane in the middle of a slice, half of whose bytes have been written to their place.
struct Reading {
  const Outgoing* slice;
  Placement at;
};

TEST(Slices, memory_of_a_whole_segment_is_written_by_no_lane_that_still_reads_a_slice_of_it) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    SlicesOut out;
    std::vector<std::vector<std::byte>> payloads;
    for (int i = 0; i < 3; ++i)
      payloads.push_back(payload_of(kSlice + 1 + random.below(8 * kSlice), i));
    const std::vector<Outgoing> slices = all_slices(out, payloads);
    std::vector<const Outgoing*> under_way;  // each one to four times
    for (const Outgoing& slice : slices) {
      for (std::uint64_t i = random.below(4); i < 4; ++i) under_way.push_back(&slice);
    }
    shuffle(under_way, random);
    Receiver receiver;
    std::vector<Reading> lanes;
    const auto write = [](const Reading& lane, std::size_t from, std::size_t to) {
      if (lane.at.to == nullptr) return;
      std::memcpy(lane.at.to + from, lane.slice->payload + from, to - from);
    };
    while (!under_way.empty() || !lanes.empty()) {
      if (!under_way.empty() && (lanes.size() < 2 || random.below(2) == 0)) {
        const Outgoing& slice = *under_way.back();
        under_way.pop_back();
        const auto at = receiver.begin(slice);
        ASSERT_TRUE(at);
        lanes.push_back({&slice, *at});
        write(lanes.back(), 0, slice.payload_bytes() / 2);
        continue;
      }
      const auto which = lanes.begin() + static_cast<std::ptrdiff_t>(random.below(lanes.size()));
      const Reading lane = *which;
      lanes.erase(which);
      if (random.below(5) == 0 && !under_way.empty()) {
        under_way.insert(under_way.begin(), lane.slice);  // lost, and sent again
        continue;
      }
      write(lane, lane.slice->payload_bytes() / 2, lane.slice->payload_bytes());
      const std::size_t wholes = receiver.wholes.size();
      if (receiver.end(*lane.slice)) {
        for (Reading& other : lanes) {
          if (other.slice == lane.slice) other.at = {};
        }
      }
      if (receiver.wholes.size() == wholes) continue;
      auto& memory = receiver.memory[receiver.wholes.back().at.cookie];
      EXPECT_EQ(memory, payloads[receiver.wholes.back().header.op.step - 1]);
      std::fill(memory.begin(), memory.end(), std::byte{0xEE});  // its owner uses it
    }
    ASSERT_EQ(receiver.wholes.size(), payloads.size()) << "seed " << seed;
    for (const auto& memory : receiver.memory) {
      EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0xEE}),
                static_cast<std::ptrdiff_t>(memory.size()))
          << "seed " << seed;
    }
  }
}

TEST(Slices, that_a_lane_gives_back_are_taken_first_and_told_once) {
  std::vector<std::byte> payload = payload_of(6 * kSlice, 1);
  const std::vector<std::byte> expected = payload;
  SlicesOut out;
  out.cut(segment_of(payload, 3));
  std::vector<Outgoing> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(out.take());
  EXPECT_FALSE(out.cuts());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(out.sent(taken[static_cast<std::size_t>(i)]));
  std::vector<Outgoing> back;
  for (std::size_t i = 1; i < 5; ++i) {
    if (i < 3) {  // the kernel had these, and their copies are what is left
      own_payload(taken[i]);
      taken[i].copy = Outgoing::Copy::again;
    }
    back.push_back(std::move(taken[i]));
  }
  out.put_back(std::move(back));
  ASSERT_TRUE(out.cuts());
  out.cancel(3);
  std::fill(payload.begin(), payload.end(), std::byte{0xEE});
  Receiver receiver;
  ASSERT_TRUE(receiver.take(taken[0]));
  std::memcpy(receiver.memory[0].data(), expected.data(), kSlice);
  int told = 0;
  std::uint32_t offset = kSlice;
  for (Outgoing& slice : all_slices(out)) {
    EXPECT_EQ(slice.frame.segment.slice.offset, std::exchange(offset, offset + kSlice));
    EXPECT_EQ(slice.token, 0U);
    ASSERT_TRUE(receiver.take(slice));
    told += out.sent(slice) ? 1 : 0;
  }
  EXPECT_EQ(told, 0);
  EXPECT_TRUE(out.sent(taken[5])) << "the last one that the kernel takes for the first time";
}

TEST(Slices, segments_that_never_end_have_a_limit) {
  SlicesIn in;
  SegmentHeader header;
  header.bytes = 2 * kSlice;
  for (std::size_t i = 1; i <= kSlicedSegmentsMax; ++i) {
    header.slice = {i, 0, kSlice};
    ASSERT_TRUE(in.find(header).ok());
    in.place(header, {});
  }
  header.slice = {kSlicedSegmentsMax + 1, 0, kSlice};
  EXPECT_EQ(in.find(header).error().code, ErrorCode::malformed);
  header.slice = {7, kSlice, kSlice};
  EXPECT_TRUE(in.find(header).ok()) << "those that have begun go on";

  SlicesIn gaps;
  header.slice = {kSlicedSegmentsMax + 1, 0, kSlice};
  EXPECT_EQ(gaps.find(header).error().code, ErrorCode::malformed);
  header.slice.number = ~std::uint64_t{0};
  EXPECT_EQ(gaps.find(header).error().code, ErrorCode::malformed);
  header.slice.number = kSlicedSegmentsMax;
  EXPECT_TRUE(gaps.find(header).ok());
  EXPECT_EQ(gaps.size(), kSlicedSegmentsMax);
}

}  // namespace
}  // namespace pccl
