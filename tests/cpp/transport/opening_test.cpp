// How links come up, and who is turned away: addresses, proofs, deadlines, strangers.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "base/limits.h"
#include "base/protocol.h"
#include "recorder.h"
#include "support.h"
#include "tap.h"
#include "transport/address.h"
#include "transport/handshake.h"
#include "transport/lane_dial.h"
#include "transport/listen.h"
#include "transport/transport.h"

namespace pccl {
namespace {

using test::bytes_of;
using test::Pair;

TEST(Open, a_link_that_was_dialled_early_keeps_its_data_until_the_other_side_opens_it) {
  Pair pair;
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  pair.low.links->send_control(pair.high_id(), bytes_of("early"));
  pair.low.links->close(pair.high_id());  // and the sender has even gone
  bool later = false;
  const auto timer = pair.loop.timer(50, 0, [&] { later = true; });
  ASSERT_TRUE(pair.until([&] { return later; }));
  EXPECT_EQ(pair.high.events.ups, 0);
  pair.high.links->open(pair.low.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.down.empty(); }));
  EXPECT_EQ(pair.high.events.ups, 1);
  ASSERT_EQ(pair.high.events.controls.size(), 1U);
  EXPECT_EQ(pair.high.events.controls[0], "early");
}

TEST(Open, a_link_that_was_dialled_early_and_died_is_not_taken_for_a_new_one) {
  Pair pair;
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  pair.low.links->drop(pair.high_id());
  ASSERT_TRUE(test::poll_until(pair.loop, [&, rounds = 0]() mutable { return ++rounds > 5; }));
  pair.high.links->open(pair.low.handle(), 30000, false);
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.ups == 1 && pair.low.events.ups == 2; }));
  EXPECT_TRUE(pair.high.events.down.empty());
}

TEST(Open, the_right_address_among_wrong_ones_is_found) {
  Pair pair;
  Pair strangers;
  Handle handle = pair.high.handle();
  // Nobody listens; a process of the same kind that is not the one; no address at all.
  handle.addresses = {"127.0.0.1:1", strangers.low.handle().addresses[0], "nonsense",
                      handle.addresses[0]};
  pair.low.links->open(handle, 30000, false);
  pair.high.links->open(pair.low.handle(), 30000, false);
  const auto ticks = pair.loop.timer(1, 1, [&] { strangers.loop.run_once(false); });
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1 && pair.high.events.ups == 1; }));
}

TEST(Open, what_is_seen_of_a_link_that_does_not_come_up_is_known_before_its_deadline) {
  Pair pair;
  Handle handle = pair.high.handle();
  handle.addresses = {"127.0.0.1:1"};
  const auto seen = [&] { return pair.low.links->opening_text(pair.high_id()); };
  EXPECT_EQ(seen(), "");
  pair.low.links->open(handle, 30000, false);
  ASSERT_TRUE(pair.until(
      [&] { return seen().find("127.0.0.1:1: connection refused") != std::string::npos; }));
  pair.high.links->open(pair.low.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1 && pair.high.events.ups == 1; }));
  EXPECT_EQ(seen(), "");
}

TEST(Open, a_peer_whose_listener_is_gone_is_reported_as_refused_within_a_second) {
  Pair pair;
  const Handle handle = pair.high.handle();
  pair.high.links.reset();
  const test::Stopwatch watch;
  pair.low.links->open(handle, 5000, true);
  ASSERT_TRUE(pair.until([&] { return !pair.low.events.down.empty(); }));
  EXPECT_EQ(pair.low.events.last_down, Down::refused);
  EXPECT_GE(watch.ms(), 200);
  EXPECT_LT(watch.ms(), 1000);
  EXPECT_NE(pair.low.events.reasons[0].find(handle.addresses[0] + ": connection refused"),
            std::string::npos)
      << pair.low.events.reasons[0];
}

TEST(Open, a_peer_that_nobody_can_dial_dials_itself_whichever_has_the_smaller_id) {
  for (const bool hides_low : {true, false}) {
    Pair pair;
    Handle low = pair.low.handle();
    Handle high = pair.high.handle();
    auto closed = listen_on(pair.loop, {"127.0.0.1"}, 0, 0);  // bound, and closed again
    (hides_low ? low : high).addresses = {local_address(closed.value()[0].fd()).text()};
    closed.value().clear();
    const test::Stopwatch watch;
    pair.low.links->open(high, 30000, false);
    pair.high.links->open(low, 30000, false);
    ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1 && pair.high.events.ups == 1; }))
        << hides_low;
    EXPECT_LT(watch.ms(), 2000);
    EXPECT_TRUE(pair.low.events.down.empty());
    EXPECT_TRUE(pair.high.events.down.empty());
  }
}

