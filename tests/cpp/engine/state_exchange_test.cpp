// Pulls of shared state: how long a source is waited for, what ends a pull, and what becomes of it
// when its source offers the state no more.
#include "engine/state_exchange.h"

#include "fake_links.h"

namespace pccl::testing {
namespace {

constexpr PeerId kSource{1};
constexpr PeerId kFetcher{2};
constexpr Digest kDigest{7};

/// Two members, and an item of so many segments that one pulls from the other.
struct OneFetch {
  explicit OneFetch(std::size_t segments)
      : item(segments * kSegmentBytesMax, std::byte{5}), memory(item.size()) {
    source.offer({kDigest, {{item.data(), item.size()}}, nullptr});
    fetcher.pull(kSource, kDigest, 0, {memory.data(), memory.size()}, ticket);
  }

  /// What one has sent, up to so many segments, reaches the other.
  void deliver(Node& from, StateExchange& sender, StateExchange& to, std::size_t segments) {
    auto& sent = from.links.sent;
    while (!sent.empty() && (!sent.front().control.empty() || segments > 0)) {
      const FakeLinks::Sent one = std::move(sent.front());
      sent.pop_front();
      if (!one.control.empty()) {
        const auto message = decode_peer_to_peer(one.control).value();
        if (const auto* pull = std::get_if<Pull>(&message)) to.pulled_from(kFetcher, *pull);
        if (const auto* reply = std::get_if<PullReply>(&message)) to.replied(kSource, *reply);
        continue;
      }
      --segments;
      const Placement at = to.segment_header(kSource, one.header);
      if (at.to != nullptr) {
        std::memcpy(at.to, one.payload, one.header.bytes);
        to.segment_arrived(kSource, one.header, at);
      }
      sender.segment_sent(one.token, kFetcher, static_cast<std::uint32_t>(one.cookie));
    }
  }
  void ask() { deliver(there, fetcher, source, 0); }
  void answer(std::size_t segments) { deliver(here, source, fetcher, segments); }

