// The keys of a relayed link, which its two ends make without the help of the peer in between: of
// the key pairs of both processes, and of a fresh pair of each end, which nobody keeps. The peer in
// between passes on the public halves, and knows none of the secrets.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "trust/sealer.h"
#include "trust/secrets.h"

namespace pccl {

/// One end of a relayed link: who it is, and what it has said when it opened the link.
struct RouteEnd {
  PeerId peer;
  PublicKey key{};    // of its process
  PublicKey fresh{};  // of this link
  std::uint64_t session = 0;
  bool aes = false;  // has_aes() of its process
};

/// What one end knows. The other end has the same, with `out` and `in`, `own` and `their` swapped.
struct RouteKeys {
  Cipher cipher = Cipher::aes_128_gcm;  // if both processes encrypt AES by themselves
  Secret own_proof;                     // shows that this end has these keys
  Secret their_proof;
  Secret ordered_out, ordered_in;  // what arrives in the order in which it was sent
  Secret loose_out, loose_in;      // what has no order
};

/// All that the two ends have said, and over which peer, goes into the keys: if somebody changes a
/// byte of it on the way, the two ends have other keys. Nothing if what `other` has said is this
/// end's own, or a key with which everybody could compute the secrets.
[[nodiscard]] std::optional<RouteKeys> route_keys(const KeyPair& identity, const KeyPair& fresh,
                                                  const RouteEnd& own, const RouteEnd& other,
                                                  PeerId via);

}  // namespace pccl
