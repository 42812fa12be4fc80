// What the two ends of a relayed link say to each other, against a peer in between that reads,
// changes, repeats, reorders, turns back and leaves out what it likes.
#include "transport/relay_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/limits.h"
#include "played_relay.h"

namespace pccl {
namespace {

using test::kBetween;
using test::Passed;
using test::PlayedEnd;
using test::PlayedRelay;
using test::Tensor;

constexpr std::size_t kLarge = 100000;  // a segment that has no order
constexpr std::size_t kSmall = 1000;

bool holds(const std::vector<std::byte>& bytes, std::span<const std::byte> part) {
  return std::search(bytes.begin(), bytes.end(), part.begin(), part.end()) != bytes.end();
}

/// The frames of one message, or of one segment, that `a` has sent and nobody has passed on.
Passed sealed(PlayedRelay& relay, std::size_t segment_bytes) {
  if (segment_bytes == 0) {
    relay.say(relay.a, "some message");
  } else {
    Tensor part(segment_bytes);
    relay.send(part, segment_bytes);  // sealed at once, so the tensor may go
  }
  return relay.take(relay.a);
}

/// `b` has ended its link to `a`, has written nothing, and says why: the peer in between has
/// `done` something.
void expect_ended(PlayedRelay& relay, const std::string& done) {
  relay.pass();
  ASSERT_EQ(relay.b.events.down, std::vector<PeerId>{relay.a.id()});
  EXPECT_EQ(relay.b.events.last_down, Down::spoiled);
  const std::string& reason = relay.b.events.reasons[0];
  EXPECT_NE(reason.find(done), std::string::npos) << reason;
  for (const PeerId peer : {relay.a.id(), relay.b.id(), kBetween}) {
    EXPECT_NE(reason.find(to_string(peer)), std::string::npos) << reason;
  }
  EXPECT_FALSE(relay.b.links->is_up(relay.a.id()));
  EXPECT_EQ(relay.a.events.down, std::vector<PeerId>{relay.b.id()}) << "the other end hears of it";
  EXPECT_EQ(relay.b.direct->gave_up, "") << "the link to the peer in between stays";
}

bool untouched(const PlayedRelay& relay) {
  return std::all_of(relay.memory.begin(), relay.memory.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(RelaySeal, the_peer_in_between_sees_sizes_alone) {
  PlayedRelay relay;
  std::vector<Passed> seen;
  relay.plays = [&](PlayedEnd&, Passed frame) {
    seen.push_back(frame);
    return std::vector{frame};
  };
  relay.open();
  const Tensor tensor(3 * kLarge + kSmall);
  relay.send(tensor, kLarge);
  relay.say(relay.a, "a message that nobody else reads");
  relay.say(relay.b, "and its answer");
  relay.pass();
  relay.a.links->close(relay.b.id());
  relay.pass();
  ASSERT_EQ(relay.b.events.arrived.size(), 4U);
  EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), relay.memory.begin()));
  EXPECT_EQ(relay.b.events.arrived[0].group.value, 0x0102030405060708U);
  EXPECT_EQ(relay.b.events.arrived[0].op.step, 0x1112131415161718U);
  EXPECT_EQ(relay.b.events.controls, std::vector<std::string>{"a message that nobody else reads"});
  EXPECT_EQ(relay.a.events.controls, std::vector<std::string>{"and its answer"});
  std::size_t segments = 0;
  for (const Passed& frame : seen) {
    FrameHeader header;
    header.type = frame.is_segment() ? FrameType::routed : FrameType::relay;
    header.payload_bytes = static_cast<std::uint32_t>(frame.bytes.size());
    header.segment = frame.header;
    HeaderBytes bytes;
    const std::size_t size = encode_frame_header(header, bytes);
    std::vector<std::byte> all(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    all.insert(all.end(), frame.bytes.begin(), frame.bytes.end());
    segments += frame.is_segment() ? 1 : 0;
    EXPECT_EQ(frame.header.op, OpKey{});
    for (std::size_t at = 0; at + 16 <= tensor.bytes.size(); at += kSmall) {
      EXPECT_FALSE(holds(all, std::span(tensor.bytes).subspan(at, 16)));
    }
    const std::array<std::byte, 8> group = {std::byte{8}, std::byte{7}, std::byte{6}, std::byte{5},
                                            std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}};
    EXPECT_FALSE(holds(all, group));
    EXPECT_FALSE(holds(all, test::bytes_of("nobody else")));
    EXPECT_FALSE(holds(all, test::bytes_of("its answer")));
    EXPECT_FALSE(holds(all, test::bytes_of("closed the link")));
  }
  EXPECT_EQ(segments, 4U);
}

TEST(RelaySeal, a_change_of_any_part_of_a_message_or_segment_ends_the_link_and_writes_nothing) {
  const auto flip = [](std::byte& byte) { byte ^= std::byte{4}; };
  using Change = std::function<void(Passed&)>;
  const std::vector<Change> of_segment = {
      [&](Passed& frame) { flip(frame.bytes.front()); },
      [&](Passed& frame) { flip(frame.bytes.back()); },
      [&](Passed& frame) { flip(frame.header.route.fields.front()); },
      [&](Passed& frame) { flip(frame.header.route.fields.back()); },
      [&](Passed& frame) { flip(frame.header.route.tag.front()); },
      [&](Passed& frame) { flip(frame.header.route.tag.back()); },
      [](Passed& frame) { frame.header.route.number += 1; },
      [](Passed& frame) { frame.header.route.number += 1ULL << 40; },
      [](Passed& frame) {
        frame.bytes.pop_back();
        --frame.header.bytes;
      },
      [](Passed& frame) {  // now it is one of those that have an order, or of the others
        frame.bytes.resize(frame.bytes.size() == kSmall ? kLarge : kSmall);
        frame.header.bytes = static_cast<std::uint32_t>(frame.bytes.size());
      },
  };
  for (const std::size_t size : {kSmall, kLarge}) {
    for (const Change& change : of_segment) {
      PlayedRelay relay;
      relay.open();
      Passed frame = sealed(relay, size);
      change(frame);
      relay.b.direct->hear(frame);
      expect_ended(relay, "");
      EXPECT_EQ(relay.b.events.headers, 0U);
      EXPECT_TRUE(untouched(relay));
    }
  }
  for (std::size_t at = 24; at < kRelayHeadBytes + 12 + kSealTagBytes; at += 4) {
    if (at >= 24 && at < 32) continue;  // another session
    PlayedRelay relay;
    relay.open();
    Passed frame = sealed(relay, 0);
    flip(frame.bytes[at]);
    relay.b.direct->hear(frame);
    expect_ended(relay, "");
    EXPECT_TRUE(relay.b.events.controls.empty());
  }
}

TEST(RelaySeal, a_message_is_none_of_another_kind_and_no_segment) {
  PlayedRelay relay;
  relay.open();
  Passed frame = sealed(relay, 0);
  frame.bytes[0] = static_cast<std::byte>(RelayKind::down);
  // Long enough for both, and sealed as the other one.
  relay.b.direct->hear(frame);
  expect_ended(relay, "changed");
}

TEST(RelaySeal, what_is_said_under_another_session_is_left_out) {
  PlayedRelay relay;
  relay.open();
  Passed frame = sealed(relay, 0);
  frame.bytes[24] ^= std::byte{1};
  relay.b.direct->hear(frame);
  relay.pass();
  EXPECT_TRUE(relay.both_up());
  EXPECT_TRUE(relay.b.events.controls.empty());
  relay.b.direct->hear(sealed(relay, 0));
  expect_ended(relay, "left out");
}

TEST(RelaySeal, what_is_repeated_ends_the_link) {
  for (const std::size_t size : {std::size_t{0}, kSmall, kLarge}) {
    PlayedRelay relay;
    relay.open();
    const Passed frame = sealed(relay, size);
    relay.b.direct->hear(frame);
    EXPECT_EQ(relay.b.events.arrived.size() + relay.b.events.controls.size(), 1U);
    relay.b.direct->hear(frame);
    EXPECT_EQ(relay.b.events.arrived.size() + relay.b.events.controls.size(), 1U);
    expect_ended(relay, "repeated");
  }
}

TEST(RelaySeal, what_has_an_order_comes_in_that_order) {
  for (const std::size_t size : {std::size_t{0}, kSmall}) {
    PlayedRelay relay;
    relay.open();
    const Passed first = sealed(relay, size);
    const Passed second = sealed(relay, kSmall);
    relay.b.direct->hear(second);
    expect_ended(relay, "reordered");
    EXPECT_TRUE(untouched(relay));
    relay.b.direct->hear(first);
    EXPECT_TRUE(untouched(relay));
    EXPECT_TRUE(relay.b.events.controls.empty());
  }
}

TEST(RelaySeal, large_segments_may_come_in_any_order) {
  PlayedRelay relay;
  relay.open();
  const Tensor tensor(5 * kLarge);
  relay.send(tensor, kLarge);
  relay.say(relay.a, "a message overtakes them");
  std::vector<Passed> frames;
  for (int i = 0; i < 6; ++i) frames.push_back(relay.take(relay.a));
  std::reverse(frames.begin(), frames.end());
  for (const Passed& frame : frames) relay.b.direct->hear(frame);
  relay.pass();
  EXPECT_TRUE(relay.both_up());
  EXPECT_EQ(relay.b.events.arrived.size(), 5U);
  EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), relay.memory.begin()));
}

