#include "transport/channel.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/limits.h"
#include "base/protocol.h"
#include "support.h"
#include "transport/framing.h"
#include "transport/handshake.h"
#include "transport/loop.h"

namespace pccl {
namespace {

using test::bytes_of;
using test::run_until;

struct ChannelEnd {
  std::unique_ptr<Channel> channel;
  std::vector<std::string> arrived;
  std::string closed;

  void take(std::unique_ptr<Channel> taken) {
    channel = std::move(taken);
    channel->set_events(
        {[this](std::span<const std::byte> p) { arrived.push_back(test::text_of(p)); },
         [this](const std::string& reason) { closed = reason; }});
  }
};

/// A listener that keeps what it accepts, and dials to it.
struct World {
  Loop loop;
  std::vector<std::unique_ptr<ChannelEnd>> accepted;
  std::unique_ptr<ChannelListener> listener;
  std::vector<std::unique_ptr<Dial>> dials;
  bool trusts = true;

  explicit World(const ChannelLimits& limits = {}) {
    auto made = listen_channels(
        loop, "127.0.0.1", 0,
        [this](std::unique_ptr<Channel> channel) {
          accepted.push_back(std::make_unique<ChannelEnd>());
          accepted.back()->take(std::move(channel));
          if (trusts) accepted.back()->channel->trust();
        },
        limits);
    EXPECT_TRUE(made.ok()) << made.error().text;
    listener = std::move(made).value();
  }
  [[nodiscard]] std::string address() const {
    return "127.0.0.1:" + std::to_string(listener->port());
  }

