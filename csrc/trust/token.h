// A token opens the door of a run: a line `name:secret:master[@RUN[,RUN...]]`. The secret is 32
// random bytes in base64, `master` the SHA-256 of the public key of the master that has made the
// token, in hexadecimal. A token proves nothing about who its holder is. Pure: text in, tokens out;
// the files are in token_file.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "trust/secrets.h"

namespace pccl {

inline constexpr std::size_t kTokensMax = 1024;   // in one file
inline constexpr std::size_t kTokenRunsMax = 64;  // of one token
inline constexpr std::size_t kTokenFileBytesMax = 1U << 20;
inline constexpr std::string_view kChannelLabel = "pccl1 channel";

struct Token {
  std::string name;
  Secret secret;
  std::string master;             // 64 hexadecimal digits: key_hash of that master's public key
  std::vector<std::string> runs;  // empty: all runs of that master

  [[nodiscard]] bool opens(std::string_view run) const;
  /// "the run a", "the runs a, b", "all runs of its master"
  [[nodiscard]] std::string opens_text() const;
};

/// In the order of their file. Never printed.
class Tokens {
 public:
  Tokens() = default;
  Tokens(std::vector<Token> tokens, std::string where);

  [[nodiscard]] const std::vector<Token>& all() const { return tokens_; }
  /// The one with this name in the file of a master.
  [[nodiscard]] const Token* find(std::string_view name) const;
  /// The first that is of the master with this hash and opens the run; a run without a name is the
  /// only one of its master. An error says which of the two no token fits.
  [[nodiscard]] Result<const Token*> choose(std::string_view master, std::string_view run) const;
  /// Where they come from, for errors: a path, or the name of a variable.
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  std::vector<Token> tokens_;
  std::string where_;
};

/// Reads the content of a token file. Blank lines, and lines that begin with '#', are skipped.
/// Errors are `invalid`, name `where` and the line, and show no byte of it.
[[nodiscard]] Result<Tokens> parse_tokens(std::string_view text, const std::string& where);
/// The same for one line, which need not end.
[[nodiscard]] Result<Tokens> parse_token_line(std::string_view text, const std::string& where);
/// The line, without its end. It holds the secret.
[[nodiscard]] std::string format_token(const Token& token);

/// By which a register names a token that was revoked: HKDF of the secrets of master and token.
[[nodiscard]] Secret token_mark(const Secret& master, const Token& token);

/// Shows the masters of a run that one of them has proposed, or started, this epoch: HKDF of the
/// master's secret. Only a started epoch is in the register.
enum class Named : std::uint8_t { proposed, started };
[[nodiscard]] Secret epoch_mark(const Secret& master, std::string_view run, EpochId epoch,
                                Named how);

/// Shows the masters of a run that one of them has written its register: HKDF of the master's
/// secret.
[[nodiscard]] Secret key_mark(const Secret& master, std::string_view run);

/// Letters, digits, '-', '_' and '.', 1 to `bytes_max` of them.
[[nodiscard]] bool is_plain_name(std::string_view text, std::size_t bytes_max);

/// SHA-256 of a public key, 64 hexadecimal digits.
[[nodiscard]] std::string key_hash(const PublicKey& key);

[[nodiscard]] std::string to_base64(std::span<const std::uint8_t, 32> bytes);
/// 32 bytes, written as to_base64 writes them; nothing: anything else.
[[nodiscard]] std::optional<Secret> from_base64(std::string_view text);

// ------------------------------------------------------------------------- the key of a channel

/// What the dialler of a channel says of itself in the clear, in the name of its TLS key.
struct ChannelIdentity {
  std::string token;  // its name
  PublicKey key{};    // of the dialler
  std::string run;    // may be empty: the only run of that master
  bool operator==(const ChannelIdentity&) const = default;
};
/// `pccl1 TOKEN KEY RUN`, the key in base64: 244 bytes at most, and TLS takes 255.
[[nodiscard]] std::string format_identity(const ChannelIdentity& identity);
[[nodiscard]] std::optional<ChannelIdentity> parse_identity(std::string_view text);

/// The TLS key of a channel: nobody computes it without the token, or without one of the two
/// private keys. Nothing if the other side's key is a point of small order. `own` is one of the two
/// ends.
[[nodiscard]] std::optional<Secret> channel_key(const Token& token, const KeyPair& own,
                                                const PublicKey& other,
                                                const ChannelIdentity& identity,
                                                const PublicKey& master);

}  // namespace pccl
