#include "transport/entrance.h"

#include <algorithm>
#include <utility>

#include "transport/bytes.h"
#include "transport/tls_stream.h"

namespace pccl {
namespace {

Error refused(std::string text) { return {ErrorCode::refused, std::move(text)}; }

const char* const kNoToken =
    "this master takes processes with a token only, and this one has none: set PCCL_TOKEN_FILE to "
    "a "
    "file with a token of this master (made there by pccl-master --token-file FILE --new-token "
    "NAME)";

Error no_downgrade(const Tokens& tokens) {
  return refused("this master takes no tokens, and this process has those of " + tokens.where() +
                 ": it does not go on without protection. Start the master with --token-file, or "
                 "this process without a token");
}

}  // namespace

std::array<std::byte, kMasterOfferBytes> encode_master_offer(const MasterOffer& offer) {
  std::array<std::byte, kMasterOfferBytes> out{};
  BytesOut(out)
      .number(static_cast<std::uint8_t>(offer.asks_token ? 1 : 0))
      .array(std::array<std::uint8_t, 7>{})
      .array(offer.key);
  return out;
}

Result<MasterOffer> decode_master_offer(std::span<const std::byte> bytes) {
  BytesIn from(bytes);
  const auto mode = from.number<std::uint8_t>();
  const auto zero = from.array<7>();
  const MasterOffer offer{mode == 1, from.array<32>()};
  const bool no_key = offer.key == PublicKey{};
  if (mode > 1 || zero != std::array<std::uint8_t, 7>{} || no_key != (mode == 0)) {
    return {ErrorCode::malformed, "a master's offer with fields that name nothing"};
  }
  return offer;
}

void admit(Clock& clock, const std::shared_ptr<Talk>& talk,
           const std::shared_ptr<const Entrance>& entrance, std::function<void(Caller)> admitted) {
  if (!entrance) {
    talk->send(encode_master_offer({}));
    return admitted({});
  }
  talk->send(encode_master_offer({true, entrance->key.public_key()}));
  const auto caller = std::make_shared<Caller>();
  const auto find = [entrance, caller](std::string_view text) -> std::optional<Secret> {
    const auto identity = parse_identity(text);
    if (!identity) return std::nullopt;
    const Token* token = entrance->tokens.find(identity->token);
    if (token == nullptr) return std::nullopt;
    *caller = {identity->token, identity->key, identity->run, token->secret};
    return channel_key(*token, entrance->key, identity->key, *identity, entrance->key.public_key());
  };
  talk->protect(
      [&clock, find](std::unique_ptr<Stream> stream) {
        return TlsStream::accept(clock, std::move(stream), find);
      },
      "it has not proven that it holds a token of this master",
      [caller, admitted = std::move(admitted)] { admitted(std::move(*caller)); });
}

void enter(Clock& clock, const std::shared_ptr<Talk>& talk, const Entry& entry,
           std::function<void(const Error&)> entered) {
  const auto answered = [&clock, weak = std::weak_ptr(talk), entry,
                         entered = std::move(entered)](std::span<const std::byte> bytes) {
    const auto open = weak.lock();
    if (!open) return;
    const auto offer = decode_master_offer(bytes);
    if (!offer) return entered(offer.error());
    if (!offer.value().asks_token) {
      return entered(entry.tokens ? no_downgrade(*entry.tokens) : Error{});
    }
    if (!entry.tokens) return entered(refused(kNoToken));
    const PublicKey master = offer.value().key;
    const auto chosen = entry.tokens->choose(key_hash(master), entry.run);
    if (!chosen) return entered(chosen.error());
    const Token& token = *chosen.value();
    const KeyPair own = entry.identity ? *entry.identity : KeyPair::make();
    const ChannelIdentity identity{token.name, own.public_key(), entry.run};
    const auto key = channel_key(token, own, master, identity, master);
    if (!key) return entered(refused("this master's public key is none"));
    open->protect(
        [&](std::unique_ptr<Stream> stream) {
          return TlsStream::dial(clock, std::move(stream), format_identity(identity), *key);
        },
        "this master refuses the token \"" + token.name + "\" of " + entry.tokens->where() +
            ": it has no such token, or no more, or one of this name with another secret, or it "
            "only "
            "says that it is that master",
        [entered] { entered({}); });
  };
  talk->expect(kMasterOfferBytes, answered);
}

}  // namespace pccl