TEST(RelaySeal, what_is_left_out_shows_with_the_next_that_has_an_order) {
  for (const std::size_t size : {std::size_t{0}, kSmall}) {
    PlayedRelay relay;
    relay.open();
    static_cast<void>(sealed(relay, size));
    relay.b.direct->hear(sealed(relay, 0));
    expect_ended(relay, "left out");
    EXPECT_TRUE(relay.b.events.controls.empty());
  }
}

TEST(RelaySeal, an_end_that_is_left_out_shows_when_the_other_end_closes) {
  PlayedRelay relay;
  relay.open();
  static_cast<void>(sealed(relay, kLarge));
  relay.a.links->close(relay.b.id());
  relay.pass();
  EXPECT_TRUE(relay.b.events.down.empty()) << "it may come still";
  ASSERT_TRUE(test::run_until(relay.loop, [&] { return !relay.b.events.down.empty(); }));
  EXPECT_NE(relay.b.events.reasons[0].find("left out the end"), std::string::npos);
}

TEST(RelaySeal, what_is_sent_back_to_its_sender_ends_the_link) {
  for (const std::size_t size : {std::size_t{0}, kSmall, kLarge}) {
    PlayedRelay relay;
    std::uint64_t session_of_b = 0;
    relay.plays = [&](PlayedEnd& from, Passed frame) {
      if (&from == &relay.b && frame.is(RelayKind::open)) session_of_b = frame.message().session;
      return std::vector{frame};
    };
    relay.open();
    // `b` gets back what it has said to `a`, under the names that it expects.
    relay.say(relay.b, "a message");
    Passed frame = sealed(relay, size);
    if (size == 0) {
      const Passed own = relay.take(relay.b);
      const RelayMessage said = own.message();
      frame.bytes = encode_relay(
          {said.kind, relay.a.id(), relay.b.id(), session_of_b, said.number, said.rest});
      relay.b.direct->hear(frame);
      expect_ended(relay, "changed");
      EXPECT_TRUE(relay.b.events.controls.empty());
    } else {
      frame.header.route.from = relay.b.id();
      frame.header.route.to = relay.a.id();
      relay.a.direct->hear(frame);
      frame.header.route.session += 1;
      relay.a.direct->hear(frame);
      EXPECT_TRUE(relay.a.events.arrived.empty());
    }
  }
}