  std::unique_ptr<ChannelEnd> connect() {
    auto end = std::make_unique<ChannelEnd>();
    dials.push_back(
        dial_channel(loop, address(), 5000, [&](Result<std::unique_ptr<Channel>> result) {
          EXPECT_TRUE(result.ok()) << result.error().text;
          if (result) end->take(std::move(result).value());
        }));
    const std::size_t before = accepted.size();
    EXPECT_TRUE(run_until(loop, [&] { return end->channel && accepted.size() > before; }));
    return end;
  }
  Error dial_error(const std::string& to, std::uint64_t timeout_ms) {
    Error error;
    auto dial = dial_channel(loop, to, timeout_ms, [&](Result<std::unique_ptr<Channel>> result) {
      error = result.ok() ? Error{ErrorCode::broken, "it connected"} : result.error();
    });
    EXPECT_TRUE(run_until(loop, [&] { return error.failed(); }));
    return error;
  }
};

TEST(Channel, messages_arrive_in_their_order_in_both_directions) {
  World world;
  const auto end = world.connect();
  ChannelEnd& other = *world.accepted[0];
  for (int i = 0; i < 200; ++i) {
    end->channel->send(bytes_of("to " + std::to_string(i)));
    other.channel->send(bytes_of("from " + std::to_string(i)));
  }
  ASSERT_TRUE(run_until(world.loop,
                        [&] { return end->arrived.size() == 200 && other.arrived.size() == 200; }));
  EXPECT_EQ(other.arrived[199], "to 199");
  EXPECT_EQ(end->arrived[0], "from 0");
  EXPECT_EQ(end->channel->queued_bytes(), 0U);
}

TEST(Channel, messages_of_many_megabytes_arrive_whole) {
  World world;
  const auto end = world.connect();
  std::string large(24U << 20, 'x');
  for (std::size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>(i);
  end->channel->send(bytes_of(large));
  end->channel->send(bytes_of("after"));
  ASSERT_TRUE(run_until(world.loop, [&] { return world.accepted[0]->arrived.size() == 2; }));
  EXPECT_TRUE(world.accepted[0]->arrived[0] == large);
  EXPECT_TRUE(
      run_until(world.loop, [&] { return end->channel->acknowledged_bytes() > large.size(); }));
}

TEST(Channel, who_does_not_read_is_read_and_its_owner_hears_when_it_reads_again) {
  constexpr std::size_t kQueued = 4U << 20;
  const std::string answer(1U << 20, 'z');
  World world;
  const auto total = std::make_shared<std::size_t>(0);
  std::unique_ptr<Channel> silent;  // without events it reads nothing
  const auto dial =
      dial_channel(world.loop, world.address(), 5000, [&](Result<std::unique_ptr<Channel>> result) {
        ASSERT_TRUE(result.ok()) << result.error().text;
        silent = std::move(result).value();
      });
  ASSERT_TRUE(run_until(world.loop, [&] { return silent && world.accepted.size() == 1; }));
  Channel& answering = *world.accepted[0]->channel;
  std::size_t asked = 0;
  std::size_t rooms = 0;
  const auto ask = [&](std::span<const std::byte>) {
    ++asked;
    answering.send(bytes_of(answer));
  };
  const auto room = [&] {
    ++rooms;
    EXPECT_LE(answering.queued_bytes(), kQueued);
  };
  answering.watch_queue(kQueued, total, room);
  answering.set_events({ask, {}});
  for (int i = 0; i < 30; ++i) silent->send(bytes_of("ask"));
  ASSERT_TRUE(run_until(world.loop, [&] { return asked == 30; }));
  EXPECT_GT(answering.queued_bytes(), kQueued);
  EXPECT_EQ(answering.queued_bytes(), *total);
  EXPECT_EQ(rooms, 0U);
  std::size_t answers = 0;
  silent->set_events({[&](std::span<const std::byte>) { ++answers; }, {}});
  ASSERT_TRUE(run_until(world.loop, [&] { return answers == 30; }));
  EXPECT_EQ(rooms, 1U);
  EXPECT_EQ(*total, 0U);
}

TEST(Channel, close_sends_what_is_queued_also_when_the_channel_is_destroyed_at_once) {
  World world;
  auto end = world.connect();
  for (int i = 0; i < 64; ++i) end->channel->send(bytes_of(std::string(200000, 'y')));
  EXPECT_GT(end->channel->queued_bytes(), 0U);
  end->channel->close();
  end.reset();
  ChannelEnd& other = *world.accepted[0];
  ASSERT_TRUE(run_until(world.loop, [&] { return !other.closed.empty(); }));
  EXPECT_EQ(other.arrived.size(), 64U);
}

TEST(Channel, a_destroyed_channel_is_a_closed_one_at_the_other_side) {
  World world;
  auto end = world.connect();
  end->channel.reset();
  ASSERT_TRUE(run_until(world.loop, [&] { return !world.accepted[0]->closed.empty(); }));
  EXPECT_EQ(world.accepted[0]->closed, "the other side has closed the connection");
}

TEST(Channel, it_may_be_destroyed_inside_its_own_callback) {
  World world;
  const auto end = world.connect();
  std::unique_ptr<Channel>& channel = world.accepted[0]->channel;
  bool called = false;
  channel->set_events({[&](std::span<const std::byte>) {
                         called = true;
                         channel.reset();
                       },
                       {}});
  end->channel->send(bytes_of("first"));
  end->channel->send(bytes_of("second"));
  ASSERT_TRUE(run_until(world.loop, [&] { return called && !end->closed.empty(); }));
}

TEST(Channel, what_was_sent_before_a_close_arrives_although_the_other_side_goes_on_sending) {
  World world;
  const auto end = world.connect();
  ChannelEnd& other = *world.accepted[0];
  other.channel->send(bytes_of("you are refused"));
  other.channel->close();
  for (int i = 0; i < 100; ++i) end->channel->send(bytes_of(std::string(100000, 'z')));
  ASSERT_TRUE(run_until(world.loop, [&] { return !end->closed.empty(); }));
  ASSERT_EQ(end->arrived.size(), 1U);
  EXPECT_EQ(end->arrived[0], "you are refused");
}

TEST(Channel, an_untrusted_one_is_closed_when_a_frame_is_too_large) {
  World world;
  world.trusts = false;
  const auto end = world.connect();
  end->channel->send(bytes_of(std::string(kHandshakeBytesMax + 1, 'x')));
  ASSERT_TRUE(run_until(world.loop, [&] { return !world.accepted[0]->closed.empty(); }));
  EXPECT_NE(world.accepted[0]->closed.find("the limit is"), std::string::npos);
  EXPECT_TRUE(world.accepted[0]->arrived.empty());
}

TEST(Channel, broken_framing_closes_it_with_a_reason) {
  const auto framed = [](FrameHeader header) {
    HeaderBytes bytes;
    const std::size_t size = encode_frame_header(header, bytes);
    return std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
  };
  FrameHeader empty;
  FrameHeader huge;
  huge.payload_bytes = 0xFFFFFFFF;
  FrameHeader wrong_sum;
  wrong_sum.payload_bytes = 4;
  wrong_sum.has_payload_crc = true;
  wrong_sum.payload_crc = 1;
  FrameHeader goodbye;
  goodbye.type = FrameType::goodbye;
  FrameHeader segment;
  segment.type = FrameType::segment;
  auto segment_start = framed(segment);
  segment_start.resize(kFrameHeaderBytes);
  auto garbled = framed(wrong_sum);
  garbled[9] ^= std::byte{1};
  auto with_payload = framed(wrong_sum);
  for (const char c : {'a', 'b', 'c', 'd'}) with_payload.push_back(static_cast<std::byte>(c));
  const std::vector<std::pair<std::vector<std::byte>, std::string>> cases = {
      {framed(empty), "a frame of 0 bytes"},
      {framed(huge), "a frame of 4294967295 bytes"},
      {garbled, "the checksum of a frame header"},
      {with_payload, "the checksum of a payload"},
      {framed(goodbye), "no place here"},
      {framed(segment), "no place here"},
      // As much of a segment's header as other frames have, and no byte more.
      {segment_start, "no place here"},
      // A length of 2^63 where a foreign protocol would have one.
      {std::vector<std::byte>(16, std::byte{0x80}), "unknown type"}};
  World world;
  const auto bystander = world.connect();
  for (const auto& [bytes, reason] : cases) {
    test::BareClient client(world.loop, world.listener->port());
    const std::size_t before = world.accepted.size();
    client.send(encode_opening({kProtocolVersion, Purpose::channel}));
    client.send(bytes);
    ASSERT_TRUE(run_until(world.loop, [&] {
      return world.accepted.size() > before && !world.accepted.back()->closed.empty();
    })) << reason;
    const std::string& seen = world.accepted.back()->closed;
    EXPECT_NE(seen.find(reason), std::string::npos) << seen;
    EXPECT_TRUE(world.accepted.back()->arrived.empty());
    EXPECT_TRUE(test::poll_until(world.loop, [&] { return client.closed(); }));
  }
  bystander->channel->send(bytes_of("still here"));
  ASSERT_TRUE(run_until(world.loop, [&] { return !world.accepted[0]->arrived.empty(); }));
}

TEST(Channel, strangers_are_refused_logged_once_and_disturb_nobody) {
  test::LogLines log;
  World world;
  const auto bystander = world.connect();
  for (int i = 0; i < 20; ++i) {
    test::BareClient http(world.loop, world.listener->port());
    http.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    test::BareClient garbage(world.loop, world.listener->port());
    garbage.send(std::string(100, '\xee'));
    ASSERT_TRUE(test::poll_until(world.loop, [&] { return http.closed() && garbage.closed(); }));
    EXPECT_TRUE(http.received.empty());
  }
  EXPECT_EQ(log.count("refused a connection from 127.0.0.1: its first bytes are not pccl's"), 1U);
  bystander->channel->send(bytes_of("still here"));
  ASSERT_TRUE(run_until(world.loop, [&] { return !world.accepted[0]->arrived.empty(); }));
  EXPECT_EQ(world.accepted.size(), 1U);
}

TEST(Channel, silence_and_half_an_opening_end_after_the_handshake_time) {
  World world;
  test::BareClient silent(world.loop, world.listener->port());
  test::BareClient half(world.loop, world.listener->port());
  const OpeningBytes opening = encode_opening({kProtocolVersion, Purpose::channel});
  half.send(std::span(opening).first(9));
  ASSERT_TRUE(test::poll_until(
      world.loop, [&] { return silent.closed() && half.closed(); }, kHandshakeMs + 3000));
  EXPECT_TRUE(world.accepted.empty());
}

TEST(Channel, another_version_is_answered_with_the_own_opening_before_the_close) {
  test::LogLines log;
  World world;
  test::BareClient client(world.loop, world.listener->port());
  client.send(encode_opening({kProtocolVersion + 7, Purpose::channel}));
  ASSERT_TRUE(test::poll_until(
      world.loop, [&] { return client.closed() || client.received.size() >= kOpeningBytes; }));
  const auto answer = decode_opening(client.received);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().version, kProtocolVersion);
  EXPECT_EQ(log.count("protocol version " + std::to_string(kProtocolVersion + 7)), 1U);
  EXPECT_TRUE(world.accepted.empty());
}

TEST(Channel, too_many_strangers_push_out_the_oldest_of_them) {
  test::LogLines log;
  World world;
  std::vector<std::unique_ptr<test::BareClient>> clients;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<test::BareClient>(world.loop, world.listener->port()));
  }
  ASSERT_TRUE(test::poll_until(world.loop, [&] { return clients[0]->closed(); }, 3000));
  const auto end = world.connect();  // and an honest one gets in
  EXPECT_NE(end->channel, nullptr);
}