TEST(Open, dials_that_cross_make_one_link) {
  for (int round = 0; round < 20; ++round) {
    Pair pair;
    const Handle low = pair.low.handle();
    const Handle high = pair.high.handle();
    pair.high.links->open(low, 4U * static_cast<unsigned>(round), false);  // dials after a quarter
    const test::Stopwatch watch;
    static_cast<void>(test::poll_until(pair.loop, [&] { return watch.ms() >= round; }));
    pair.high.links->open(low, 30000, false);
    pair.low.links->open(high, 30000, false);
    ASSERT_TRUE(pair.until([&] {
      return pair.low.links->is_up(pair.high_id()) && pair.high.links->is_up(pair.low_id());
    }));
    const int ups = pair.low.events.ups;
    const test::Stopwatch quiet;
    static_cast<void>(test::poll_until(pair.loop, [&] { return quiet.ms() > 50; }));
    EXPECT_EQ(pair.low.events.ups, ups) << "it came up once";
    EXPECT_TRUE(pair.low.links->is_up(pair.high_id()));
    EXPECT_TRUE(pair.high.links->is_up(pair.low_id()));
  }
}

TEST(Open, who_awaits_a_peer_whose_listener_is_gone_looks_and_finds_out) {
  Pair pair;
  const Handle handle = pair.low.handle();
  pair.low.links.reset();
  pair.high.links->open(handle, 60000, true);
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.down.empty(); }));
  EXPECT_EQ(pair.high.events.last_down, Down::refused);
  EXPECT_NE(pair.high.events.reasons[0].find(handle.addresses[0] + ": connection refused"),
            std::string::npos)
      << pair.high.events.reasons[0];
}

TEST(Open, who_is_dialled_before_it_wants_the_link_has_it_as_soon_as_it_does) {
  Pair pair;
  pair.high.links->open(pair.low.handle(), 60000, true);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.ups == 1; }));
  EXPECT_EQ(pair.low.events.ups, 0);
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  EXPECT_TRUE(pair.high.events.down.empty());
}

TEST(Open, a_peer_that_neither_dials_nor_answers_is_named_with_its_addresses_at_the_deadline) {
  Pair pair;
  auto sockets = listen_on(pair.loop, {"127.0.0.1"}, 0, 0);
  Handle silent = pair.low.handle();
  silent.addresses = {local_address(sockets.value()[0].fd()).text()};
  pair.high.links->open(silent, 200, false);
  ASSERT_TRUE(pair.until([&] { return !pair.high.events.down.empty(); }));
  EXPECT_EQ(pair.high.events.last_down, Down::unopened);
  const std::string& reason = pair.high.events.reasons[0];
  EXPECT_NE(reason.find(to_string(pair.low_id())), std::string::npos) << reason;
  EXPECT_NE(reason.find(silent.addresses[0]), std::string::npos) << reason;
}

TEST(Open, a_listener_that_never_answers_ends_at_the_deadline) {
  Pair pair;
  auto sockets = listen_on(pair.loop, {"127.0.0.1"}, 0, 0);
  Handle handle = pair.high.handle();
  handle.addresses = {local_address(sockets.value()[0].fd()).text()};
  pair.low.links->open(handle, 200, false);
  ASSERT_TRUE(pair.until([&] { return !pair.low.events.down.empty(); }));
  EXPECT_NE(pair.low.events.reasons[0].find("connected, but no answer"), std::string::npos)
      << pair.low.events.reasons[0];
}

TEST(Open, a_deadline_does_not_end_a_link_that_the_other_side_may_have_taken) {
  LinkOptions options;
  options.bulk_lanes = 0;
  Pair pair(options);
  test::Tap between(pair.loop, pair.high.links->port(), 1);
  between.holds_answers = true;
  Handle high = pair.high.handle();
  high.addresses = {between.address()};
  const test::Stopwatch watch;
  pair.high.links->open(pair.low.handle(), 30000, false);
  pair.low.links->open(high, 500, false);
  ASSERT_TRUE(pair.until([&] { return pair.high.events.ups == 1; }));
  ASSERT_TRUE(test::poll_until(pair.loop, [&] { return watch.ms() > 800; }));
  EXPECT_TRUE(pair.low.events.down.empty());
  between.holds_answers = false;
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  pair.low.links->send_control(pair.high_id(), bytes_of("up"));
  ASSERT_TRUE(pair.until([&] { return pair.high.events.controls.size() == 1; }));
  EXPECT_TRUE(pair.low.events.down.empty() && pair.high.events.down.empty());
}

