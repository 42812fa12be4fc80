// The entrance of a channel: who comes in by a token, who does not, and what both sides say.
#include "transport/entrance.h"

#include <gtest/gtest.h>

#include "base/protocol.h"
#include "support.h"
#include "tap.h"
#include "transport/channel.h"
#include "transport/gate.h"
#include "transport/handshake.h"
#include "transport/loop.h"

namespace pccl {
namespace {

using test::bytes_of;
using test::run_until;

Token new_token(const std::string& name, const KeyPair& master,
                std::vector<std::string> runs = {}) {
  return {name, random_secret(), key_hash(master.public_key()), std::move(runs)};
}

struct Visitor {
  std::unique_ptr<Channel> channel;
  std::vector<std::string> arrived;
  std::string closed;

  void take(std::unique_ptr<Channel> taken) {
    channel = std::move(taken);
    channel->trust();
    channel->set_events(
        {[this](std::span<const std::byte> p) { arrived.push_back(test::text_of(p)); },
         [this](const std::string& reason) { closed = reason; }});
  }
};

/// A master's port with an entrance, or without one, and those who dial it.
struct House {
  Loop loop;
  KeyPair key = KeyPair::make();
  std::shared_ptr<Entrance> entrance;
  std::vector<std::unique_ptr<Visitor>> accepted;
  std::unique_ptr<ChannelListener> listener;
  Visitor end;
  bool kept_out = false;

  explicit House(const std::vector<Token>& tokens) : House(KeyPair::make(), tokens) {}
  House(const KeyPair& pair, const std::vector<Token>& tokens) : key(pair) {
    if (!tokens.empty())
      entrance = std::make_shared<Entrance>(Entrance{key, Tokens(tokens, "its file")});
    auto made = listen_channels(
        loop, "127.0.0.1", 0,
        [this](std::unique_ptr<Channel> channel) {
          accepted.push_back(std::make_unique<Visitor>());
          accepted.back()->take(std::move(channel));
        },
        {}, entrance);
    EXPECT_TRUE(made.ok()) << made.error().text;
    listener = std::move(made).value();
  }

