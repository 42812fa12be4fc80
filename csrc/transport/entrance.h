// The entrance of a channel, between the openings and the first frame. The master says whether it
// takes tokens, and which public key it has; if it does, both sides go on in TLS with a key of
// token, run and X25519 (trust/token.h). So a master reads no message of a process that holds no
// token of its own, and a process sends none to a master that is not that of its token.
//
// The offer of the master, right behind its opening: 40 bytes.
//    0  u8    mode: 0 plain, this master takes no tokens; 1 a token is asked for
//    1  7 x   zero
//    8  32 x  the master's public key; zero in mode 0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "transport/clock.h"
#include "transport/talk.h"
#include "trust/secrets.h"
#include "trust/token.h"

namespace pccl {

/// The master's side. Its owner may change `tokens` at any time, on the loop's thread.
struct Entrance {
  KeyPair key;
  Tokens tokens;
};

/// The dialling side: the key pair of the process, the tokens that it holds (null: none), and the
/// run that it means.
struct Entry {
  std::optional<KeyPair> identity = std::nullopt;  // none: one is made
  std::shared_ptr<const Tokens> tokens = nullptr;
  std::string run = "";
};

/// Who has dialled a channel, proven by its TLS handshake. Without a token: nothing is proven.
struct Caller {
  std::string token;  // its name
  PublicKey key{};
  std::string run;  // the one for which it has come; may be empty
  Secret secret;    // of the token: its name may have another one by now
};

inline constexpr std::size_t kMasterOfferBytes = 40;
struct MasterOffer {
  bool asks_token = false;
  PublicKey key{};
  bool operator==(const MasterOffer&) const = default;
};
[[nodiscard]] std::array<std::byte, kMasterOfferBytes> encode_master_offer(
    const MasterOffer& offer);
[[nodiscard]] Result<MasterOffer> decode_master_offer(std::span<const std::byte> bytes);

/// Sends the offer; `admitted` is called when nothing more is to be proven: at once without an
/// entrance. If the other side does not prove that it holds a token, the talk fails.
void admit(Clock& clock, const std::shared_ptr<Talk>& talk,
           const std::shared_ptr<const Entrance>& entrance, std::function<void(Caller)> admitted);

/// Reads the offer; `entered` is called when the channel may be used, or with the reason why this
/// process does not go on, before it has sent anything. If the master does not prove that it holds
/// the token, or refuses this one, the talk fails and is `not_proven`.
void enter(Clock& clock, const std::shared_ptr<Talk>& talk, const Entry& entry,
           std::function<void(const Error&)> entered);

}  // namespace pccl