TEST(Open, the_wait_for_an_answer_beyond_the_deadline_ends_too) {
  for (const bool breaks : {true, false}) {
    Pair pair;
    test::Tap between(pair.loop, pair.high.links->port(), 1);
    between.holds_answers = true;
    Handle high = pair.high.handle();
    high.addresses = {between.address()};
    const test::Stopwatch watch;
    pair.low.links->open(high, 300, false);
    ASSERT_TRUE(test::poll_until(pair.loop, [&] { return watch.ms() > 500; }));
    EXPECT_TRUE(pair.low.events.down.empty());
    if (breaks) between.end();
    ASSERT_TRUE(pair.until([&] { return !pair.low.events.down.empty(); }));
    EXPECT_EQ(watch.ms() > static_cast<std::int64_t>(kHandshakeMs), !breaks);
    EXPECT_EQ(pair.low.events.last_down, Down::unopened);
    EXPECT_NE(pair.low.events.reasons[0].find("within 300 ms"), std::string::npos)
        << pair.low.events.reasons[0];
  }
}

TEST(Open, an_id_that_is_not_that_of_the_key_is_refused_without_a_dial) {
  Pair pair;
  Handle handle = pair.high.handle();
  handle.key[5] ^= 1;
  pair.low.links->open(handle, 30000, false);
  ASSERT_TRUE(pair.until([&] { return !pair.low.events.down.empty(); }));
  EXPECT_NE(pair.low.events.reasons[0].find("is not that of its key"), std::string::npos);
}

TEST(Open, a_second_handle_with_the_key_of_another_process_is_refused_too) {
  Pair pair;
  Handle silent = pair.high.handle();
  const auto nobody = std::move(listen_on(pair.loop, {"127.0.0.1"}, 0, 0)).value();
  silent.addresses = {local_address(nobody[0].fd()).text()};
  pair.low.links->open(silent, 300, false);
  Handle wrong = pair.high.handle();
  wrong.key = KeyPair::make().public_key();
  pair.low.links->open(wrong, 1500, false);
  ASSERT_TRUE(pair.until([&] { return !pair.low.events.down.empty(); }));
  EXPECT_NE(pair.low.events.reasons[0].find("is not that of its key"), std::string::npos)
      << pair.low.events.reasons[0];
}

TEST(Open, who_answers_for_another_process_is_refused_with_a_reason) {
  // Between the two: the hello is changed so that `high` takes itself for the one that is wanted.
  Pair pair;
  const KeyPair absent = KeyPair::make();
  const Handle wanted{
      peer_of(absent.public_key()), {pair.high.handle().addresses}, absent.public_key()};
  std::string why;
  const KeyPair here = KeyPair::make();
  const LaneHello hello{here.public_key(), pair.high_id(), 1, false, 0};
  const LaneDial dial(pair.loop, {here, Plaintext::all, 30000}, wanted, hello,
                      LaneDial::Events{[](auto, auto&) { FAIL(); },
                                       [&](const LaneDial::Failure& failure) {
                                         EXPECT_TRUE(failure.final);
                                         why = failure.what;
                                       }});
  ASSERT_TRUE(pair.until([&] { return !why.empty(); }));
  EXPECT_NE(why.find("it cannot prove to hold the peer's key"), std::string::npos) << why;
}

TEST(Open, who_cannot_prove_to_be_a_peer_is_refused_logged_and_disturbs_nobody) {
  test::LogLines log;
  Pair pair;
  pair.open();
  // The liar has seen the public key of `low`, as everybody may.
  const LaneHello hello{pair.low.links->key(), pair.high_id(), 1, false, capability::kPlain};
  for (const bool knows_tls : {true, false}) {
    test::BareClient liar(pair.loop, pair.high.links->port());
    liar.send(encode_opening({kProtocolVersion, Purpose::lane}));
    liar.send(encode_lane_hello(hello));
    ASSERT_TRUE(test::poll_until(pair.loop, [&] {
      return liar.closed() || liar.received.size() >= kOpeningBytes + kLaneOfferBytes;
    }));
    if (knows_tls) {
      liar.protect(kLaneIdentity, random_secret());
    } else {
      liar.send(std::string(200, 'x'));
    }
    ASSERT_TRUE(test::poll_until(pair.loop, [&] { return liar.closed(); }));
  }
  EXPECT_GE(log.count("it cannot prove to be peer " + to_string(pair.low_id())), 1U) << log.all();
  pair.low.links->send_control(pair.high_id(), bytes_of("undisturbed"));
  ASSERT_TRUE(pair.until([&] { return pair.high.events.controls.size() == 1; }));
}

