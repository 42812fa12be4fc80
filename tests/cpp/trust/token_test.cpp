// Token lines: what is read, what is refused, and that no error shows a secret; the key of a
// channel.
#include "trust/token.h"

#include <gtest/gtest.h>

#include <string>

#include "base/random.h"

namespace pccl {
namespace {

const std::string kMaster(64, 'a');
constexpr std::string_view kSecret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";  // 0 to 31
constexpr std::string_view kOther = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";   // 1 to 32

std::string line(std::string_view name, std::string_view secret = kSecret,
                 std::string_view end = "", const std::string& master = kMaster) {
  return std::string(name) + ":" + std::string(secret) + ":" + master + std::string(end) + "\n";
}

std::string error_of(const std::string& text) {
  const auto tokens = parse_tokens(text, "F");
  EXPECT_FALSE(tokens.ok());
  const std::string error = tokens.error().text;
  EXPECT_EQ(tokens.error().code, ErrorCode::invalid);
  EXPECT_EQ(error.find("F"), 0U) << error;
  EXPECT_EQ(error.find(kSecret.substr(4, 12)), std::string::npos) << error;
  return error;
}

TEST(Token, lines_are_read_in_their_order_and_comments_skipped) {
  const auto tokens = parse_tokens("# of the master in Bonn\n\n" + line("a", kSecret, "@x,y.z") +
                                       "# more\n" + line("b-_.9", kOther),
                                   "F");
  ASSERT_TRUE(tokens.ok()) << tokens.error().text;
  ASSERT_EQ(tokens.value().all().size(), 2U);
  const Token& a = tokens.value().all()[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.runs, (std::vector<std::string>{"x", "y.z"}));
  EXPECT_EQ(a.secret.bytes()[31], 31);
  EXPECT_TRUE(a.opens("x") && a.opens("y.z") && !a.opens("z") && !a.opens(""));
  EXPECT_EQ(format_token(a) + "\n", line("a", kSecret, "@x,y.z"));
  const Token* b = tokens.value().find("b-_.9");
  ASSERT_NE(b, nullptr);
  EXPECT_TRUE(b->opens("anything"));
  EXPECT_EQ(tokens.value().find("b"), nullptr);
}

TEST(Token, a_file_without_a_token_or_without_its_end_is_refused) {
  EXPECT_EQ(error_of(""), "F holds no token; expected name:secret:master[@RUN,...]");
  EXPECT_NE(error_of("\n# none\n").find("holds no token"), std::string::npos);
  std::string half = line("a");
  half.pop_back();
  EXPECT_EQ(error_of(half),
            "F, line 1: the line does not end: the file was half written, or a copy has lost its "
            "last newline");
  EXPECT_NE(error_of(line("a") + "b:AAECAwQF").find("F, line 2: the line does not end"),
            std::string::npos);
  EXPECT_NE(error_of(std::string(kTokenFileBytesMax + 1, '\n')).find("is larger than"),
            std::string::npos);
}

TEST(Token, two_tokens_of_one_name_or_of_one_secret_are_refused) {
  EXPECT_EQ(error_of(line("a") + line("a", kOther)),
            "F, line 2: a second token with the name \"a\"");
  EXPECT_NE(error_of(line("a") + line("b")).find("have one secret"), std::string::npos);
}

TEST(Token, tokens_of_two_masters_may_have_one_name) {
  const std::string there(64, 'b');
  const auto tokens = parse_tokens(line("default") + line("default", kOther, "", there), "F");
  ASSERT_TRUE(tokens.ok()) << tokens.error().text;
  EXPECT_EQ(tokens.value().choose(kMaster, "").value()->master, kMaster);
  EXPECT_EQ(tokens.value().choose(there, "").value()->master, there);
}

TEST(Token, each_field_is_checked) {
  const std::string secret(kSecret);
  for (const std::string& wrong : {
           "a:" + secret + "\n",                       // two fields
           "a:" + secret + ":" + kMaster + ":more\n",  // four
           line(""),
           line("a b"),
           line("a/b"),
           line("ä"),
           line(std::string(65, 'n')),
           line("a", secret.substr(0, 40)),         // short
           line("a", secret + secret),              // long
           line("a", secret.substr(0, 43) + "A"),   // 33 bytes
           line("a", secret.substr(0, 42) + "=="),  // 31 bytes
           line("a", secret.substr(0, 42) + "9="),  // bits that mean nothing
           line("a", "-" + secret.substr(1)),       // of another base64
           line("a", " " + secret.substr(1)),
           line("a", std::string(43, 'A') + "="),                      // all zero
           line("a", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="),  // all one
           "a:" + secret + ":" + std::string(63, 'a') + "\n",
           "a:" + secret + ":" + std::string(64, 'A') + "\n",
           "a:" + secret + ":" + std::string(64, 'g') + "\n",
           line("a", kSecret, "@"),
           line("a", kSecret, "@x,"),
           line("a", kSecret, "@x y"),
           line("a", kSecret, "\r"),
           line("a", kSecret, " "),
       }) {
    EXPECT_EQ(error_of(wrong).find("F, line 1: "), 0U) << error_of(wrong);
  }
}

TEST(Token, a_mutated_file_is_refused_with_a_text_or_read_and_written_again) {
  const std::string good = "# c\n" + line("a", kSecret, "@x") + line("b", kOther);
  Random random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (std::uint64_t n = random.below(4) + 1; n > 0; --n) {
      const std::size_t at = random.below(text.size());
      switch (random.below(3)) {
        case 0:
          text[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          text.erase(at, random.below(40) + 1);
          if (text.empty()) text = ":";
          break;
        default:
          text.insert(at, text.substr(random.below(text.size()), random.below(60)));
      }
    }
    const auto tokens = parse_tokens(text, "F");
    if (!tokens) {
      EXPECT_EQ(tokens.error().text.find("F"), 0U);
      EXPECT_LT(tokens.error().text.size(), 300U);
      continue;
    }
    std::string again;
    for (const Token& token : tokens.value().all()) again += format_token(token) + "\n";
    EXPECT_TRUE(parse_tokens(again, "F").ok());
  }
}

TEST(Token, a_worker_takes_the_first_token_of_that_master_and_run) {
  const std::string there(64, 'b');
  const auto tokens = parse_tokens(line("a", kSecret, "@x") + line("b", kOther), "F").value();
  EXPECT_EQ(tokens.choose(kMaster, "x").value()->name, "a");
  EXPECT_EQ(tokens.choose(kMaster, "y").value()->name, "b");
  EXPECT_EQ(tokens.choose(kMaster, "").value()->name, "a");
  EXPECT_NE(
      tokens.choose(there, "x").error().text.find("this master is not the master of any token"),
      std::string::npos);
  const auto one = parse_tokens(line("a", kSecret, "@x"), "F").value();
  EXPECT_EQ(one.choose(kMaster, "y").error().text,
            "no token in F opens the run \"y\": \"a\" opens the run x");
}

TEST(Token, an_identity_is_read_as_it_was_written_and_fits_into_tls) {
  const KeyPair pair = KeyPair::make();
  for (const std::string& run :
       {std::string(), std::string("a"), std::string("a b"), std::string(128, 'r')}) {
    const ChannelIdentity identity{std::string(64, 't'), pair.public_key(), run};
    const std::string text = format_identity(identity);
    EXPECT_LE(text.size(), 255U);
    EXPECT_EQ(parse_identity(text), identity);
  }
  const std::string text = format_identity({"t", pair.public_key(), "r"});
  for (std::size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_FALSE(parse_identity(text.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(parse_identity(text + std::string(128, 'r')).has_value());
  EXPECT_FALSE(parse_identity("pccl2" + text.substr(5)).has_value());
}

TEST(Token, the_key_of_a_channel_needs_the_token_and_one_of_the_two_private_keys) {
  const Token token = parse_token_line(line("t"), "V").value().all().front();
  const Token other = parse_token_line(line("t", kOther), "V").value().all().front();
  const KeyPair worker = KeyPair::make();
  const KeyPair master = KeyPair::make();
  const KeyPair stranger = KeyPair::make();
  const ChannelIdentity identity{"t", worker.public_key(), "r"};
  const auto key = [&](const Token& with, const KeyPair& own, const PublicKey& to,
                       const ChannelIdentity& as) {
    return channel_key(with, own, to, as, master.public_key()).value();
  };
  const Secret here = key(token, worker, master.public_key(), identity);
  EXPECT_TRUE(here.same_as(key(token, master, worker.public_key(), identity)));
  EXPECT_FALSE(here.same_as(key(other, worker, master.public_key(), identity)));
  EXPECT_FALSE(here.same_as(key(token, stranger, master.public_key(), identity)));
  EXPECT_FALSE(here.same_as(key(token, stranger, worker.public_key(), identity)));
  EXPECT_FALSE(
      here.same_as(key(token, worker, master.public_key(), {"t", worker.public_key(), "q"})));
  EXPECT_FALSE(
      here.same_as(key(token, worker, master.public_key(), {"tr", worker.public_key(), ""})));
  EXPECT_FALSE(
      channel_key(token, master, PublicKey{}, {"t", PublicKey{}, "r"}, master.public_key()));
}

TEST(Token, the_mark_of_a_revoked_token_is_of_its_secret_and_of_one_master) {
  const Secret master = KeyPair::make().secret();
  const Token token{"bonn", random_secret(), std::string(64, 'a'), {}};
  const Secret mark = token_mark(master, token);
  EXPECT_TRUE(mark.same_as(token_mark(master, token)));
  EXPECT_FALSE(mark.same_as(token_mark(KeyPair::make().secret(), token))) << "of another master";
  EXPECT_FALSE(mark.same_as(token_mark(master, {"bonn", random_secret(), token.master, {}})));
  EXPECT_FALSE(mark.same_as(token.secret)) << "the register shows it";
  EXPECT_FALSE(mark.same_as(master));
}

TEST(Token, the_mark_of_an_epoch_is_of_one_master_one_run_and_one_epoch) {
  const Secret master = KeyPair::make().secret();
  const EpochId epoch = EpochId::make(1, 2);
  const Secret mark = epoch_mark(master, "a", epoch, Named::started);
  EXPECT_TRUE(mark.same_as(epoch_mark(master, "a", epoch, Named::started)));
  EXPECT_FALSE(mark.same_as(epoch_mark(master, "a", epoch, Named::proposed)));
  EXPECT_FALSE(mark.same_as(epoch_mark(master, "a", EpochId::make(2, 2), Named::started)));
  EXPECT_FALSE(mark.same_as(epoch_mark(master, "b", epoch, Named::started)));
  EXPECT_FALSE(mark.same_as(epoch_mark(KeyPair::make().secret(), "a", epoch, Named::started)));
  EXPECT_FALSE(epoch_mark(master, "1", EpochId{1}, Named::started)
                   .same_as(epoch_mark(master, "", EpochId{11}, Named::started)));
}

TEST(Token, the_mark_of_a_register_is_of_one_master_and_one_run) {
  const Secret master = KeyPair::make().secret();
  const Secret mark = key_mark(master, "a");
  EXPECT_TRUE(mark.same_as(key_mark(master, "a")));
  EXPECT_FALSE(mark.same_as(key_mark(master, "b")));
  EXPECT_FALSE(mark.same_as(key_mark(KeyPair::make().secret(), "a")));
  EXPECT_FALSE(mark.same_as(master)) << "the register shows it";
}

}  // namespace
}  // namespace pccl
