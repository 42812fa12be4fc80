// Keys: X25519 key pairs, secrets of 32 bytes and what is derived from them (HKDF-SHA256). OpenSSL
// appears in secrets.cpp only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/ids.h"

struct evp_pkey_st;  // OpenSSL's EVP_PKEY

namespace pccl {

/// 32 bytes that nobody else may know. Overwritten when it is destroyed, and never printed.
class Secret {
 public:
  static constexpr std::size_t kBytes = 32;
  Secret() = default;
  explicit Secret(std::span<const std::uint8_t, kBytes> bytes);
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  [[nodiscard]] std::span<const std::uint8_t, kBytes> bytes() const { return bytes_; }
  /// A copy, for bytes that others may know after all: a mark, a public key.
  [[nodiscard]] std::array<std::uint8_t, kBytes> disclosed() const { return bytes_; }
  /// Are the two equal? Takes a time that does not depend on where they differ.
  [[nodiscard]] bool same_as(const Secret& other) const;

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

/// From the generator of OpenSSL, which the operating system seeds.
[[nodiscard]] Secret random_secret();

/// HKDF-SHA256 (RFC 5869) without salt. `label` says what the derived secret is for, `context`
/// between whom: two uses never share both.
[[nodiscard]] Secret derive(const Secret& from, std::string_view label,
                            std::span<const std::byte> context);
/// The same from two secrets, of which `salt` is HKDF's salt: who lacks one of them learns nothing.
[[nodiscard]] Secret derive(const Secret& from, const Secret& salt, std::string_view label,
                            std::span<const std::byte> context);

/// The id of the process that holds the private half of `key`.
[[nodiscard]] PeerId peer_of(const PublicKey& key);

/// An X25519 key pair (RFC 7748). Copies may be used by several threads.
class KeyPair {
 public:
  [[nodiscard]] static KeyPair make();
  [[nodiscard]] static KeyPair from(const Secret& secret);

  [[nodiscard]] const PublicKey& public_key() const { return public_; }
  [[nodiscard]] const Secret& secret() const { return secret_; }
  /// The secret that only the holders of the two key pairs can compute. Nothing if `other` is a
  /// point of small order, with which everybody could (RFC 7748, section 6.1).
  [[nodiscard]] std::optional<Secret> shared_with(const PublicKey& other) const;

 private:
  KeyPair(Secret secret, std::shared_ptr<evp_pkey_st> key, PublicKey public_key)
      : secret_(secret), key_(std::move(key)), public_(public_key) {}
  Secret secret_;
  std::shared_ptr<evp_pkey_st> key_;  // OpenSSL's form of it, as costly to make as an exchange
  PublicKey public_;
};

}  // namespace pccl
