// Links over a third peer: three processes in one, `a` and `b`, which open each other over `r`.
#include <gtest/gtest.h>

#include "base/limits.h"
#include "no_memory.h"
#include "played_relay.h"
#include "recorder.h"
#include "support.h"
#include "transport/passage.h"
#include "transport/relay_message.h"
#include "transport/relay_seal.h"

namespace pccl {
namespace {

using test::bytes_of;
using test::End;
using test::place_in;
using test::Tensor;

struct Trio {
  Trio() {
    LinkOptions options;
    options.listen_hosts = {"127.0.0.1"};
    for (End* end : {&a, &b, &r, &spare}) {
      end->links = std::move(make_tcp_links(loop, end->events, KeyPair::make(), options)).value();
    }
    for (End* relay : {&r, &spare}) {
      for (End* end : {&a, &b}) {
        relay->links->open(end->handle(), 30000, false);
        end->links->open(relay->handle(), 30000, false);
      }
    }
    EXPECT_TRUE(until([&] { return r.events.ups == 2 && spare.events.ups == 2; }));
    EXPECT_TRUE(until([&] { return a.events.ups == 2 && b.events.ups == 2; }));
  }
  void open_over(const End& between) {
    const int ups = a.events.ups;
    a.links->open_via(b.handle(), between.id(), 30000);
    b.links->open_via(a.handle(), between.id(), 30000);
    EXPECT_TRUE(until([&] { return a.links->is_up(b.id()) && b.links->is_up(a.id()); }));
    EXPECT_EQ(a.events.ups, ups + 1);
    EXPECT_EQ(a.links->via(b.id()), between.id());
  }
  bool until(const std::function<bool()>& done, std::uint64_t timeout_ms = test::kTestMs) {
    return test::run_until(loop, done, timeout_ms);
  }
  Loop loop;
  End a, b, r, spare;
};

TEST(Relay, messages_keep_their_order) {
  Trio trio;
  trio.open_over(trio.r);
  for (int i = 0; i < 200; ++i) {
    trio.a.links->send_control(trio.b.id(), bytes_of("a " + std::to_string(i)));
    trio.b.links->send_control(trio.a.id(), bytes_of("b " + std::to_string(i)));
  }
  trio.a.links->send_control(trio.b.id(), bytes_of(std::string(kPeerMessageBytesMax, 'x')));
  ASSERT_TRUE(trio.until([&] {
    return trio.a.events.controls.size() == 200 && trio.b.events.controls.size() == 201;
  }));
  EXPECT_EQ(trio.a.events.controls[199], "b 199");
  EXPECT_EQ(trio.b.events.controls[199], "a 199");
  EXPECT_EQ(trio.b.events.controls[200].size(), kPeerMessageBytesMax);
  EXPECT_EQ(trio.r.events.controls.size(), 0U) << "what it passes on is not for it";
}

TEST(Relay, what_is_sent_arrives_bit_for_bit_and_its_sender_hears_of_each_segment) {
  Trio trio;
  trio.open_over(trio.r);
  Tensor tensor(20U << 20);  // more than the window
  Tensor small(100);
  std::vector<std::byte> memory(tensor.bytes.size());
  std::vector<std::byte> back(small.bytes.size());
  trio.b.events.place = place_in(memory);
  trio.a.events.place = place_in(back);
  tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
  small.send(*trio.b.links, trio.a.id(), 100, 2);
  ASSERT_TRUE(trio.until([&] {
    return trio.b.events.arrived.size() == 20 && trio.a.events.sent.size() == 20 &&
           trio.a.events.arrived.size() == 1;
  }));
  EXPECT_TRUE(tensor.is(memory));
  EXPECT_TRUE(small.is(back));
  EXPECT_FALSE(trio.b.events.arrived.front().route.relayed()) << "routes stay in transport/";
  EXPECT_EQ(trio.r.events.headers, 0U);
  EXPECT_EQ(trio.r.links->bytes_relayed(), (20U << 20) + 100);
  EXPECT_EQ(trio.r.links->segment_bytes_received(), 0U) << "it is no progress of its own";
  EXPECT_EQ(trio.a.links->queued_bytes(trio.b.id()), 0U);
}

TEST(Relay, no_more_than_the_window_is_under_way) {
  Trio trio;
  trio.open_over(trio.r);
  Tensor tensor(50U << 20);
  std::vector<std::byte> memory(tensor.bytes.size());
  trio.b.events.place = place_in(memory);
  std::uint64_t most = 0;
  trio.b.events.on_segment = [&](const SegmentHeader& header) {
    const std::uint64_t sent = trio.a.events.sent.size() * (1U << 20);
    if (sent > trio.b.events.arrived_bytes) {
      most = std::max(most, sent - trio.b.events.arrived_bytes + header.bytes);
    }
  };
  tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
  ASSERT_TRUE(trio.until([&] { return trio.b.events.arrived.size() == 50; }));
  EXPECT_TRUE(tensor.is(memory));
  // What the kernel between the second link's ends holds is beside it.
  EXPECT_LE(most, kRelayWindowBytes + (16U << 20));
  EXPECT_GT(most, 0U);
}

TEST(Relay, both_ends_hear_of_the_loss_of_the_peer_in_between_and_go_on_over_another) {
  Trio trio;
  trio.open_over(trio.r);
  trio.r.links.reset();
  ASSERT_TRUE(
      trio.until([&] { return trio.a.events.down.size() == 2 && trio.b.events.down.size() == 2; }));
  EXPECT_FALSE(trio.a.links->is_up(trio.b.id()));
  const std::string all = trio.a.events.reasons[0] + trio.a.events.reasons[1];
  EXPECT_NE(all.find("the link to the peer in between was lost"), std::string::npos) << all;
  trio.open_over(trio.spare);
  trio.a.links->send_control(trio.b.id(), bytes_of("again"));
  ASSERT_TRUE(trio.until([&] { return trio.b.events.controls.size() == 1; }));
}

TEST(Relay,
     an_end_that_closes_its_link_to_the_peer_in_between_hears_that_the_link_over_it_is_lost) {
  for (const bool in_order : {true, false}) {
    Trio trio;
    trio.open_over(trio.r);
    if (in_order) {
      trio.a.links->close(trio.r.id());
    } else {
      trio.a.links->drop(trio.r.id());
    }
    ASSERT_TRUE(trio.until([&] { return !trio.a.events.down.empty(); }));
    EXPECT_EQ(trio.a.events.down.front(), trio.b.id());
    EXPECT_FALSE(trio.a.links->is_up(trio.b.id()));
    ASSERT_TRUE(trio.until([&] { return !trio.b.links->is_up(trio.a.id()); }));
  }
}

TEST(Relay, the_loss_of_one_end_is_told_to_the_other) {
  Trio trio;
  trio.open_over(trio.r);
  const PeerId lost = trio.b.id();
  trio.b.links.reset();
  ASSERT_TRUE(trio.until([&] { return trio.a.events.down.size() == 1; }));
  EXPECT_EQ(trio.a.events.down[0], lost);
  EXPECT_EQ(trio.a.events.reasons[0], "the peer in between has lost its link to it");
  EXPECT_TRUE(trio.a.links->is_up(trio.r.id()));
}

TEST(Relay, a_link_that_is_closed_brings_its_last_segments_first) {
  Trio trio;
  trio.open_over(trio.r);
  Tensor tensor(20U << 20);
  std::vector<std::byte> memory(tensor.bytes.size());
  trio.b.events.place = place_in(memory);
  std::size_t arrived_before_down = 0;
  trio.b.events.on_down = [&](PeerId) {
    if (arrived_before_down == 0) arrived_before_down = trio.b.events.arrived.size();
  };
  tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
  trio.a.links->close(trio.b.id());
  EXPECT_FALSE(trio.a.links->is_up(trio.b.id()));
  ASSERT_TRUE(trio.until([&] { return trio.b.events.down.size() == 1; }));
  EXPECT_EQ(arrived_before_down, 20U);
  EXPECT_TRUE(tensor.is(memory));
  trio.a.links->cancel(1);
  EXPECT_TRUE(trio.a.events.down.empty()) << "who closes is told nothing";
}

TEST(Relay, links_that_are_all_closed_in_any_order_bring_their_last_segments_first) {
  for (const bool far_first : {true, false}) {
    Trio trio;
    trio.open_over(trio.r);
    Tensor tensor(20U << 20);  // more than the window
    std::vector<std::byte> memory(tensor.bytes.size());
    trio.b.events.place = place_in(memory);
    std::size_t arrived_before_down = 0;
    trio.b.events.on_down = [&](PeerId) { arrived_before_down = trio.b.events.arrived.size(); };
    tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
    if (far_first) trio.a.links->close(trio.b.id());
    trio.a.links->close(trio.r.id());
    if (!far_first) trio.a.links->close(trio.b.id());
    EXPECT_FALSE(trio.a.links->is_up(trio.r.id()));
    ASSERT_TRUE(trio.until([&] { return !trio.b.events.down.empty(); }));
    EXPECT_EQ(arrived_before_down, 20U) << far_first;
    EXPECT_TRUE(tensor.is(memory));
    ASSERT_TRUE(trio.until([&] { return !trio.r.events.down.empty(); }));
    EXPECT_EQ(trio.r.events.reasons[0], "the peer has closed the link");
    trio.a.links->cancel(1);
    EXPECT_TRUE(trio.a.events.down.empty()) << "who closes is told nothing";
  }
}

/// A relayed link whose other end is made of bare sockets and reads nothing once it is up.
struct Deaf {
  Deaf() : bare(pair, test::key_above(pair.low_id()), 77, 2), self(bare.id()) {
    pair.open();
    pair.high.links->open(bare.handle(), 30000, false);
    EXPECT_TRUE(pair.until([&] { return pair.high.links->is_up(self); }));
    pair.low.links->open_via(bare.handle(), pair.high_id(), 30000);
    const std::vector<std::byte> ends = ends_of_opening();
    EXPECT_TRUE(test::poll_until(pair.loop, [&] {
      auto& received = bare.clients[0]->received;
      EXPECT_FALSE(bare.clients[0]->closed());
      const auto at = std::search(received.begin(), received.end(), ends.begin(), ends.end());
      const auto size = static_cast<std::ptrdiff_t>(kRelayHeadBytes + kRelayOpeningBytes - 8);
      return received.end() - at >= size && answer({at - 8, at + size});
    }));
    EXPECT_TRUE(pair.until([&] { return pair.low.links->is_up(self); }));
    tensor.send(*pair.low.links, self, 1U << 20, 1);
  }
  [[nodiscard]] std::vector<std::byte> ends_of_opening() const {
    std::vector<std::byte> bytes(16);
    BytesOut{std::span(bytes)}.number(pair.low_id().value).number(self.value);
    return bytes;
  }
  bool answer(const std::vector<std::byte>& bytes) {
    const RelayMessage open = decode_relay(bytes).value();
    RelaySeal seal(bare.identity(), self, 9, random_secret(), pair.low.handle(), pair.high_id());
    EXPECT_FALSE(seal.hear(open.session, decode_relay_opening(open.rest)).failed());
    const auto opening = encode_relay_opening(seal.opening());
    bare.say_relay(encode_relay({RelayKind::open, self, pair.low_id(), 9, open.session, opening}));
    return true;
  }
  test::Pair pair;
  test::BarePeer bare;
  PeerId self;
  Tensor tensor{64U << 20};
};

TEST(Relay, who_closes_waits_for_an_end_that_reads_nothing_as_long_as_for_any_goodbye) {
  Deaf deaf;
  auto& [pair, bare, self, tensor] = deaf;
  pair.low.links->close(self);
  pair.low.links->close(pair.high_id());
  const test::Stopwatch watch;
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.down.empty(); }));
  EXPECT_EQ(pair.high.events.reasons[0], "the peer has closed the link");
  EXPECT_GE(watch.ms(), static_cast<std::int64_t>(kHandshakeMs) - 1000);
  pair.low.links->cancel(1);
}