TEST(Open, nobody_is_told_that_it_is_the_process_which_it_dials) {
  test::LogLines log;
  Pair pair;
  pair.open();
  // An old copy of its own words must not come back to it as those of a peer.
  test::BareClient mirror(pair.loop, pair.high.links->port());
  mirror.send(encode_opening({kProtocolVersion, Purpose::lane}));
  mirror.send(
      encode_lane_hello({pair.high.links->key(), pair.high_id(), 1, false, capability::kPlain}));
  ASSERT_TRUE(test::poll_until(pair.loop, [&] { return mirror.closed(); }));
  EXPECT_LE(mirror.received.size(), kOpeningBytes) << "no offer";
  EXPECT_EQ(log.count("it says that it is this process"), 1U) << log.all();
  EXPECT_TRUE(pair.high.links->is_up(pair.low_id()));
}

TEST(Open, what_is_said_before_the_keys_are_proven_cannot_be_changed_on_the_way) {
  // Each field of the hello, and of the offer, enters the key of the handshake.
  const KeyPair a = KeyPair::make();
  const KeyPair b = KeyPair::make();
  const PublicKey& acceptor = b.public_key();
  const Secret shared = *a.shared_with(acceptor);
  const LaneHello hello{a.public_key(), peer_of(acceptor), 7, false, 0};
  std::vector<Secret> keys;
  const auto add = [&](const LaneHello& said, const PublicKey& to, const LaneOffer& offer) {
    const Secret key = lane_secret(shared, said, to, offer);
    for (const Secret& other : keys) EXPECT_FALSE(key.same_as(other)) << keys.size();
    keys.push_back(key);
  };
  LaneHello said = hello;
  add(said, acceptor, {});
  said.dialer[31] ^= 1, add(said, acceptor, {});
  said.acceptor.value ^= 1, add(said, acceptor, {});
  said.link ^= 1, add(said, acceptor, {});
  said.joins = true, add(said, acceptor, {});
  said.capabilities = 1, add(said, acceptor, {});
  said.fills = true, add(said, acceptor, {});
  add(said, a.public_key(), {});
  add(said, acceptor, {true, 0});
  add(said, acceptor, {false, 1});
  EXPECT_TRUE(lane_secret(*b.shared_with(a.public_key()), hello, acceptor, {}).same_as(keys[0]));
}

TEST(Open, lanes_are_plain_only_where_both_ends_allow_it) {
  const auto opened = [](Plaintext low, Plaintext high) {
    LinkOptions options;
    options.bulk_lanes = 2;
    options.plaintext = low;
    Pair pair(options);
    options.plaintext = high;
    options.listen_hosts = {"127.0.0.1"};
    do {
      pair.high.links =
          std::move(make_tcp_links(pair.loop, pair.high.events, KeyPair::make(), options)).value();
    } while (pair.high_id() < pair.low_id());
    // Someone on the way sees every byte.
    test::Tap tap(pair.loop, pair.high.links->port());
    Handle there = pair.high.handle();
    there.addresses = {tap.address()};
    pair.low.links->open(there, 30000, false);
    pair.high.links->open(pair.low.handle(), 30000, false);
    test::Tensor tensor(8U << 20);
    std::vector<std::byte> memory(tensor.bytes.size());
    pair.high.events.place = test::place_in(memory);
    EXPECT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
    pair.low.links->send_control(pair.high_id(), bytes_of("nobody else reads that"));
    tensor.send(*pair.low.links, pair.high_id(), 1U << 20, 1);
    EXPECT_TRUE(pair.until([&] {
      return pair.high.events.arrived_bytes == memory.size() &&
             pair.high.events.controls.size() == 1;
    }));
    EXPECT_TRUE(tensor.is(memory));
    return tap.has_seen("nobody else reads that") ? "plain" : "encrypted";
  };
  for (const Plaintext low : {Plaintext::none, Plaintext::loopback, Plaintext::all}) {
    for (const Plaintext high : {Plaintext::none, Plaintext::loopback, Plaintext::all}) {
      const bool plain = low != Plaintext::none && high != Plaintext::none;
      EXPECT_STREQ(opened(low, high), plain ? "plain" : "encrypted")
          << static_cast<int>(low) << static_cast<int>(high);
    }
  }
  EXPECT_EQ(lane_capabilities(Plaintext::loopback, false, false), 0U);
  EXPECT_EQ(lane_capabilities(Plaintext::all, false, false), capability::kPlain);
}