TEST(RelaySeal, nothing_of_an_earlier_link_is_taken_for_the_next) {
  PlayedRelay relay;
  relay.open();
  const Passed message = sealed(relay, 0);
  const Passed segment = sealed(relay, kLarge);
  relay.a.links->give_up(relay.b.id(), "it has moved no data");
  relay.pass();
  std::uint64_t session = 0;
  relay.plays = [&](PlayedEnd& from, Passed frame) {
    if (&from == &relay.b && frame.is(RelayKind::open)) session = frame.message().session;
    return std::vector{frame};
  };
  relay.open();
  ASSERT_TRUE(relay.both_up());
  const std::size_t downs = relay.b.events.down.size();
  relay.b.direct->hear(message);
  relay.b.direct->hear(segment);
  relay.pass();
  EXPECT_TRUE(relay.both_up());
  EXPECT_EQ(relay.b.events.controls.size() + relay.b.events.arrived.size(), 0U);
  Passed renamed = segment;
  renamed.header.route.session = session;
  relay.b.direct->hear(renamed);
  relay.pass();
  EXPECT_EQ(relay.b.events.down.size(), downs + 1);
  EXPECT_EQ(relay.b.events.headers, 0U);
}

TEST(RelaySeal, an_opening_that_was_changed_opens_nothing) {
  const KeyPair liar = KeyPair::make();
  using Change = std::function<void(RelayMessage&, RelayOpening&)>;
  const std::vector<Change> changes = {
      // The peer in between puts its own key in the place of that of `a`.
      [&](RelayMessage&, RelayOpening& said) { said.fresh = liar.public_key(); },
      [](RelayMessage&, RelayOpening& said) { said.aes = !said.aes; },
      [](RelayMessage&, RelayOpening& said) { said.proof[5] ^= 1; },
      [](RelayMessage& message, RelayOpening&) { message.session ^= 1; },
      [](RelayMessage&, RelayOpening& said) { said.fresh = {}; },
      [](RelayMessage&, RelayOpening& said) { said.fresh = {1}; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    PlayedRelay relay;
    relay.plays = [&](PlayedEnd& from, Passed frame) {
      if (&from != &relay.a || !frame.is(RelayKind::open)) return std::vector{frame};
      RelayMessage message = frame.message();
      RelayOpening said = decode_relay_opening(message.rest);
      changes[i](message, said);
      const auto rest = encode_relay_opening(said);
      message.rest = rest;
      frame.bytes = encode_relay(message);
      return std::vector{frame};
    };
    relay.open();
    EXPECT_FALSE(relay.a.links->is_up(relay.b.id())) << i;
    EXPECT_FALSE(relay.b.links->is_up(relay.a.id())) << i;
    // `a` may have seen the proof of `b`, and hears then that `b` has not seen that of `a`.
    EXPECT_EQ(relay.b.events.ups, 0) << i;
    EXPECT_FALSE(relay.a.events.down.empty() && relay.b.events.down.empty()) << i;
  }
}

TEST(RelaySeal, an_opening_that_comes_back_to_its_sender_opens_nothing) {
  for (const bool key_alone : {true, false}) {
    PlayedRelay relay;
    relay.a.links->open_via(relay.b.handle(), kBetween, 30000);
    const Passed open = relay.take(relay.a);
    const RelayMessage said = open.message();
    relay.a.direct->hear({encode_relay({RelayKind::open, relay.b.id(), relay.a.id(),
                                        key_alone ? 77 : said.session, said.session, said.rest}),
                          {}});
    relay.pass();
    EXPECT_EQ(relay.a.events.ups, 0);
    ASSERT_EQ(relay.a.events.down.size(), 1U);
    EXPECT_EQ(relay.a.events.last_down, Down::unopened);
    EXPECT_NE(relay.a.events.reasons[0].find("those of this process"), std::string::npos);
  }
}

TEST(RelaySeal, a_peer_in_between_that_opens_without_end_is_not_answered_without_end) {
  PlayedRelay relay;
  relay.a.links->open_via(relay.b.handle(), kBetween, 30000);
  for (std::uint64_t session = 1; session <= kRelayOpeningsMax + 1; ++session) {
    EXPECT_TRUE(relay.a.events.down.empty()) << session;
    RelayOpening opening{true, KeyPair::make().public_key(), {}};
    const auto rest = encode_relay_opening(opening);
    relay.a.direct->hear(
        {encode_relay({RelayKind::open, relay.b.id(), relay.a.id(), session, 0, rest}), {}});
    relay.loop.run_once(false);
  }
  relay.pass();
  EXPECT_EQ(relay.a.events.down.size(), 1U);
}

TEST(RelaySeal, nobody_is_linked_to_under_an_id_that_is_not_that_of_its_key) {
  PlayedRelay relay;
  Handle wrong = relay.b.handle();
  wrong.key = KeyPair::make().public_key();
  relay.a.links->open_via(wrong, kBetween, 30000);
  relay.pass();
  ASSERT_EQ(relay.a.events.down.size(), 1U);
  EXPECT_NE(relay.a.events.reasons[0].find("not that of its key"), std::string::npos);
}

TEST(RelaySeal, a_segment_reaches_its_memory_when_it_is_whole_and_not_before) {
  PlayedRelay relay;
  relay.open();
  const Passed frame = sealed(relay, kLarge);
  const Placement at = relay.b.direct->begin(frame);
  EXPECT_EQ(relay.b.events.headers, 0U) << "nobody has proven whose it is";
  std::memcpy(at.to, frame.bytes.data(), frame.bytes.size() / 2);
  EXPECT_TRUE(untouched(relay));
  relay.b.direct->finish(frame, at);
  EXPECT_EQ(relay.b.events.arrived.size(), 1U);
  EXPECT_FALSE(untouched(relay));
}

TEST(RelaySeal, what_is_cancelled_after_it_was_sealed_still_goes_and_tells_nobody) {
  PlayedRelay relay;
  relay.open();
  {
    const Tensor tensor(3 * kSmall);
    relay.send(tensor, kSmall);
    relay.a.links->cancel(1);
  }
  relay.b.events.place = [](const SegmentHeader&) { return Placement{}; };
  relay.say(relay.a, "then a message");
  relay.pass();
  EXPECT_TRUE(relay.both_up());
  EXPECT_EQ(relay.b.events.headers, 3U);
  EXPECT_EQ(relay.b.events.controls.size(), 1U);
  EXPECT_TRUE(relay.a.events.sent.empty());
}

TEST(RelaySeal, data_that_overtake_the_last_opening_bring_the_link_up) {
  PlayedRelay relay;
  std::vector<Passed> held;
  relay.plays = [&](PlayedEnd& from, Passed frame) -> std::vector<Passed> {
    const bool last = frame.is(RelayKind::open) && frame.message().number != 0 &&
                      relay.other(from).links->is_up(from.id()) == false &&
                      from.links->is_up(relay.other(from).id());
    if (last) {
      held.push_back(frame);
      return {};
    }
    return {frame};
  };
  relay.a.links->open_via(relay.b.handle(), kBetween, 30000);
  relay.b.links->open_via(relay.a.handle(), kBetween, 30000);
  relay.pass();
  ASSERT_FALSE(held.empty());
  ASSERT_NE(relay.a.links->is_up(relay.b.id()), relay.b.links->is_up(relay.a.id()));
  if (!relay.a.links->is_up(relay.b.id())) return;  // the other way round there is no tensor
  const Tensor tensor(kLarge);
  relay.send(tensor, kLarge);
  relay.pass();
  EXPECT_TRUE(relay.both_up());
  EXPECT_EQ(relay.b.events.arrived.size(), 1U);
}

TEST(Arrivals, each_number_comes_once_in_any_order) {
  Arrivals arrivals;
  for (const std::uint64_t number : {3, 0, 1, 7}) {
    EXPECT_EQ(arrivals.check(number), "");
    arrivals.take(number, 1, 0);
    EXPECT_EQ(arrivals.check(number), "repeated");
  }
  EXPECT_EQ(arrivals.check(2), "");
  EXPECT_EQ(arrivals.check(6), "");
}

TEST(Arrivals, few_numbers_are_late) {
  Arrivals arrivals;
  EXPECT_EQ(arrivals.check(kRelayMissingMax), "");
  EXPECT_EQ(arrivals.check(kRelayMissingMax + 1), "left out");
  arrivals.take(kRelayMissingMax, 1, 0);
  EXPECT_EQ(arrivals.check(kRelayMissingMax + 1), "") << "the next one is no gap";
  EXPECT_EQ(arrivals.check(kRelayMissingMax + 2), "left out");
  arrivals.take(0, 1, 0);
  EXPECT_EQ(arrivals.check(kRelayMissingMax + 2), "");
  EXPECT_EQ(arrivals.check(~0ULL), "left out");
}

TEST(Arrivals, what_is_late_for_long_and_after_much_else_does_not_come_any_more) {
  Arrivals arrivals;
  arrivals.take(1, 100, 1000);
  EXPECT_FALSE(arrivals.lost_one(1000 + 10 * kRelayMissingMs)) << "a slow lane";
  arrivals.take(2, 4 * kRelayWindowBytes, 1000);
  EXPECT_FALSE(arrivals.lost_one(1000 + kRelayMissingMs - 1));
  EXPECT_TRUE(arrivals.lost_one(1000 + kRelayMissingMs));
  arrivals.take(0, 1, 2000);
  EXPECT_FALSE(arrivals.lost_one(1000 + kRelayMissingMs));
}

}  // namespace
}  // namespace pccl
