// Segments that travel as references: their bytes stay in the area of the process that sends them.
#include <gtest/gtest.h>

#include <algorithm>

#include "recorder.h"
#include "shared_ends.h"
#include "transport/area.h"
#include "transport/stream_lane.h"

namespace pccl {
namespace {

using test::Pair;

constexpr std::uint32_t kReferredBytes = 100'000;

LinkOptions in_memory() {
  LinkOptions options;
  options.shared_memory = true;
  return options;
}

/// `low` sends what lies in its area to `high`.
struct Lenders : Pair {
  explicit Lenders(const LinkOptions& options = in_memory()) : Pair(options) {
    open();
    OwnArea* const area = low.links->area();
    if (area == nullptr) return;
    part = area->take(2);
    std::fill_n(part->data(), 2 * kAreaSlotBytes, std::byte{7});
    // The link is up before the other side has mapped the area.
    bool refers = false;
    high.events.place = [&](const SegmentHeader& header) {
      refers = header.area.generation != 0;
      return Placement{};
    };
    EXPECT_TRUE(until([&] {
      if (!refers) send(part->data(), 0);
      return refers && low.events.sent.size() == high.events.headers;
    }));
    high.events.headers = 0;
    low.events.sent.clear();
    sent_before = low.links->bytes_sent();
    received_before = high.links->bytes_received();
  }
  void send(const std::byte* from, std::uint64_t cookie = 5) {
    SegmentHeader header;
    header.bytes = kReferredBytes;
    low.links->send_segment(high_id(), header, from, 1, cookie);
  }
  /// High places segments here.
  std::vector<std::byte>& place_in_memory() {
    high.events.place = [this](const SegmentHeader& header) {
      seen.push_back(header);
      return Placement{memory.data(), 9, 3};
    };
    return memory;
  }
  std::optional<OwnArea::Part> part;
  std::uint64_t sent_before = 0;
  std::uint64_t received_before = 0;
  std::vector<std::byte> memory = std::vector<std::byte>(kReferredBytes);
  std::vector<SegmentHeader> seen;
};

TEST(Reference, what_lies_in_the_area_arrives_without_going_through_the_rings) {
  Lenders pair;
  const auto& memory = pair.place_in_memory();
  pair.send(pair.part->data() + kAreaSlotBytes);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() == 1; }));
  EXPECT_EQ(std::ranges::count(memory, std::byte{7}), kReferredBytes);
  EXPECT_EQ(pair.seen.at(0).area.slot, 1U);
  EXPECT_NE(pair.seen.at(0).area.generation, 0U);
  EXPECT_TRUE(pair.seen.at(0).in_place);
  EXPECT_EQ(pair.high.events.arrived[0].bytes, kReferredBytes);
  EXPECT_EQ(pair.high.events.last.cookie, 3U);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.sent.size() == 1; }));
  EXPECT_EQ(pair.low.events.sent[0], 5U);
  EXPECT_EQ(pair.low.links->bytes_sent() - pair.sent_before, kReferredBytes)
      << "as if it had gone there";
  EXPECT_EQ(pair.high.links->bytes_received() - pair.received_before, kReferredBytes);
  EXPECT_GE(pair.low.links->bytes_shared(), kReferredBytes);
  EXPECT_EQ(pair.low.links->queued_bytes(pair.high_id()), 0U);
}

TEST(Reference, memory_beside_the_begin_of_a_slot_and_free_slots_travel_with_their_bytes) {
  Lenders pair;
  const auto& memory = pair.place_in_memory();
  const std::byte* const free = pair.part->data();
  pair.send(free + 64);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() == 1; }));
  EXPECT_EQ(std::ranges::count(memory, std::byte{7}), kReferredBytes);
  pair.part.reset();
  pair.send(free);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() == 2; }));
  for (const SegmentHeader& header : pair.seen) EXPECT_EQ(header.area, AreaPlace{});
}

TEST(Reference, a_segment_that_is_lent_lies_there_until_its_reader_is_done) {
  Lenders pair;
  pair.high.events.place = [](const SegmentHeader&) {
    return Placement{nullptr, 9, 3, /*in_parts=*/false, /*lends=*/true};
  };
  pair.send(pair.part->data());
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() == 1; }));
  const Placement at = pair.high.events.last;
  ASSERT_TRUE(at.lends && at.lender);
  const AreaPlace place = pair.high.events.arrived[0].area;
  EXPECT_EQ(std::count(at.lender->at(place.slot), at.lender->at(place.slot) + kReferredBytes,
                       std::byte{7}),
            kReferredBytes);
  EXPECT_TRUE(at.lender->holds(place));
  pair.part.reset();
  EXPECT_TRUE(at.lender->holds(place)) << "nothing is written to a free slot";
  const auto other = pair.low.links->area()->take(1);
  EXPECT_FALSE(at.lender->holds(place)) << "another operation has taken it";
  pair.low.links.reset();
  EXPECT_EQ(at.lender->at(place.slot)[0], std::byte{7}) << "the memory stays without its owner";
}