TEST(Relay, a_process_that_ends_waits_for_an_end_that_reads_nothing_as_long_as_it_was_told) {
  Deaf deaf;
  bool done = false;
  const test::Stopwatch watch;
  deaf.pair.low.links->shutdown({1000}, [&] { done = true; });
  ASSERT_TRUE(deaf.pair.until([&] { return done; }, 5000));
  EXPECT_GE(watch.ms(), 500);
}

TEST(Relay, a_peer_in_between_that_lets_an_end_go_passes_on_first_what_that_one_has_sent) {
  for (const bool in_order : {true, false}) {
    for (const bool sender : {true, false}) {
      Trio trio;
      trio.open_over(trio.r);
      Tensor tensor(20U << 20);
      std::vector<std::byte> memory(tensor.bytes.size());
      trio.b.events.place = place_in(memory);
      tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
      const PeerId let_go = sender ? trio.a.id() : trio.b.id();
      if (in_order) {
        trio.r.links->close(let_go);
      } else {
        trio.r.links->drop(let_go);
      }
      EXPECT_FALSE(trio.r.links->is_up(let_go));
      trio.a.links->close(trio.b.id());
      trio.a.links->close(trio.r.id());
      ASSERT_TRUE(trio.until([&] { return !trio.b.events.down.empty(); }));
      EXPECT_EQ(trio.b.events.arrived.size(), 20U) << in_order << sender;
      EXPECT_TRUE(tensor.is(memory));
      EXPECT_TRUE(trio.r.events.down.empty() || !sender) << "who lets go is told nothing";
      trio.a.links->cancel(1);
    }
  }
}

