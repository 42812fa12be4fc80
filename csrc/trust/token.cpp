#include "trust/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "base/text.h"

namespace pccl {
namespace {

constexpr std::string_view kIdentityStart = "pccl1 ";
constexpr std::size_t kSecretDigits = 44;  // 32 bytes in base64
constexpr std::size_t kHashDigits = 64;
// 32 random bytes have fewer different values less than once in 10^18 times.
constexpr std::size_t kDistinctBytesMin = 8;
constexpr std::string_view kExpected = "expected name:secret:master[@RUN,...]";

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool is_weak(const Secret& secret) {
  std::bitset<256> seen;
  for (const std::uint8_t byte : secret.bytes()) seen.set(byte);
  return seen.count() < kDistinctBytesMin;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// A text says what is wrong, and no byte of the line: a secret may stand anywhere in it.
Result<Token> parse_line(std::string_view line) {
  const auto wrong = [](std::string text) { return Error{ErrorCode::invalid, std::move(text)}; };
  const auto fields = split(line, ':');
  if (fields.size() != 3) {
    return wrong(std::to_string(fields.size()) + " fields; " + std::string(kExpected));
  }
  Token token;
  if (!is_plain_name(fields[0], kTokenNameBytesMax)) {
    return wrong("its name is not 1 to " + std::to_string(kTokenNameBytesMax) +
                 " letters, digits, '-', '_' and '.'; " + std::string(kExpected));
  }
  token.name = fields[0];
  const auto secret = from_base64(fields[1]);
  if (!secret) {
    return wrong("its secret is not 32 bytes in base64 (" + std::to_string(fields[1].size()) +
                 " characters, and not " + std::to_string(kSecretDigits) +
                 " of the right kind); tokens are made by pccl-master --new-token");
  }
  if (is_weak(*secret)) {
    return wrong("its secret is no random one; tokens are made by pccl-master --new-token");
  }
  token.secret = *secret;
  const std::size_t at = fields[2].find('@');
  token.master = fields[2].substr(0, at);
  if (token.master.size() != kHashDigits || !is_hex(token.master)) {
    return wrong("its master is not the " + std::to_string(kHashDigits) +
                 " hexadecimal digits of a key's hash; " + std::string(kExpected));
  }
  if (at == std::string_view::npos) return token;
  for (const std::string_view run : split(fields[2].substr(at + 1), ',')) {
    if (!is_plain_name(run, kRunNameBytesMax) || token.runs.size() >= kTokenRunsMax) {
      return wrong("after '@' it takes 1 to " + std::to_string(kTokenRunsMax) +
                   " names of runs, with commas between them");
    }
    token.runs.emplace_back(run);
  }
  return token;
}

Error at_line(const std::string& where, std::size_t number, const std::string& text) {
  return {ErrorCode::invalid, where + ", line " + std::to_string(number) + ": " + text};
}

/// The length of each part goes before it, so no two lists of parts give the same bytes.
void append(std::vector<std::byte>& to, std::string_view part) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    to.push_back(static_cast<std::byte>(part.size() >> shift & 0xFF));
  }
  const auto bytes = std::as_bytes(std::span(part));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::string_view text_of(const PublicKey& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

}  // namespace

bool is_plain_name(std::string_view text, std::size_t bytes_max) {
  return !text.empty() && text.size() <= bytes_max &&
         std::all_of(text.begin(), text.end(), is_plain);
}

bool Token::opens(std::string_view run) const {
  return runs.empty() || std::find(runs.begin(), runs.end(), run) != runs.end();
}

std::string Token::opens_text() const {
  if (runs.empty()) return "all runs of its master";
  std::string text;
  for (const std::string& run : runs) add_to_list(text, run);
  return (runs.size() == 1 ? "the run " : "the runs ") + text;
}

Tokens::Tokens(std::vector<Token> tokens, std::string where)
    : tokens_(std::move(tokens)), where_(std::move(where)) {}

const Token* Tokens::find(std::string_view name) const {
  const auto at = std::find_if(tokens_.begin(), tokens_.end(),
                               [&](const Token& token) { return token.name == name; });
  return at == tokens_.end() ? nullptr : &*at;
}

Result<const Token*> Tokens::choose(std::string_view master, std::string_view run) const {
  std::string opened;
  for (const Token& token : tokens_) {
    if (token.master != master) continue;
    if (run.empty() || token.opens(run)) return &token;
    add_to_list(opened, "\"" + token.name + "\" opens " + token.opens_text(), "; ");
  }
  if (opened.empty()) {
    return Error{ErrorCode::refused,
                 "this master is not the master of any token in " + where_ +
                     " (its key is another): it is not the one that was meant, or its key file was "
                     "lost; nothing was sent to it"};
  }
  return Error{ErrorCode::refused,
               "no token in " + where_ + " opens the run \"" + printable(run) + "\": " + opened};
}

Result<Tokens> parse_tokens(std::string_view text, const std::string& where) {
  const auto invalid = [&](const std::string& what) {
    return Error{ErrorCode::invalid, where + " " + what};
  };
  if (text.size() > kTokenFileBytesMax) {
    return invalid("is larger than " + std::to_string(kTokenFileBytesMax) + " bytes");
  }
  std::vector<Token> tokens;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      return at_line(
          where, number,
          "the line does not end: the file was half written, or a copy has lost its last newline");
    }
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line.empty() || line.starts_with('#')) continue;
    auto token = parse_line(line);
    if (!token) return at_line(where, number, token.error().text);
    for (const Token& other : tokens) {
      if (other.name == token.value().name && other.master == token.value().master) {
        return at_line(where, number, "a second token with the name \"" + other.name + "\"");
      }
      if (other.secret.same_as(token.value().secret)) {
        return at_line(where, number,
                       "the tokens \"" + other.name + "\" and \"" + token.value().name +
                           "\" have one secret: taking one line away would revoke nobody");
      }
    }
    if (tokens.size() >= kTokensMax) {
      return at_line(where, number, "more than " + std::to_string(kTokensMax) + " tokens");
    }
    tokens.push_back(std::move(token).value());
  }
  if (tokens.empty()) return invalid("holds no token; " + std::string(kExpected));
  return Tokens(std::move(tokens), where);
}