TEST(Reference, parts_are_shown_where_they_lie) {
  struct Parts : test::Recorder {
    void segment_part(PeerId, const SegmentHeader&, const Placement&, std::uint32_t offset,
                      std::span<const std::byte> bytes) override {
      EXPECT_EQ(offset, shown.size());
      shown.insert(shown.end(), bytes.begin(), bytes.end());
    }
    std::vector<std::byte> shown;
  };
  Parts parts;
  Loop loop;
  LinkOptions options = in_memory();
  options.listen_hosts = {"127.0.0.1"};
  test::Recorder events;
  auto from = std::move(make_tcp_links(loop, events, KeyPair::make(), options)).value();
  auto to = std::move(make_tcp_links(loop, parts, KeyPair::make(), options)).value();
  const auto handle = [](const Links& links) {
    return Handle{links.self(), {"127.0.0.1:" + std::to_string(links.port())}, links.key()};
  };
  from->open(handle(*to), 30000, false);
  to->open(handle(*from), 30000, false);
  ASSERT_TRUE(test::run_until(loop, [&] { return events.ups > 0 && parts.ups > 0; }));
  parts.place = [](const SegmentHeader&) { return Placement{nullptr, 9, 3, /*in_parts=*/true}; };
  const auto part = from->area()->take(1);
  std::fill_n(part->data(), kReferredBytes, std::byte{4});
  SegmentHeader header;
  header.bytes = kReferredBytes;
  from->send_segment(to->self(), header, part->data(), 1, 1);
  ASSERT_TRUE(test::run_until(loop, [&] { return parts.arrived.size() == 1; }));
  EXPECT_EQ(parts.shown, std::vector<std::byte>(kReferredBytes, std::byte{4}));
}

TEST(Reference, what_has_another_generation_by_then_never_arrives_and_the_link_goes_on) {
  Lenders pair;
  pair.place_in_memory();
  bool taken_again = false;
  std::optional<OwnArea::Part> again;
  pair.high.events.on_header = [&](const SegmentHeader&) {  // while its bytes are about to be read
    if (std::exchange(taken_again, true)) return;
    pair.part.reset();
    again = pair.low.links->area()->take(2);
  };
  const std::byte* const slot = pair.part->data();
  pair.send(slot, 1);
  pair.send(slot, 2);  // the first one's reading ends its place too
  ASSERT_TRUE(pair.until([&] { return pair.low.events.sent.size() == 2; }));
  pair.send(again ? again->data() : slot, 3);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() == 1; }));
  EXPECT_EQ(pair.high.events.headers, 2U) << "the second one was not even asked for";
  EXPECT_EQ(pair.high.events.losses, 1U) << "the first one had a place";
  EXPECT_TRUE(pair.high.events.down.empty());
}

TEST(Reference, a_link_without_memory_carries_the_bytes) {
  LinkOptions options;
  Lenders pair(options);
  EXPECT_EQ(pair.low.links->area(), nullptr);
  const auto area = std::move(OwnArea::make()).value();
  const auto part = area->take(1);
  const auto& memory = pair.place_in_memory();
  std::fill_n(part->data(), kReferredBytes, std::byte{2});
  pair.send(part->data());
  ASSERT_TRUE(pair.until([&] { return pair.high.events.arrived.size() == 1; }));
  EXPECT_EQ(std::ranges::count(memory, std::byte{2}), kReferredBytes);
}

TEST(Reference, a_reference_to_memory_that_was_not_passed_ends_the_link) {
  for (const std::size_t lane : {std::size_t{0}, std::size_t{1}}) {
    Pair pair;
    const KeyPair key = test::key_below(pair.high_id());
    pair.high.links->open({peer_of(key.public_key()), {}, key.public_key()}, 30000, false);
    test::BarePeer peer(pair, key, 77, 2);
    ASSERT_TRUE(pair.until([&] { return pair.high.events.ups == 1; }));
    FrameHeader frame;
    frame.type = FrameType::reference;
    frame.segment.area = {3, 1};
    frame.segment.bytes = kReferredBytes;
    HeaderBytes bytes;
    const std::size_t size = encode_frame_header(frame, bytes);
    peer.clients[lane]->send(std::span<const std::byte>(bytes).first(size));
    ASSERT_TRUE(pair.until([&] { return pair.high.events.down.size() == 1; }));
    EXPECT_NE(pair.high.events.reasons[0].find("a reference to memory that was not passed"),
              std::string::npos)
        << pair.high.events.reasons[0];
    EXPECT_EQ(pair.high.events.headers, 0U);
  }
}

}  // namespace
}  // namespace pccl