TEST(Relay, a_process_that_ends_in_good_order_owes_nothing) {
  Trio trio;
  trio.open_over(trio.r);
  Tensor tensor(20U << 20);
  std::vector<std::byte> memory(tensor.bytes.size());
  trio.b.events.place = place_in(memory);
  tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
  bool done = false;
  trio.a.links->shutdown({30000}, [&] { done = true; });
  ASSERT_TRUE(trio.until([&] { return done && trio.b.events.arrived.size() == 20; }));
  EXPECT_TRUE(tensor.is(memory));
}

TEST(Relay, memory_that_is_cancelled_is_touched_no_more) {
  Trio trio;
  trio.open_over(trio.r);
  std::vector<std::byte> memory(24U << 20);
  trio.b.events.place = place_in(memory);
  {
    Tensor tensor(24U << 20);
    tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
    ASSERT_TRUE(trio.until([&] { return trio.b.events.arrived.size() >= 3; }));
    trio.a.links->cancel(1);
  }  // freed
  trio.b.links->cancel(9);
  memory = {};
  // The window is not lost with what was cancelled.
  Tensor next(20U << 20, 2);
  std::vector<std::byte> second(next.bytes.size());
  trio.b.events.place = [&](const SegmentHeader& header) {
    if (header.op.step != 5) return Placement{};
    return Placement{second.data() + header.offset, 10, 0};
  };
  next.send(*trio.a.links, trio.b.id(), 1U << 20, 2, 5);
  const auto of_next = [&] {
    const auto& arrived = trio.b.events.arrived;
    return std::count_if(arrived.begin(), arrived.end(),
                         [](const SegmentHeader& header) { return header.op.step == 5; });
  };
  ASSERT_TRUE(trio.until([&] { return of_next() == 20; }));
  EXPECT_TRUE(next.is(second));
  EXPECT_EQ(trio.a.links->queued_bytes(trio.b.id()), 0U);
}

