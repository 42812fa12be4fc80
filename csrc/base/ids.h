// Strong types for the numbers that name things: peers, epochs, groups, operations.
//
// Each is a value: comparable, ordered, printable, never implicitly converted. Ranks stay plain
// `std::int32_t`, because torch's are, and because they are positions and not names.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace pccl {

/// The public half of the X25519 key pair that a process makes when it starts. Not a secret.
using PublicKey = std::array<std::uint8_t, 32>;

/// One process, for the whole of its life: the first 8 bytes of the SHA-256 of its public key, so
/// that no process can prove to be another one.
struct PeerId {
  std::uint64_t value = 0;
  auto operator<=>(const PeerId&) const = default;
};

/// A number of an epoch: the incarnation of the master in the high half, a counter in the low one.
/// Never used twice in a run; 0 is "none" and older than all.
struct EpochId {
  std::uint64_t value = 0;
  auto operator<=>(const EpochId&) const = default;

  static constexpr EpochId make(std::uint32_t incarnation, std::uint32_t counter) {
    return EpochId{(static_cast<std::uint64_t>(incarnation) << 32) | counter};
  }
  [[nodiscard]] constexpr std::uint32_t incarnation() const {
    return static_cast<std::uint32_t>(value >> 32);
  }
  [[nodiscard]] constexpr std::uint32_t counter() const {
    return static_cast<std::uint32_t>(value);
  }
};

/// One process group, the same number at all its members; in every frame header.
struct GroupId {
  std::uint64_t value = 0;
  auto operator<=>(const GroupId&) const = default;
};

/// A collective operation of a group: the `index`-th that a member issued in `step`. Fixed groups
/// have one step, 0. The key does not name the peer group: peer groups exchange no data, so the
/// same key may name an operation in each of them.
struct OpKey {
  std::uint64_t step = 0;
  std::uint64_t index = 0;
  auto operator<=>(const OpKey&) const = default;
};
/// A key that no operation has.
inline constexpr OpKey kNoOp{~0ULL, ~0ULL};

inline std::string to_string(PeerId p) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[i] = kHex[(p.value >> (60 - 4 * i)) & 15];
  return text;
}
inline std::string to_string(EpochId e) {
  return std::to_string(e.incarnation()) + "." + std::to_string(e.counter());
}
inline std::string to_string(OpKey k) {
  return std::to_string(k.step) + "." + std::to_string(k.index);
}

}  // namespace pccl

template <>
struct std::hash<pccl::PeerId> {
  std::size_t operator()(pccl::PeerId p) const noexcept {
    return std::hash<std::uint64_t>{}(p.value);
  }
};
template <>
struct std::hash<pccl::GroupId> {
  std::size_t operator()(pccl::GroupId g) const noexcept {
    return std::hash<std::uint64_t>{}(g.value);
  }
};