Result<Tokens> parse_token_line(std::string_view text, const std::string& where) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  auto token = parse_line(text);
  if (!token) return Error{ErrorCode::invalid, where + ": " + token.error().text};
  return Tokens({std::move(token).value()}, where);
}

std::string format_token(const Token& token) {
  std::string line = token.name + ":" + to_base64(token.secret.bytes()) + ":" + token.master;
  for (std::size_t i = 0; i < token.runs.size(); ++i) line += (i == 0 ? "@" : ",") + token.runs[i];
  return line;
}

Secret token_mark(const Secret& master, const Token& token) {
  return derive(master, token.secret, "pccl1 revoked", std::as_bytes(std::span(token.name)));
}

Secret epoch_mark(const Secret& master, std::string_view run, EpochId epoch, Named how) {
  std::string about = std::to_string(epoch.value) + " ";
  about += run;
  return derive(master, how == Named::started ? "pccl1 started" : "pccl1 epoch",
                std::as_bytes(std::span(about)));
}

Secret key_mark(const Secret& master, std::string_view run) {
  return derive(master, "pccl1 register", std::as_bytes(std::span(run)));
}

std::string key_hash(const PublicKey& key) {
  std::array<std::uint8_t, 32> digest{};
  const bool made =
      EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1;
  PCCL_ASSERT(made);
  return hex_text(std::as_bytes(std::span(digest)));
}

std::string to_base64(std::span<const std::uint8_t, 32> bytes) {
  std::string text(kSecretDigits + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(),
                                     static_cast<int>(bytes.size()));
  PCCL_ASSERT(length == static_cast<int>(kSecretDigits), length);
  text.resize(kSecretDigits);
  return text;
}

std::optional<Secret> from_base64(std::string_view text) {
  if (text.size() != kSecretDigits || text[kSecretDigits - 1] != '=' ||
      text[kSecretDigits - 2] == '=') {
    return std::nullopt;
  }
  std::array<std::uint8_t, 33> bytes{};
  const int length =
      EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(text.data()),
                      static_cast<int>(text.size()));
  const Secret secret(std::span<const std::uint8_t, 32>(bytes.data(), 32));
  OPENSSL_cleanse(bytes.data(), bytes.size());
  // Of the several texts that OpenSSL takes for the same bytes one is right.
  if (length != static_cast<int>(bytes.size()) || to_base64(secret.bytes()) != text) {
    return std::nullopt;
  }
  return secret;
}

std::string format_identity(const ChannelIdentity& identity) {
  return std::string(kIdentityStart) + identity.token + " " + to_base64(identity.key) + " " +
         identity.run;
}

std::optional<ChannelIdentity> parse_identity(std::string_view text) {
  if (!text.starts_with(kIdentityStart)) return std::nullopt;
  text.remove_prefix(kIdentityStart.size());
  const std::size_t name = text.find(' ');
  if (name == std::string_view::npos) return std::nullopt;
  ChannelIdentity identity;
  identity.token = text.substr(0, name);
  text.remove_prefix(name + 1);
  if (!is_plain_name(identity.token, kTokenNameBytesMax)) return std::nullopt;
  if (text.size() <= kSecretDigits || text[kSecretDigits] != ' ') return std::nullopt;
  const auto key = from_base64(text.substr(0, kSecretDigits));
  if (!key) return std::nullopt;
  identity.key = key->disclosed();
  identity.run = text.substr(kSecretDigits + 1);
  if (identity.run.size() > kRunNameBytesMax) return std::nullopt;
  return identity;
}

std::optional<Secret> channel_key(const Token& token, const KeyPair& own, const PublicKey& other,
                                  const ChannelIdentity& identity, const PublicKey& master) {
  const auto shared = own.shared_with(other);
  if (!shared) return std::nullopt;
  std::vector<std::byte> context;
  for (const std::string_view part :
       {std::string_view(identity.run), std::string_view(identity.token), text_of(identity.key),
        text_of(master)}) {
    append(context, part);
  }
  return derive(*shared, token.secret, kChannelLabel, context);
}

}  // namespace pccl