TEST(Relay, an_end_that_makes_the_link_anew_is_noticed_by_the_other) {
  Trio trio;
  trio.open_over(trio.r);
  trio.a.links->give_up(trio.b.id(), "it has moved no data");
  ASSERT_TRUE(
      trio.until([&] { return trio.a.events.down.size() == 1 && trio.b.events.down.size() == 1; }));
  EXPECT_EQ(trio.a.events.reasons[0], "it has moved no data");
  trio.open_over(trio.r);
}

TEST(Relay, who_opens_before_a_loss_is_told_hears_that_it_was_lost_and_opens_again) {
  Trio trio;
  trio.open_over(trio.r);
  trio.a.links->give_up(trio.b.id(), "it has moved no data");
  trio.a.links->open_via(trio.b.handle(), trio.spare.id(), 30000);
  ASSERT_TRUE(trio.until([&] { return trio.a.events.down.size() == 1; }));
  EXPECT_EQ(trio.a.events.last_down, Down::lost);
  EXPECT_EQ(trio.a.links->via(trio.b.id()), std::nullopt) << "it is to be opened again";
  ASSERT_TRUE(trio.until([&] { return trio.b.events.down.size() == 1; }));
  trio.open_over(trio.spare);
  trio.a.links->open_via(trio.b.handle(), trio.spare.id(), 1);
  EXPECT_FALSE(trio.a.events.down.size() > 1);
}

