// A master that takes members with a token only: who is let in, and who is evicted when a line is
// taken out of the file.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "server_fixture.h"
#include "trust/token_file.h"

namespace pccl::master {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string base64(const Secret& secret) {
  std::array<unsigned char, 64> text{};
  const auto bytes = secret.bytes();
  const int size =
      ::EVP_EncodeBlock(text.data(), reinterpret_cast<const unsigned char*>(bytes.data()),
                        static_cast<int>(bytes.size()));
  return {text.begin(), text.begin() + size};
}

class TokensOf : public Server {
 protected:
  TokensOf() {
    use_state_file();
    master_.token_file = (folder_.path / "tokens").string();
    add("a");
    add("b");
    add("of_other", {"other"});
    options_.min_peers = 2;
  }
  ~TokensOf() override { peers_.clear(); }

  void add(const std::string& name, const std::vector<std::string>& runs = {}) {
    EXPECT_EQ(add_token(master_.token_file, name, runs).text, "");
  }
  /// The line is taken away, and the file read again.
  void remove(const std::string& name) {
    cut(name);
    server_->reload_tokens();
  }
  void cut(const std::string& name) {
    std::ifstream file(master_.token_file);
    std::string text;
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with(name + ":")) text += line + "\n";
    }
    std::ofstream(master_.token_file, std::ios::trunc) << text;
  }
  [[nodiscard]] Entry holding(const std::string& name, const std::string& run = "") const {
    const auto files = read_master_files(master_.token_file);
    EXPECT_TRUE(files.ok()) << files.error().text;
    return {KeyPair::make(),
            std::make_shared<const Tokens>(std::vector{*files.value().tokens.find(name)}, "F"),
            run};
  }
  /// A run of peers 1 and 2, which have come by the tokens a and b.
  void a_and_b_run() {
    start();
    comes(holding("a"));
    comes(holding("b"));
    ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  }
  FakePeer& comes(const Entry& entry) {
    const std::uint64_t id = peers_.size() + 1;
    return *peers_.emplace_back(std::make_unique<FakePeer>(loop_, id, port_, entry));
  }
};

TEST_F(TokensOf, members_come_by_their_tokens_and_the_register_names_them) {
  start();
  comes(holding("a"));
  comes(holding("b", "default"));
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
  const auto& members = run().state().held->epoch->members;
  EXPECT_EQ(members[0].token, "a");
  EXPECT_EQ(members[1].token, "b");
  EXPECT_EQ(run().status().members[1].token, "b");
}