TEST(Channel, a_crowd_of_one_address_takes_no_place_from_another) {
  World world;
  const OpeningBytes opening = encode_opening({kProtocolVersion, Purpose::channel});
  test::BareClient slow(world.loop, world.listener->port(), "127.0.0.2");
  slow.send(std::span(opening).first(9));
  test::BareClient mute(world.loop, world.listener->port(), "127.0.0.3");
  std::vector<std::unique_ptr<test::BareClient>> crowd;
  for (int i = 0; i < 600; ++i) {
    crowd.push_back(std::make_unique<test::BareClient>(world.loop, world.listener->port()));
    crowd.back()->send(std::span(opening).first(9));
  }
  const auto closed = [&] {
    return std::count_if(crowd.begin(), crowd.end(), [](auto& client) { return client->closed(); });
  };
  ASSERT_TRUE(test::poll_until(world.loop, [&] { return closed() >= 600 - 254; }, 4000));
  EXPECT_FALSE(slow.closed());
  EXPECT_FALSE(mute.closed());
  slow.send(std::span(opening).subspan(9));
  ASSERT_TRUE(test::poll_until(
      world.loop, [&] { return slow.closed() || slow.received.size() >= kOpeningBytes; }));
}

TEST(Dial, a_refused_connection_says_what_was_seen_and_leaves_the_address_to_its_caller) {
  World world;
  const std::string address = world.address();
  world.listener.reset();
  const Error error = world.dial_error(address, 5000);
  EXPECT_EQ(error.code, ErrorCode::unreachable);
  EXPECT_EQ(error.text, "connection refused");
}