TEST(Relay, a_link_of_their_own_is_taken_where_there_is_one) {
  Trio trio;
  trio.a.links->open(trio.b.handle(), 30000, false);
  trio.b.links->open(trio.a.handle(), 30000, false);
  ASSERT_TRUE(trio.until([&] { return trio.a.links->is_up(trio.b.id()); }));
  ASSERT_TRUE(trio.until([&] { return trio.b.links->is_up(trio.a.id()); }));
  trio.a.links->open_via(trio.b.handle(), trio.r.id(), 30000);
  ASSERT_TRUE(trio.until([&] { return trio.a.events.ups == 4; }));
  EXPECT_EQ(trio.a.links->via(trio.b.id()), std::nullopt);
}

TEST(Relay, nobody_answers_within_the_deadline) {
  Trio trio;
  trio.a.links->open_via(trio.b.handle(), trio.r.id(), 200);
  ASSERT_TRUE(trio.until([&] { return trio.a.events.down.size() == 1; }));
  EXPECT_NE(trio.a.events.reasons[0].find("over a third peer within 200 ms"), std::string::npos)
      << trio.a.events.reasons[0];
  Handle nobody = trio.b.handle();
  nobody.peer.value += 1;
  trio.a.links->open_via(trio.b.handle(), nobody.peer, 200);
  ASSERT_TRUE(trio.until([&] { return trio.a.events.down.size() == 2; }));
  EXPECT_NE(trio.a.events.reasons[1].find("no link to the third peer"), std::string::npos);
}

TEST(Relay, without_memory_for_what_it_passes_on_it_gives_up_the_link_of_the_sender_alone) {
  Trio trio;
  trio.open_over(trio.r);
  Tensor tensor(1U << 20);
  tensor.send(*trio.a.links, trio.b.id(), 1U << 20, 1);
  test::no_memory_from = tensor.bytes.size();
  EXPECT_TRUE(trio.until([&] { return !trio.r.events.down.empty(); }));
  test::no_memory_from = test::kNoLimit;
  EXPECT_EQ(trio.r.events.down, std::vector<PeerId>{trio.a.id()});
  EXPECT_NE(trio.r.events.reasons.at(0).find("no memory"), std::string::npos)
      << trio.r.events.reasons.at(0);
  EXPECT_TRUE(trio.r.links->is_up(trio.b.id()));
}