TEST_F(TokensOf, no_member_is_told_a_secret) {
  start();
  std::vector<Secret> secrets;
  for (const char* name : {"a", "b"}) {
    const Entry entry = holding(name);
    secrets.push_back(entry.tokens->find(name)->secret);
    secrets.push_back(entry.identity->secret());
    comes(entry);
  }
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
  const auto files = read_master_files(master_.token_file);
  ASSERT_TRUE(files.ok());
  secrets.push_back(files.value().key);
  std::string told;
  for (const auto& peer : peers_) {
    EXPECT_GE(peer->inbox.size(), 3U);
    for (const MasterToPeer& message : peer->inbox) {
      for (const std::byte byte : encode(message)) told += static_cast<char>(byte);
    }
  }
  std::ifstream state(options_.state_file, std::ios::binary);
  told.append(std::istreambuf_iterator<char>(state), {});
  for (const Secret& secret : secrets) {
    const auto bytes = secret.bytes();
    const std::string raw(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_EQ(told.find(raw), std::string::npos);
    EXPECT_EQ(told.find(base64(secret)), std::string::npos);
  }
}

TEST_F(TokensOf, a_process_without_a_token_or_with_another_one_sends_no_hello) {
  start();
  FakePeer& stranger = comes({});
  ASSERT_TRUE(until([&] { return !stranger.refused.empty(); }));
  EXPECT_TRUE(has(stranger.refused, "takes processes with a token only")) << stranger.refused;
  Entry other = holding("a");
  other.tokens = std::make_shared<const Tokens>(
      std::vector{Token{"a", random_secret(), other.tokens->all()[0].master, {}}}, "F");
  FakePeer& liar = comes(other);
  ASSERT_TRUE(until([&] { return !liar.refused.empty(); }));
  EXPECT_TRUE(has(liar.refused, "refuses the token \"a\"")) << liar.refused;
  EXPECT_TRUE(run().state().peers.empty());
}

TEST_F(TokensOf, a_token_opens_its_runs_only) {
  start();
  FakePeer& peer = comes(holding("of_other"));
  ASSERT_TRUE(until([&] { return peer.last<Refuse>() != nullptr; }));
  EXPECT_EQ(peer.last<Refuse>()->error.text,
            "the token \"of_other\" opens the run other, not \"default\"");
  EXPECT_TRUE(run().state().peers.empty());
}

TEST_F(TokensOf, nobody_says_hello_in_the_name_of_another_process) {
  start();
  FakePeer& peer = comes(holding("a"));
  peer.state.self.handle.peer = PeerId{7};
  ASSERT_TRUE(until([&] { return peer.last<Refuse>() != nullptr; }));
  EXPECT_TRUE(has(peer.last<Refuse>()->error.text, "in the name of another process"));
  FakePeer& other = comes(holding("a"));
  other.state.self.handle.key[3] ^= 1;
  ASSERT_TRUE(until([&] { return other.last<Refuse>() != nullptr; }));
  EXPECT_TRUE(run().state().peers.empty());
}

TEST_F(TokensOf, what_a_member_says_of_its_token_counts_nothing) {
  start();
  comes(holding("a")).state.self.token = "b";
  comes(holding("b"));
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  EXPECT_EQ(run().state().held->epoch->members[0].token, "a");
}

TEST_F(TokensOf, a_token_that_is_taken_away_evicts_who_came_by_it_and_nobody_else) {
  options_.min_peers = 3;
  start();
  comes(holding("a"));
  comes(holding("b"));
  comes(holding("a"));
  ASSERT_TRUE(until([&] { return all_run(3); })) << log_text();
  FakePeer& gone = *peers_[1];
  remove("b");
  ASSERT_TRUE(until([&] { return !gone.evicted.empty(); })) << log_text();
  EXPECT_EQ(gone.evicted,
            "the token \"b\" by which it came has been revoked, or is in no file of this master: "
            "it needs another one");
  gone.reconnects = true;
  gone.connect();
  ASSERT_TRUE(until([&] { return has(gone.refused, "refuses the token \"b\""); }));
  ASSERT_TRUE(until([&] { return peers_[0]->runs(2) && peers_[2]->runs(2); })) << log_text();
  EXPECT_EQ(said("revoked: b"), 1U);
  EXPECT_EQ(said("evicts"), 1U);
}

TEST_F(TokensOf, a_revoked_line_opens_nothing_when_it_is_back_in_a_file_nor_at_another_master) {
  a_and_b_run();
  const Entry late = holding("b");
  std::ifstream file(master_.token_file);
  std::stringstream before;
  before << file.rdbuf();
  remove("b");
  ASSERT_TRUE(until([&] { return peers_[0]->runs(1); })) << log_text();
  std::ofstream(master_.token_file, std::ios::trunc) << before.str();
  server_->reload_tokens();
  ASSERT_TRUE(until([&] { return said("was read again") == 2; })) << log_text();
  EXPECT_EQ(said("tokens: 3, of which revoked before: b"), 1U) << log_text();
  FakePeer& back = comes(late);
  ASSERT_TRUE(until([&] { return back.last<Refuse>() != nullptr; })) << log_text();
  EXPECT_EQ(back.last<Refuse>()->error.text, "the token \"b\" has been revoked");
  peers_.clear();
  server_.reset();
  start();  // with the old file
  FakePeer& again = comes(late);
  ASSERT_TRUE(until([&] { return again.last<Refuse>() != nullptr; })) << log_text();
  EXPECT_EQ(again.last<Refuse>()->error.text, "the token \"b\" has been revoked");
  add("b2");
  server_->reload_tokens();
  ASSERT_TRUE(until([&] { return said("was read again") == 3; })) << log_text();
  FakePeer& other = comes(holding("b2"));
  ASSERT_TRUE(until([&] { return other.connected() && other.last<Refuse>() == nullptr; }));
}

TEST_F(TokensOf, a_line_with_a_new_secret_revokes_the_holders_of_the_old_one) {
  a_and_b_run();
  cut("b");
  add("b");
  server_->reload_tokens();
  ASSERT_TRUE(until([&] { return !peers_[1]->evicted.empty(); })) << log_text();
  comes(holding("b"));
  ASSERT_TRUE(until([&] { return peers_[2]->connected() && peers_[0]->connected(); }));
}

TEST_F(TokensOf, a_holder_of_the_new_secret_stays_when_the_master_takes_over_again) {
  options_.patience_ms = 500;
  start();
  FakePeer& first = comes(holding("a"));
  ASSERT_TRUE(until([&] { return first.connected(); }));
  cut("b");
  add("b");
  server_->reload_tokens();
  ASSERT_TRUE(until([&] { return said("revoked: b") == 1; })) << log_text();
  FakePeer& second = comes(holding("b"));
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  const auto obstacle = options_.state_file + ".new";
  std::filesystem::create_directory(obstacle);
  first.reconnects = false;
  first.drop();
  ASSERT_TRUE(until([&] { return said("is deposed") > 0; })) << log_text();
  std::filesystem::remove(obstacle);
  EXPECT_TRUE(until([&] { return second.connected() && second.runs(1); }, 20000)) << log_text();
  EXPECT_EQ(said("by which it came has been revoked"), 0U) << log_text();
}

TEST_F(TokensOf, who_has_shown_the_old_secret_does_not_enter_under_the_new_one_of_that_name) {
  start();
  std::unique_ptr<Channel> channel;
  std::optional<MasterToPeer> answer;
  const auto dial = dial_channel(
      loop_, "127.0.0.1:" + std::to_string(port_), 5000,
      [&](Result<std::unique_ptr<Channel>> made) {
        channel = std::move(made).value();
        channel->set_events({[&](std::span<const std::byte> payload) {
                               answer = decode_master_to_peer(payload).value();
                             },
                             [](const std::string&) {}});
      },
      holding("b"));
  ASSERT_TRUE(until([&] { return channel != nullptr; }));
  cut("b");
  add("b");
  server_->reload_tokens();
  ASSERT_TRUE(until([&] { return said("revoked: b") == 1; })) << log_text();
  channel->send(encode(PeerToMaster{StatusRequest{""}}));
  ASSERT_TRUE(until([&] { return answer.has_value(); }));
  ASSERT_TRUE(std::holds_alternative<Refuse>(*answer));
  EXPECT_EQ(std::get<Refuse>(*answer).error.text, "the token \"b\" has been revoked");
}

TEST_F(TokensOf, a_change_while_the_file_is_read_is_not_missed) {
  a_and_b_run();
  server_->reload_tokens();  // is read in the background
  remove("b");
  ASSERT_TRUE(until([&] { return !peers_[1]->evicted.empty(); })) << log_text();
}

TEST_F(TokensOf, a_file_that_became_wrong_changes_nothing) {
  a_and_b_run();
  std::ofstream(master_.token_file, std::ios::app) << "half";
  server_->reload_tokens();
  ASSERT_TRUE(until([&] { return said("the tokens of before stay") == 1; })) << log_text();
  EXPECT_EQ(said("half written"), 1U);
  expect_commit();
}

TEST_F(TokensOf, a_line_that_was_taken_away_while_no_master_ran_is_revoked_too) {
  a_and_b_run();
  const std::uint16_t port = port_;
  server_.reset();
  cut("b");
  master_.port = port;
  start();
  ASSERT_TRUE(until([&] { return peers_[0]->runs(1); })) << log_text();
  EXPECT_GE(said("the token \"b\" by which it came has been revoked"), 1U);
}

TEST_F(TokensOf, a_master_to_which_no_member_could_come_does_not_start) {
  a_and_b_run();
  const std::uint16_t port = port_;
  server_.reset();
  const auto refused = [&](const std::string& token_file) {
    MasterOptions other = master_;
    other.token_file = token_file;
    return MasterServer(network_, other, {{options_}}).start().error().text;
  };
  const std::string key = (folder_.path / "key").string();
  EXPECT_EQ(add_token(key, "a", {}).text, "");
  EXPECT_TRUE(has(refused(key), "this master has another key than the masters of before"));
  EXPECT_TRUE(has(refused(""), "took tokens, and this one takes none"));
  const std::string lines = (folder_.path / "lines").string();
  std::filesystem::copy(master_.token_file + ".key", lines + ".key");
  EXPECT_EQ(add_token(lines, "c", {}).text, "");
  EXPECT_TRUE(has(refused(lines), "they came by \"a\", \"b\"")) << refused(lines);

  // Nothing of that was written: the master of before goes on.
  master_.port = port;
  start();
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
}

TEST_F(TokensOf, refound_gives_up_members_of_another_key) {
  start();
  for (const char* name : {"a", "b"}) comes(holding(name)).reconnects = false;
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  peers_.clear();
  server_.reset();
  master_.token_file = (folder_.path / "key").string();
  add("n");
  options_.refound = true;
  start();
  for (int i = 0; i < 2; ++i) comes(holding("n"));
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
}

TEST_F(TokensOf, a_process_that_invents_an_epoch_is_refused_and_holds_up_no_founding) {
  start();
  FakePeer& liar = comes(holding("a"));
  liar.state.started = Epoch{EpochId::make(9, 1), {liar.state.self}, {}, false};
  FakePeer& other = comes(holding("a"));
  other.state.accepted = Epoch{EpochId::make(9, 1), {other.state.self}, {}, false};
  for (FakePeer* one : {&liar, &other}) {
    one->reconnects = false;
    ASSERT_TRUE(until([&] { return one->last<Refuse>() != nullptr; })) << log_text();
    EXPECT_TRUE(has(one->last<Refuse>()->error.text, "reports epoch 9.1 of run \"default\""))
        << one->last<Refuse>()->error.text;
  }
  FakePeer& first = comes(holding("a"));
  FakePeer& second = comes(holding("b"));
  ASSERT_TRUE(until([&] { return first.runs(2) && second.runs(2); })) << log_text();
}

TEST_F(TokensOf, an_epoch_that_was_only_proposed_is_none_that_has_been_started) {
  a_and_b_run();
  // As if a proposal had come and had never been started: another one took its place, say.
  const EpochId proposed = EpochId::make(1, 1000);
  peer::State& liar = peers_[1]->state;
  const Secret mark = epoch_mark(read_master_files(master_.token_file).value().key, "default",
                                 proposed, Named::proposed);
  liar.started->id = liar.accepted->id = proposed;
  std::copy(mark.bytes().begin(), mark.bytes().end(), liar.accepted_mark.begin());
  liar.started_mark = liar.accepted_mark;
  const std::uint16_t port = port_;
  server_.reset();
  master_.port = port;
  start();
  ASSERT_TRUE(until([&] { return peers_[1]->last<Refuse>() != nullptr; })) << log_text();
  EXPECT_TRUE(has(peers_[1]->last<Refuse>()->error.text, "with this key has started"));
  ASSERT_TRUE(until([&] { return peers_[0]->runs(1); })) << log_text();
  EXPECT_EQ(said("is not known to the register"), 0U) << "the run does not wait for its operator";
}

TEST_F(TokensOf, members_show_their_epoch_to_a_master_whose_register_is_lost) {
  a_and_b_run();
  peers_[1]->state.started->id = EpochId::make(9, 1);  // it has a mark, and of another epoch
  const std::uint16_t port = port_;
  server_.reset();
  std::filesystem::remove(options_.state_file);
  master_.port = port;
  start();
  ASSERT_TRUE(until([&] { return run().state().unknown.size() == 1; })) << log_text();
  EXPECT_EQ(said("is not known to the register"), 1U);
  ASSERT_TRUE(until([&] { return peers_[1]->last<Refuse>() != nullptr; })) << log_text();
  EXPECT_TRUE(has(peers_[1]->last<Refuse>()->error.text, "reports epoch 9.1"));
}

TEST_F(TokensOf, a_status_needs_a_token_that_opens_the_run) {
  start();
  const auto ask = [&](const Entry& entry) {
    std::unique_ptr<Channel> channel;
    std::optional<MasterToPeer> answer;
    Error error;
    const auto dial = dial_channel(
        loop_, "127.0.0.1:" + std::to_string(port_), 5000,
        [&](Result<std::unique_ptr<Channel>> made) {
          error = made.error();
          if (!made) return;
          channel = std::move(made).value();
          channel->set_events({[&](std::span<const std::byte> payload) {
                                 answer = decode_master_to_peer(payload).value();
                               },
                               [&](const std::string&) {}});
          channel->send(encode(PeerToMaster{StatusRequest{""}}));
        },
        entry);
    EXPECT_TRUE(until([&] { return answer || error.failed(); }));
    return answer ? *answer : MasterToPeer{Refuse{error}};
  };
  EXPECT_TRUE(std::holds_alternative<Status>(ask(holding("a"))));
  EXPECT_EQ(std::get<Refuse>(ask(holding("of_other"))).error.code, ErrorCode::refused);
  EXPECT_TRUE(has(std::get<Refuse>(ask({})).error.text, "with a token only"));
  EXPECT_TRUE(has(std::get<Refuse>(ask(holding("a", "another"))).error.text, "another run"));
}

TEST_F(TokensOf, a_wrong_file_and_contradicting_options_stop_the_start) {
  const auto error = [&] {
    MasterServer server(network_, master_, {{options_, register_}});
    return server.start().error().text;
  };
  master_.insecure = true;
  EXPECT_TRUE(has(error(), "say one of them"));
  master_.insecure = false;
  std::ofstream(master_.token_file, std::ios::trunc) << "";
  EXPECT_TRUE(has(error(), "holds no token"));
  master_.token_file += ".none";
  EXPECT_TRUE(has(error(), "--new-token NAME makes one"));
  master_.token_file.clear();
  master_.host = "0.0.0.0";
  EXPECT_TRUE(has(error(), "name a token file with --token-file"));
}

}  // namespace
}  // namespace pccl::master
