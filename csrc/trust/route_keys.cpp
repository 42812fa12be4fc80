#include "trust/route_keys.h"

#include <string_view>
#include <vector>

namespace pccl {
namespace {

constexpr std::string_view kRouteLabel = "pccl1 relay";
constexpr std::string_view kProofLabel = "pccl1 relay proof";
constexpr std::string_view kOrderedLabel = "pccl1 relay ordered";
constexpr std::string_view kLooseLabel = "pccl1 relay loose";

using Said = std::vector<std::byte>;

void add(Said& said, std::uint64_t number) {
  for (int i = 0; i < 8; ++i) said.push_back(static_cast<std::byte>(number >> (8 * i) & 0xFF));
}

void add(Said& said, const RouteEnd& end) {
  add(said, end.peer.value);
  for (const std::uint8_t byte : end.key) said.push_back(static_cast<std::byte>(byte));
  for (const std::uint8_t byte : end.fresh) said.push_back(static_cast<std::byte>(byte));
  add(said, end.session);
  add(said, end.aes ? 1 : 0);
}

}  // namespace

std::optional<RouteKeys> route_keys(const KeyPair& identity, const KeyPair& fresh,
                                    const RouteEnd& own, const RouteEnd& other, PeerId via) {
  if (other.peer == own.peer || other.key == own.key || other.fresh == own.fresh) {
    return std::nullopt;
  }
  const bool first = own.peer < other.peer;
  const auto both = identity.shared_with(other.key);
  const auto both_fresh = fresh.shared_with(other.fresh);
  const auto own_fresh = fresh.shared_with(other.key);  // with the other end's process
  const auto their_fresh = identity.shared_with(other.fresh);
  if (!both || !both_fresh || !own_fresh || !their_fresh) return std::nullopt;
  Said said;
  add(said, first ? own : other);
  add(said, first ? other : own);
  add(said, via.value);
  // Each secret that the ends share is added to those before: who lacks one of them knows nothing.
  Secret root = derive(*both_fresh, *both, kRouteLabel, said);
  root = derive(first ? *own_fresh : *their_fresh, root, kRouteLabel, said);
  root = derive(first ? *their_fresh : *own_fresh, root, kRouteLabel, said);
  const auto of = [&](std::string_view label, const RouteEnd& sender) {
    Said of_sender = said;
    add(of_sender, sender.peer.value);
    return derive(root, label, of_sender);
  };
  return RouteKeys{own.aes && other.aes ? Cipher::aes_128_gcm : Cipher::chacha20_poly1305,
                   of(kProofLabel, own),
                   of(kProofLabel, other),
                   of(kOrderedLabel, own),
                   of(kOrderedLabel, other),
                   of(kLooseLabel, own),
                   of(kLooseLabel, other)};
}

}  // namespace pccl