TEST(Relay, without_memory_at_an_end_the_relayed_link_ends_and_no_other) {
  for (const bool sender : {true, false}) {
    test::PlayedRelay relay;
    relay.open();
    Tensor tensor(1U << 20);
    if (sender) test::no_memory_from = tensor.bytes.size();
    relay.send(tensor, 1U << 20);
    if (!sender) {
      const test::Passed frame = relay.take(relay.a);
      test::no_memory_from = tensor.bytes.size();
      relay.b.direct->hear(frame);
    }
    test::no_memory_from = test::kNoLimit;
    relay.pass();
    test::PlayedEnd& end = sender ? relay.a : relay.b;
    ASSERT_EQ(end.events.down, std::vector<PeerId>{relay.other(end).id()});
    EXPECT_NE(end.events.reasons[0].find("no memory"), std::string::npos);
    EXPECT_EQ(end.direct->gave_up, "");
  }
}

TEST(Relay, memory_that_runs_out_in_the_middle_of_a_send_makes_no_relay_a_suspect) {
  bool failed = true;
  int ended = 0;
  for (std::size_t nth = 0; failed; ++nth) {
    test::PlayedRelay relay;
    relay.open();
    const Tensor tensor(40'000);
    bool threw = false;
    test::requests_until_none = nth;
    try {
      relay.send(tensor, 1000);
    } catch (const std::bad_alloc&) {  // before anything was changed: the operation's own
      threw = true;
    }
    failed = test::requests_until_none == test::kNoLimit;
    test::requests_until_none = test::kNoLimit;
    relay.say(relay.a, "and a message");
    relay.pass();
    ASSERT_NE(relay.b.events.last_down, Down::spoiled) << nth;
    if (relay.a.events.down.empty()) {
      EXPECT_TRUE(threw || relay.b.events.arrived.size() == 40) << nth;
    } else {
      ++ended;
    }
    ASSERT_LT(nth, 2000U);
  }
  EXPECT_GT(ended, 0);
}

TEST(Passage, gives_up_one_that_has_too_much_under_way_to_all) {
  struct Nobody final : DirectEvents {
    void link_up(PeerId) override {}
    void link_down(PeerId, const std::string&, Down) override {}
    void control_arrived(PeerId, std::span<const std::byte>) override {}
    void relay_arrived(PeerId, std::span<const std::byte>) override {}
    Placement segment_header(PeerId, const SegmentHeader&) override { return {}; }
    void segment_arrived(PeerId, const SegmentHeader&, const Placement&) override {}
    void segment_sent(PeerId, std::uint64_t) override {}
    void routed_sent(PeerId, MemoryToken, std::uint64_t) override {}
  } nobody;
  test::PlayedLinks links(nobody, KeyPair::make().public_key());
  links.also_up = [](PeerId) { return true; };
  Passage passage(links, 3U << 20);
  SegmentHeader header;
  header.bytes = 1U << 20;
  header.route.from = PeerId{70};
  header.route.session = 1;
  for (std::uint64_t receiver = 100; receiver < 103; ++receiver) {
    header.route.to = PeerId{receiver};
    EXPECT_NE(passage.take_in(PeerId{70}, header).to, nullptr);
    EXPECT_EQ(links.gave_up, "");
  }
  header.route.to = PeerId{103};
  EXPECT_EQ(passage.take_in(PeerId{70}, header).to, nullptr);
  EXPECT_NE(links.gave_up.find("than it has credit for"), std::string::npos);
  links.gave_up.clear();
  header.route.from = PeerId{71};
  EXPECT_NE(passage.take_in(PeerId{71}, header).to, nullptr) << "another sender";
  EXPECT_EQ(links.gave_up, "");
}

TEST(RelayMessage, comes_back_as_it_was_and_nonsense_does_not) {
  const auto rest = bytes_of("payload and a tag of 16");
  const RelayMessage said{RelayKind::control, PeerId{1}, PeerId{2}, 3, 4, rest};
  const auto bytes = encode_relay(said);
  const auto read = decode_relay(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().kind, RelayKind::control);
  EXPECT_EQ(read.value().from, PeerId{1});
  EXPECT_EQ(read.value().to, PeerId{2});
  EXPECT_EQ(read.value().session, 3U);
  EXPECT_EQ(read.value().number, 4U);
  EXPECT_EQ(test::text_of(read.value().rest), "payload and a tag of 16");
  const auto refused = [&](std::size_t at, std::uint8_t value) {
    auto wrong = bytes;
    wrong[at] = static_cast<std::byte>(value);
    return !decode_relay(wrong).ok();
  };
  EXPECT_TRUE(refused(0, 0));
  EXPECT_TRUE(refused(0, 6));
  EXPECT_TRUE(refused(0, 1)) << "an opening has 72 bytes";
  EXPECT_TRUE(refused(0, 3)) << "so short that no number of segments is in it";
  EXPECT_TRUE(refused(0, 4)) << "credit carries nothing";
  EXPECT_TRUE(refused(3, 1));
  EXPECT_TRUE(refused(8, 0)) << "from nobody";
  EXPECT_TRUE(refused(8, 2)) << "to itself";
  EXPECT_FALSE(decode_relay(std::span(bytes).first(39)).ok());
  EXPECT_FALSE(decode_relay(std::span(bytes).first(40 + kSealTagBytes)).ok()) << "sealed nothing";
}

TEST(RelayMessage, what_an_end_says_of_itself_comes_back_as_it_was) {
  RelayOpening said{true, {}, {}};
  said.fresh.fill(7);
  said.proof.fill(8);
  const auto rest = encode_relay_opening(said);
  auto bytes = encode_relay({RelayKind::open, PeerId{1}, PeerId{2}, 3, 4, rest});
  const auto read = decode_relay(bytes);
  ASSERT_TRUE(read.ok());
  const RelayOpening back = decode_relay_opening(read.value().rest);
  EXPECT_TRUE(back.aes);
  EXPECT_EQ(back.fresh, said.fresh);
  EXPECT_EQ(back.proof, said.proof);
  EXPECT_FALSE(decode_relay(std::span(bytes).first(bytes.size() - 1)).ok());
  for (const std::size_t at : {0, 1, 7}) {
    auto wrong = bytes;
    wrong[kRelayHeadBytes + at] = std::byte{2};
    EXPECT_FALSE(decode_relay(wrong).ok()) << at;
  }
}

/// `liar` sends over `high`, which is no end, to `mute`, which reads nothing.
struct Flood {
  static LinkOptions patient() {
    LinkOptions options;
    options.tcp_user_timeout_ms = test::kTestMs;  // a sanitizer takes long to fill the queue
    return options;
  }
  test::Pair pair{patient()};
  test::BarePeer liar{pair, test::key_below(pair.high_id()), 77, 2};
  test::BarePeer mute{pair, test::key_below(pair.high_id()), 78, 2};
  Flood() {
    for (const test::BarePeer* peer : {&liar, &mute}) {
      pair.high.links->open(peer->handle(), 30000, false);
      EXPECT_TRUE(pair.until([&] { return pair.high.links->is_up(peer->id()); }));
    }
  }
  /// The frame again and again, until `high` has given the link up; the bytes that it took.
  std::size_t pour(const FrameHeader& header, std::span<const std::byte> payload,
                   std::size_t bytes_max) {
    HeaderBytes head;
    const std::size_t size = encode_frame_header(header, head);
    std::vector<std::byte> frames;
    while (frames.size() < (1U << 20)) {
      frames.insert(frames.end(), head.begin(), head.begin() + static_cast<std::ptrdiff_t>(size));
      frames.insert(frames.end(), payload.begin(), payload.end());
    }
    std::size_t taken = 0;
    EXPECT_TRUE(test::poll_until(pair.loop, [&] {
      while (taken < bytes_max && pair.high.events.down.empty()) {
        const std::size_t at = taken % frames.size();
        const std::size_t now = liar.clients[0]->send(std::span(frames).subspan(at));
        if (now == 0) break;
        taken += now;
      }
      return !pair.high.events.down.empty() || taken >= bytes_max;
    }));
    return taken;
  }
};

TEST(Relay, who_sends_segments_of_no_bytes_over_a_peer_without_end_loses_its_link) {
  Flood flood;
  FrameHeader header;
  header.type = FrameType::routed;
  header.segment.route = {flood.liar.id(), flood.mute.id(), 9};
  static_cast<void>(flood.pour(header, {}, 200U << 20));
  ASSERT_EQ(flood.pair.high.events.down, std::vector<PeerId>{flood.liar.id()});
  EXPECT_NE(flood.pair.high.events.reasons[0].find("than it has credit for"), std::string::npos);
  EXPECT_TRUE(flood.pair.high.links->is_up(flood.mute.id()));
}

TEST(Relay, messages_over_a_peer_that_nobody_reads_end_the_relayed_link_and_no_other) {
  Flood flood;
  const auto payload = encode_relay({RelayKind::control, flood.liar.id(), flood.mute.id(), 9, 0,
                                     bytes_of(std::string(kPeerMessageBytesMax, 'x'))});
  FrameHeader header;
  header.type = FrameType::relay;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  static_cast<void>(flood.pour(header, payload, 400U << 20));
  EXPECT_EQ(flood.pair.high.links->queued_bytes(flood.liar.id()), 0U) << "one word of the end";
  EXPECT_LE(flood.pair.high.links->queued_bytes(flood.mute.id()), 130U << 20);
  // Nobody can tell who is at fault: a sender that floods, or a receiver that does not read.
  EXPECT_TRUE(flood.pair.high.events.down.empty());
  EXPECT_TRUE(flood.pair.high.links->is_up(flood.liar.id()));
  EXPECT_TRUE(flood.pair.high.links->is_up(flood.mute.id()));
}

TEST(Relay, who_asks_without_end_and_does_not_read_loses_its_link) {
  // Each question to a third that has no link to `high` is answered by a `cut`.
  Flood flood;
  const auto payload = encode_relay({RelayKind::control, flood.liar.id(), PeerId{77}, 9, 0,
                                     bytes_of(std::string(2 * kSealTagBytes, '?'))});
  FrameHeader header;
  header.type = FrameType::relay;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  static_cast<void>(flood.pour(header, payload, 400U << 20));
  ASSERT_EQ(flood.pair.high.events.down, std::vector<PeerId>{flood.liar.id()});
  EXPECT_NE(flood.pair.high.events.reasons[0].find("sends and does not read"), std::string::npos)
      << flood.pair.high.events.reasons[0];
  EXPECT_TRUE(flood.pair.high.links->is_up(flood.mute.id()));
}

TEST(Relay, who_reads_what_it_has_asked_for_keeps_its_link) {
  test::Pair pair;
  pair.open();
  const std::string text(4096, '?');
  constexpr std::size_t kAsks = kUnreadMessageBytesMax / 2 / 4096;
  pair.high.events.on_control = [&] {
    pair.high.links->send_control(pair.low_id(), bytes_of(text));
  };
  std::size_t asked = 0;
  for (int round = 0; round < 4; ++round) {
    for (std::size_t ask = 0; ask < kAsks; ++ask, ++asked) {
      pair.low.links->send_control(pair.high_id(), bytes_of(text));
    }
    EXPECT_TRUE(pair.until([&] { return pair.low.events.controls.size() == asked; }));
  }
  EXPECT_TRUE(pair.high.events.down.empty());
}

TEST(Relay, who_speaks_for_another_loses_its_link) {
  // `a` is made of bare sockets; `high` is the peer in between.
  test::Pair pair;
  test::BarePeer bare(pair, test::key_below(pair.high_id()), 77, 2);
  const PeerId self = bare.id();
  pair.high.links->open(bare.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.high.links->is_up(self); }));
  const auto opening = encode_relay_opening({});
  bare.say_relay(
      encode_relay({RelayKind::open, PeerId{self.value + 5}, pair.low_id(), 9, 0, opening}));
  ASSERT_TRUE(pair.until([&] { return pair.high.events.down.size() == 1; }));
  EXPECT_EQ(pair.high.events.reasons[0], "it relays a message of another sender");
}

}  // namespace
}  // namespace pccl