  Node here{kSource};
  Node there{kFetcher};
  StateExchange source{here.context, GroupId{1}};
  StateExchange fetcher{there.context, GroupId{1}};
  std::vector<std::byte> item;
  std::vector<std::byte> memory;
  std::shared_ptr<Ticket> ticket = std::make_shared<Ticket>();
};

TEST(StateExchange, an_item_comes_whole) {
  OneFetch fetch(3);
  fetch.ask();
  fetch.answer(3);
  ASSERT_TRUE(fetch.ticket->done());
  EXPECT_FALSE(fetch.ticket->error().failed()) << fetch.ticket->error().text;
  EXPECT_EQ(fetch.memory, fetch.item);
}

TEST(StateExchange, who_asks_for_the_same_without_end_is_sent_twice_what_there_is) {
  OneFetch fetch(3);
  for (std::uint64_t request = 1; request <= 1000; ++request) {
    fetch.source.pulled_from(kFetcher, {GroupId{1}, request, kDigest, 0, 0, 0});
  }
  std::size_t segments = 0;
  std::size_t refusals = 0;
  for (const FakeLinks::Sent& sent : fetch.here.links.sent) {
    if (sent.control.empty()) {
      ++segments;
      continue;
    }
    const auto reply = std::get<PullReply>(decode_peer_to_peer(sent.control).value());
    if (reply.error.failed()) ++refusals;
  }
  EXPECT_EQ(segments, 2U * 3U);
  EXPECT_EQ(refusals, 998U);
  // What it has read makes room for as much.
  fetch.here.links.sent.clear();
  for (std::uint32_t segment = 0; segment < 3; ++segment) {
    fetch.source.segment_sent(0, kFetcher, 1);
  }
  fetch.source.pulled_from(kFetcher, {GroupId{1}, 1001, kDigest, 0, 0, 0});
  EXPECT_EQ(fetch.here.links.sent.size(), 1U + 3U);
}

TEST(StateExchange, short_questions_count_as_what_their_answers_cost) {
  OneFetch fetch(3);
  constexpr std::uint64_t kMost = 2 * 3 * kSegmentBytesMax / kKeptBytesMin;
  for (std::uint64_t request = 1; request <= kMost + 100; ++request) {
    fetch.source.pulled_from(kFetcher, {GroupId{1}, request, kDigest, 0, 0, 1});
  }
  std::size_t segments = 0;
  for (const FakeLinks::Sent& sent : fetch.here.links.sent) segments += sent.control.empty();
  EXPECT_EQ(segments, kMost);
}

TEST(StateExchange, what_a_link_held_that_was_dropped_counts_no_more) {
  OneFetch fetch(3);
  for (std::uint64_t round = 0; round < 10; ++round) {
    fetch.here.links.sent.clear();
    fetch.source.pulled_from(kFetcher, {GroupId{1}, round, kDigest, 0, 0, 0});
    EXPECT_EQ(fetch.here.links.sent.size(), 1U + 3U) << round;
    fetch.source.link_gone(kFetcher);  // no segment_sent comes for what it held
  }
}

TEST(StateExchange, what_is_served_counts_once_for_each_peer_and_offer) {
  OneFetch fetch(3);
  EXPECT_EQ(fetch.source.bytes_offered(), 3 * kSegmentBytesMax);
  fetch.ask();
  EXPECT_EQ(fetch.source.bytes_served(), 0U) << "the links hold it still";
  fetch.answer(2);
  EXPECT_EQ(fetch.source.bytes_served(), 2 * kSegmentBytesMax);
  fetch.answer(1);
  EXPECT_EQ(fetch.source.bytes_served(), 3 * kSegmentBytesMax);
  for (int times = 0; times < 3; ++times) {
    fetch.ticket = std::make_shared<Ticket>();
    fetch.fetcher.pull(kSource, kDigest, 0, {fetch.memory.data(), fetch.memory.size()},
                       fetch.ticket);
    fetch.ask();
    fetch.answer(3);
  }
  EXPECT_EQ(fetch.source.bytes_served(), 3 * kSegmentBytesMax);
  fetch.source.withdraw();
  EXPECT_EQ(fetch.source.bytes_offered(), 0U);
  EXPECT_EQ(fetch.source.bytes_served(), 3 * kSegmentBytesMax);
}

TEST(StateExchange, a_segment_beyond_the_item_has_no_place) {
  OneFetch fetch(2);
  fetch.ask();
  fetch.answer(0);
  SegmentHeader header;
  header.kind = SegmentKind::state;
  header.group = GroupId{1};
  header.op = OpKey{0, 1};
  header.descriptor.count = fetch.memory.size();
  const auto place = [&](std::uint64_t offset, std::uint32_t bytes) {
    header.offset = offset;
    header.bytes = bytes;
    return fetch.fetcher.segment_header(kSource, header).to;
  };
  EXPECT_EQ(place(kSegmentBytesMax, kSegmentBytesMax), fetch.memory.data() + kSegmentBytesMax);
  constexpr std::uint64_t kWrapped = 0;  // 2^64
  for (const std::uint32_t bytes : {1U, 65536U, std::uint32_t{kSegmentBytesMax}}) {
    EXPECT_EQ(place(kWrapped - bytes, bytes), nullptr) << bytes;
  }
  EXPECT_EQ(place(2 * kSegmentBytesMax, kSegmentBytesMax), nullptr);
  EXPECT_EQ(place(kSegmentBytesMax + 1, kSegmentBytesMax), nullptr);
  header.descriptor.count = 3 * kSegmentBytesMax;  // another size than the first word said
  EXPECT_EQ(place(2 * kSegmentBytesMax, kSegmentBytesMax), nullptr);
}

TEST(StateExchange, a_mute_source_is_given_up) {
  OneFetch fetch(3);
  fetch.ask();
  fetch.answer(1);
  fetch.fetcher.tick(kPullIdleMs - 1);
  EXPECT_FALSE(fetch.ticket->done());
  fetch.fetcher.tick(1);
  ASSERT_TRUE(fetch.ticket->done());
  EXPECT_EQ(fetch.ticket->error().code, ErrorCode::timed_out);
  EXPECT_NE(fetch.ticket->error().text.find("sent nothing for 15 s"), std::string::npos);
}

TEST(StateExchange, a_trickling_source_is_given_up) {
  OneFetch fetch(64);
  fetch.ask();
  std::uint64_t waited_ms = 0;
  while (!fetch.ticket->done()) {
    fetch.answer(1);
    fetch.fetcher.tick(10000);
    waited_ms += 10000;
    ASSERT_LE(waited_ms, 200000U) << "nothing ends it";
  }
  EXPECT_EQ(waited_ms, 100000U) << "30 s, and 64 MiB at 1 MiB/s, by ticks of 10 s";
  EXPECT_EQ(fetch.ticket->error().code, ErrorCode::timed_out);
  EXPECT_NE(fetch.ticket->error().text.find("of 67108864 bytes in 100 s"), std::string::npos);
}

TEST(StateExchange, a_pull_that_was_cancelled_writes_no_more) {
  OneFetch fetch(2);
  fetch.ask();
  fetch.answer(1);
  fetch.fetcher.cancel(*fetch.ticket);
  ASSERT_TRUE(fetch.ticket->done());
  EXPECT_EQ(fetch.ticket->error().code, ErrorCode::closed);
  const auto before = fetch.memory;
  fetch.answer(1);
  EXPECT_EQ(fetch.memory, before);
}

TEST(StateExchange, who_offers_a_state_no_more_tells_those_it_was_going_to) {
  OneFetch fetch(3);
  fetch.ask();
  fetch.answer(2);
  fetch.source.withdraw();
  fetch.answer(1);
  ASSERT_TRUE(fetch.ticket->done()) << "it would wait for the time-out";
  EXPECT_EQ(fetch.ticket->error().code, ErrorCode::closed);
}

TEST(StateExchange, whatever_a_source_answers_another_one_may_still_deliver) {
  const auto ends_with = [](const Error& answered, std::uint64_t bytes) {
    OneFetch fetch(2);
    fetch.ask();
    fetch.fetcher.replied(kSource, {GroupId{1}, 1, answered, bytes});
    EXPECT_TRUE(fetch.ticket->done());
    return fetch.ticket->error();
  };
  for (int code = 1; error_name(static_cast<ErrorCode>(code)) != "none"; ++code) {
    const Error lie{static_cast<ErrorCode>(code), "says the source"};
    const Error error = ends_with(lie, 0);
    EXPECT_EQ(error.code, ErrorCode::closed);
    for (const std::string_view part :
         {std::string_view("0000000000000001"), error_name(lie.code), std::string_view(lie.text)}) {
      EXPECT_NE(error.text.find(part), std::string::npos) << error.text;
    }
  }
  EXPECT_EQ(ends_with({}, 3).code, ErrorCode::closed);  // of another size
}

TEST(StateExchange, who_has_all_of_an_item_is_told_nothing_more) {
  OneFetch fetch(2);
  fetch.ask();
  fetch.answer(2);
  fetch.source.withdraw();
  EXPECT_TRUE(fetch.here.links.sent.empty());
}

}  // namespace
}  // namespace pccl::testing