TEST(Dial, every_address_of_a_name_is_tried_and_reported) {
  World world;
  const std::uint16_t port = world.listener->port();
  world.listener.reset();
  const Error error = world.dial_error("localhost:" + std::to_string(port), 5000);
  const auto addresses = resolve_blocking("localhost", port);
  ASSERT_TRUE(addresses.ok());
  ASSERT_FALSE(addresses.value().empty());
  for (const SocketAddress& address : addresses.value()) {
    EXPECT_NE(error.text.find(address.text()), std::string::npos) << error.text;
  }
}

TEST(Dial, a_listener_that_never_answers_ends_at_the_deadline) {
  Loop loop;
  auto sockets = listen_on(loop, {"127.0.0.1"}, 0, 0);
  ASSERT_TRUE(sockets.ok());
  const std::string address = local_address(sockets.value()[0].fd()).text();
  Error error;
  const auto dial = dial_channel(
      loop, address, 200, [&](Result<std::unique_ptr<Channel>> result) { error = result.error(); });
  ASSERT_TRUE(run_until(loop, [&] { return error.failed(); }));
  EXPECT_EQ(error.code, ErrorCode::unreachable);
  EXPECT_NE(error.text.find("connected, but no answer"), std::string::npos) << error.text;
}

TEST(Dial, what_is_no_master_is_refused) {
  Loop loop;
  auto sockets = listen_on(loop, {"127.0.0.1"}, 0, 0);
  ASSERT_TRUE(sockets.ok());
  const int listening = sockets.value()[0].fd();
  Error error;
  const auto dial =
      dial_channel(loop, local_address(listening).text(), 5000,
                   [&](Result<std::unique_ptr<Channel>> result) { error = result.error(); });
  int accepted = -1;
  ASSERT_TRUE(test::poll_until(loop, [&] {
    accepted = ::accept(listening, nullptr, nullptr);
    return accepted >= 0;
  }));
  ASSERT_EQ(::send(accepted, "HTTP/1.1 400 Bad Request\r\n", 26, 0), 26);
  ASSERT_TRUE(run_until(loop, [&] { return error.failed(); }));
  EXPECT_EQ(error.code, ErrorCode::refused);
  ::close(accepted);
}

TEST(Dial, destroying_it_cancels_it) {
  World world;
  bool called = false;
  auto dial = dial_channel(world.loop, world.address(), 5000,
                           [&](Result<std::unique_ptr<Channel>>) { called = true; });
  dial.reset();
  bool later = false;
  const auto timer = world.loop.timer(50, 0, [&] { later = true; });
  ASSERT_TRUE(run_until(world.loop, [&] { return later; }));
  EXPECT_FALSE(called);
}

TEST(Address, host_and_port_are_told_apart) {
  EXPECT_EQ(parse_address("a.b:1").value().host, "a.b");
  EXPECT_EQ(parse_address("[::1]:48148").value().host, "::1");
  EXPECT_EQ(parse_address("[::1]:48148").value().port, 48148);
  for (const char* wrong : {"", ":", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "::1:5", "[]:5",
                            "[::1:5", "a:-1", "a: 1"}) {
    EXPECT_FALSE(parse_address(wrong).ok()) << wrong;
  }
}

TEST(Address, the_way_to_loopback_starts_at_loopback) {
  EXPECT_EQ(local_address_towards("127.0.0.1", 9), "127.0.0.1");
  EXPECT_EQ(local_address_towards("host.invalid", 9), "");
}

}  // namespace
}  // namespace pccl