TEST(Open, strangers_and_half_handshakes_disturb_nobody) {
  test::LogLines log;
  Pair pair;
  const auto opening = encode_opening({kProtocolVersion, Purpose::lane});
  std::vector<std::unique_ptr<test::BareClient>> clients;
  const auto client = [&]() -> test::BareClient& {
    return *clients.emplace_back(
        std::make_unique<test::BareClient>(pair.loop, pair.high.links->port()));
  };
  client().send("GET /metrics HTTP/1.1\r\n\r\n");
  client().send(std::string(5000, '\xff'));
  client().send(opening);                                               // and then nothing
  client().send(encode_opening({kProtocolVersion, Purpose::channel}));  // looks for a master
  client().send(encode_opening({99, Purpose::lane}));
  auto& broken = client();
  broken.send(opening);
  broken.send(std::string(kLaneHelloBytes, '\x80'));  // 2^63 and the like in every field
  pair.open();
  ASSERT_TRUE(test::poll_until(
      pair.loop,
      [&] {
        bool all = true;
        for (const auto& each : clients) all = each->closed() && all;
        return all;
      },
      kHandshakeMs + 3000));
  EXPECT_EQ(log.count("refused a connection from 127.0.0.1"), 5U) << log.all();
  EXPECT_TRUE(pair.high.events.down.empty());
}

TEST(Open, a_process_that_dials_and_ends_meanwhile_makes_no_line) {
  test::LogLines log;
  Pair pair;
  for (const bool hears : {false, true}) {
    auto leaves = std::make_unique<test::BareClient>(pair.loop, pair.high.links->port());
    leaves->send(encode_opening({kProtocolVersion, Purpose::lane}));
    if (hears) {
      ASSERT_TRUE(
          pair.until([&] { return leaves->closed() || leaves->received.size() >= kOpeningBytes; }));
    }
    leaves.reset();
  }
  test::BareClient last(pair.loop, pair.high.links->port());
  last.send("GET /metrics HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(pair.until([&] { return last.closed(); }));
  pair.open();
  EXPECT_EQ(log.count("refused a connection from"), 1U) << log.all();
}

TEST(Open, a_stranger_that_never_stops_sending_disturbs_nobody) {
  Pair pair;
  test::BareClient bare(pair.loop, pair.high.links->port());
  bare.send(encode_opening({99, Purpose::lane}));  // it is answered, and its end is waited for
  ASSERT_TRUE(test::poll_until(
      pair.loop, [&] { return bare.closed() || bare.received.size() >= kOpeningBytes; }));
  std::jthread sender([fd = bare.fd()](const std::stop_token& over) {
    const std::vector<std::byte> bytes(1U << 16);
    const test::Stopwatch watch;
    while (!over.stop_requested() && watch.ms() < 15000) {
      if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN) return;
    }
  });
  const test::Stopwatch watch;
  ASSERT_TRUE(test::poll_until(pair.loop, [&] { return watch.ms() > 500; }));
  pair.open();
  EXPECT_LT(watch.ms(), 3000);
}

TEST(Open, a_port_range_is_searched_and_an_exhausted_one_is_an_error) {
  Loop loop;
  test::Recorder events;
  LinkOptions options;
  options.listen_hosts = {"127.0.0.1"};
  auto first = make_tcp_links(loop, events, KeyPair::make(), options);
  ASSERT_TRUE(first.ok());
  options.port_first = options.port_last = first.value()->port();
  const auto second = make_tcp_links(loop, events, KeyPair::make(), options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::invalid);
}

TEST(Open, all_interfaces_are_reached_by_ipv4_and_ipv6) {
  Loop loop;
  test::Recorder a_events, b_events;
  auto a = std::move(make_tcp_links(loop, a_events, KeyPair::make(), {})).value();
  auto b = std::move(make_tcp_links(loop, b_events, KeyPair::make(), {})).value();
  const bool a_dials = a->self() < b->self();
  Links& dialer = a_dials ? *a : *b;
  Links& acceptor = a_dials ? *b : *a;
  test::Recorder& dialer_events = a_dials ? a_events : b_events;
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    const int ups = dialer_events.ups;
    dialer.open({acceptor.self(), {host + (":" + std::to_string(acceptor.port()))}, acceptor.key()},
                3000, false);
    ASSERT_TRUE(test::run_until(
        loop, [&] { return dialer_events.ups > ups || !dialer_events.down.empty(); }));
    if (!dialer_events.down.empty()) {
      EXPECT_STREQ(host, "[::1]") << dialer_events.reasons[0];  // a machine without IPv6
      break;
    }
    dialer.drop(acceptor.self());
  }
}

}  // namespace
}  // namespace pccl