  Error dial(const Entry& entry) {
    return dial(entry, "127.0.0.1:" + std::to_string(listener->port()));
  }
  Error dial(const Entry& entry, const std::string& address) {
    std::optional<Error> error;
    std::unique_ptr<Dial> dialled = dial_channel(
        loop, address, 5000,
        [&](Result<std::unique_ptr<Channel>> result) {
          error = result.ok() ? Error{} : result.error();
          kept_out = dialled->kept_out();
          if (result) end.take(std::move(result).value());
        },
        entry);
    EXPECT_TRUE(run_until(loop, [&] { return error.has_value(); }));
    return error.value_or(Error{});
  }
};

Entry holding(const std::vector<Token>& tokens, const std::string& run = "") {
  return {std::nullopt, std::make_shared<const Tokens>(tokens, "F"), run};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Entrance, an_offer_is_read_as_it_was_written_and_nothing_else_is_read) {
  const MasterOffer offer{true, KeyPair::make().public_key()};
  const auto bytes = encode_master_offer(offer);
  EXPECT_EQ(decode_master_offer(bytes).value(), offer);
  EXPECT_EQ(decode_master_offer(encode_master_offer({})).value(), MasterOffer{});
  for (std::size_t at = 0; at < 8; ++at) {
    auto wrong = bytes;
    wrong[at] = std::byte{2};
    EXPECT_EQ(decode_master_offer(wrong).error().code, ErrorCode::malformed) << at;
  }
  EXPECT_FALSE(decode_master_offer(encode_master_offer({true, {}})).ok());
  EXPECT_FALSE(decode_master_offer(encode_master_offer({false, offer.key})).ok());
}

TEST(Entrance, messages_pass_in_tls_and_the_master_knows_token_key_and_run) {
  const KeyPair master = KeyPair::make();
  const std::vector<Token> tokens = {new_token("a", master), new_token("b", master)};
  House house(master, tokens);
  const KeyPair own = KeyPair::make();
  Entry entry = holding({tokens[1]}, "r");
  entry.identity = own;
  EXPECT_EQ(house.dial(entry).text, "");
  ASSERT_TRUE(run_until(house.loop, [&] { return !house.accepted.empty(); }));
  Visitor& other = *house.accepted.front();
  EXPECT_EQ(other.channel->caller().token, "b");
  EXPECT_EQ(other.channel->caller().key, own.public_key());
  EXPECT_EQ(other.channel->caller().run, "r");
  const std::string large(24U << 20, 'x');
  house.end.channel->send(bytes_of(large));
  other.channel->send(bytes_of("answer"));
  for (int i = 0; i < 100; ++i) house.end.channel->send(bytes_of("m" + std::to_string(i)));
  ASSERT_TRUE(run_until(
      house.loop, [&] { return other.arrived.size() == 101 && house.end.arrived.size() == 1; }));
  EXPECT_TRUE(other.arrived[0] == large && other.arrived[100] == "m99");
  EXPECT_EQ(house.end.arrived[0], "answer");
  other.channel->send(bytes_of("last"));
  other.channel->close();
  ASSERT_TRUE(run_until(house.loop, [&] { return !house.end.closed.empty(); }));
  EXPECT_EQ(house.end.arrived.back(), "last");
  EXPECT_EQ(house.end.closed, "the other side has closed the connection");
}

TEST(Entrance, who_passes_on_the_bytes_of_a_channel_with_tokens_reads_nothing_of_them) {
  const std::string question = "what a member says to its master";
  const std::string answer = "what the master says to it";
  for (const bool tokens : {true, false}) {
    const KeyPair master = KeyPair::make();
    const Token token = new_token("bonn", master);
    House house(master, tokens ? std::vector{token} : std::vector<Token>{});
    test::Tap tap(house.loop, house.listener->port());
    Entry entry = tokens ? holding({token}, "r") : Entry{};
    entry.identity = KeyPair::make();
    EXPECT_EQ(house.dial(entry, tap.address()).text, "");
    ASSERT_TRUE(run_until(house.loop, [&] { return !house.accepted.empty(); }));
    house.end.channel->send(bytes_of(question));
    house.accepted.front()->channel->send(bytes_of(answer));
    ASSERT_TRUE(run_until(house.loop, [&] {
      return house.end.arrived.size() == 1 && house.accepted.front()->arrived.size() == 1;
    }));
    EXPECT_EQ(tap.has_seen(question), !tokens);
    EXPECT_EQ(tap.has_seen(answer), !tokens);
    const auto secret = token.secret.bytes();
    EXPECT_FALSE(tap.has_seen(
        std::string_view(reinterpret_cast<const char*>(secret.data()), secret.size())));
  }
}

TEST(Entrance, a_byte_that_was_changed_on_its_way_ends_the_channel_and_is_not_read) {
  const KeyPair master = KeyPair::make();
  const Token token = new_token("bonn", master);
  Entry entry = holding({token}, "r");
  entry.identity = KeyPair::make();
  const std::string message(1000, 'm');
  std::size_t in_handshake = 0;
  std::size_t in_message = 0;
  for (std::size_t at = 0; at < 2000; at += 41) {
    House house(master, {token});
    test::Tap tap(house.loop, house.listener->port());
    tap.changes = at;
    if (house.dial(entry, tap.address()).failed()) {
      ++in_handshake;
      EXPECT_TRUE(house.accepted.empty());
      continue;
    }
    house.end.channel->send(bytes_of(message));
    house.end.channel->send(bytes_of(message));
    ASSERT_TRUE(run_until(house.loop, [&] {
      if (house.accepted.empty()) return !house.end.closed.empty();
      return !house.accepted.front()->closed.empty() || house.accepted.front()->arrived.size() == 2;
    })) << at;
    if (house.accepted.empty()) {
      ++in_handshake;  // its last message was changed
      continue;
    }
    const Visitor& visitor = *house.accepted.front();
    for (const std::string& text : visitor.arrived) EXPECT_TRUE(text == message) << at;
    EXPECT_EQ(visitor.closed.empty(), visitor.arrived.size() == 2) << at;
    if (visitor.closed.empty()) {
      EXPECT_LE(tap.said(), at) << "it was changed, and nobody has seen that";
    } else {
      ++in_message;
    }
  }
  EXPECT_GE(in_handshake, 10U);
  EXPECT_GE(in_message, 10U);
}

TEST(Entrance, without_tokens_on_either_side_the_channel_is_plain_and_nobody_is_known) {
  House house({});
  EXPECT_EQ(house.dial({}).text, "");
  ASSERT_TRUE(run_until(house.loop, [&] { return !house.accepted.empty(); }));
  EXPECT_EQ(house.accepted.front()->channel->caller().token, "");
  house.end.channel->send(bytes_of("hello"));
  EXPECT_TRUE(run_until(house.loop, [&] { return !house.accepted.front()->arrived.empty(); }));
}

TEST(Entrance, a_process_without_a_token_hears_at_once_how_to_get_one) {
  const KeyPair master = KeyPair::make();
  House house(master, {new_token("a", master)});
  const Error error = house.dial({});
  EXPECT_EQ(error.code, ErrorCode::refused);
  EXPECT_TRUE(has(error.text, "set PCCL_TOKEN_FILE")) << error.text;
  EXPECT_TRUE(has(error.text, "--new-token")) << error.text;
  EXPECT_TRUE(house.kept_out);
  EXPECT_TRUE(house.accepted.empty());
}

TEST(Entrance, a_process_with_a_token_does_not_go_on_without_protection) {
  const KeyPair master = KeyPair::make();
  House house({});
  const Error error = house.dial(holding({new_token("a", master)}));
  EXPECT_EQ(error.code, ErrorCode::refused);
  EXPECT_TRUE(has(error.text, "does not go on without protection")) << error.text;
  EXPECT_TRUE(house.kept_out);
}

TEST(Entrance, a_token_of_another_master_is_not_shown_to_this_one) {
  const KeyPair other = KeyPair::make();
  House house({new_token("a", KeyPair::make())});
  const Error error = house.dial(holding({new_token("a", other)}));
  EXPECT_EQ(error.code, ErrorCode::refused);
  EXPECT_TRUE(has(error.text, "is not the master of any token in F")) << error.text;
  EXPECT_TRUE(has(error.text, "nothing was sent")) << error.text;
}

TEST(Entrance, an_unknown_token_and_a_wrong_secret_are_refused_and_both_sides_say_so) {
  const KeyPair master = KeyPair::make();
  House house(master, {new_token("a", master)});
  for (const std::string& name : {std::string("a"), std::string("b")}) {
    test::LogLines log;
    const Error error = house.dial(holding({new_token(name, master)}));
    EXPECT_EQ(error.code, ErrorCode::refused);
    EXPECT_TRUE(has(error.text, "this master refuses the token \"" + name + "\" of F"))
        << error.text;
    EXPECT_TRUE(house.kept_out);
    EXPECT_TRUE(run_until(house.loop, [&] {
      return has(log.all(), "has not proven that it holds a token of this master");
    })) << log.all();
  }
  EXPECT_TRUE(house.accepted.empty());
}

TEST(Entrance, a_token_that_was_taken_away_opens_nothing_any_more) {
  const KeyPair master = KeyPair::make();
  const std::vector<Token> tokens = {new_token("a", master), new_token("b", master)};
  House house(master, tokens);
  EXPECT_EQ(house.dial(holding({tokens[0]})).text, "");
  house.entrance->tokens = Tokens({tokens[1]}, "its file");
  EXPECT_EQ(house.dial(holding({tokens[0]})).code, ErrorCode::refused);
  EXPECT_EQ(house.dial(holding({tokens[1]})).text, "");
}

TEST(Entrance, a_master_without_the_private_key_of_the_public_one_that_it_shows_is_not_believed) {
  const KeyPair master = KeyPair::make();
  const KeyPair liar = KeyPair::make();
  const Token token = new_token("a", master);  // stolen too
  Loop loop;
  Gate gate(loop, listen_on(loop, {"127.0.0.1"}, 0, 0).value(), Purpose::channel,
            [&](const std::shared_ptr<Talk>& talk) {
              talk->send(encode_master_offer({true, master.public_key()}));
              talk->protect(
                  [&](std::unique_ptr<Stream> stream) {
                    return TlsStream::accept(loop, std::move(stream), [&](std::string_view text) {
                      const auto identity = parse_identity(text).value();
                      return channel_key(token, liar, identity.key, identity, master.public_key());
                    });
                  },
                  "not proven", [] { ADD_FAILURE() << "the liar was believed"; });
            });
  Error error;
  const auto dial = dial_channel(
      loop, "127.0.0.1:" + std::to_string(gate.port()), 5000,
      [&](Result<std::unique_ptr<Channel>> result) {
        error = result.ok() ? Error{ErrorCode::broken, "it connected"} : result.error();
      },
      holding({token}));
  EXPECT_TRUE(run_until(loop, [&] { return error.failed(); }));
  EXPECT_EQ(error.code, ErrorCode::refused);
  EXPECT_TRUE(has(error.text, "or it only says that it is that master")) << error.text;
}

TEST(Entrance, bytes_that_are_no_tls_end_their_connection_and_disturb_nobody) {
  const KeyPair master = KeyPair::make();
  const Token token = new_token("a", master);
  House house(master, {token});
  test::BareClient plain(house.loop, house.listener->port());
  plain.send(encode_opening({kProtocolVersion, Purpose::channel}));
  plain.send("{\"m\":\"hello\"} and more than enough bytes to be a record of TLS");
  EXPECT_EQ(house.dial(holding({token})).text, "");
  EXPECT_TRUE(run_until(house.loop, [&] { return house.accepted.size() == 1; }));
}

}  // namespace
}  // namespace pccl
