#include "trust/secrets.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "trust/random_bytes.h"

namespace pccl {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)>;

Key private_key(const Secret& secret) {
  const auto bytes = secret.bytes();
  Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, bytes.data(), bytes.size()),
          &EVP_PKEY_free);
  PCCL_ASSERT(key != nullptr);
  return key;
}

Secret hkdf_of(const Secret& from, const Secret* salt, std::string_view label,
               std::span<const std::byte> context) {
  const auto* label_bytes = reinterpret_cast<const unsigned char*>(label.data());
  const auto* context_bytes = reinterpret_cast<const unsigned char*>(context.data());
  // No label holds it: no two pairs of label and context are equal.
  const unsigned char between = 0;
  const Context hkdf(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr), &EVP_PKEY_CTX_free);
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  std::size_t length = bytes.size();
  const bool derived =
      hkdf != nullptr && EVP_PKEY_derive_init(hkdf.get()) == 1 &&
      EVP_PKEY_CTX_set_hkdf_md(hkdf.get(), EVP_sha256()) == 1 &&
      EVP_PKEY_CTX_set1_hkdf_key(hkdf.get(), from.bytes().data(), Secret::kBytes) == 1 &&
      (salt == nullptr ||
       EVP_PKEY_CTX_set1_hkdf_salt(hkdf.get(), salt->bytes().data(), Secret::kBytes) == 1) &&
      EVP_PKEY_CTX_add1_hkdf_info(hkdf.get(), label_bytes, static_cast<int>(label.size())) == 1 &&
      EVP_PKEY_CTX_add1_hkdf_info(hkdf.get(), &between, 1) == 1 &&
      EVP_PKEY_CTX_add1_hkdf_info(hkdf.get(), context_bytes, static_cast<int>(context.size())) ==
          1 &&
      EVP_PKEY_derive(hkdf.get(), bytes.data(), &length) == 1;
  PCCL_ASSERT(derived && length == bytes.size());
  const Secret secret(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

}  // namespace

Secret::Secret(std::span<const std::uint8_t, kBytes> bytes) {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

bool Secret::same_as(const Secret& other) const {
  return CRYPTO_memcmp(bytes_.data(), other.bytes_.data(), bytes_.size()) == 0;
}

Secret random_secret() {
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  random_bytes(bytes);
  const Secret secret(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

Secret derive(const Secret& from, std::string_view label, std::span<const std::byte> context) {
  return hkdf_of(from, nullptr, label, context);
}

Secret derive(const Secret& from, const Secret& salt, std::string_view label,
              std::span<const std::byte> context) {
  return hkdf_of(from, &salt, label, context);
}

PeerId peer_of(const PublicKey& key) {
  std::array<std::uint8_t, 32> digest{};
  const bool made =
      EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1;
  PCCL_ASSERT(made);
  PeerId peer;
  for (std::size_t i = 0; i < 8; ++i) peer.value = peer.value << 8 | digest[i];
  return peer;
}

KeyPair KeyPair::make() { return from(random_secret()); }

KeyPair KeyPair::from(const Secret& secret) {
  PublicKey public_key{};
  std::size_t length = public_key.size();
  std::shared_ptr<EVP_PKEY> key = private_key(secret);
  const bool read = EVP_PKEY_get_raw_public_key(key.get(), public_key.data(), &length) == 1;
  PCCL_ASSERT(read && length == public_key.size());
  return {secret, std::move(key), public_key};
}

std::optional<Secret> KeyPair::shared_with(const PublicKey& other) const {
  const Key theirs(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, other.data(), other.size()),
      &EVP_PKEY_free);
  const Context exchange(EVP_PKEY_CTX_new(key_.get(), nullptr), &EVP_PKEY_CTX_free);
  PCCL_ASSERT(theirs != nullptr && exchange != nullptr);
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  std::size_t length = bytes.size();
  // OpenSSL fails by itself where the result is all zero.
  if (EVP_PKEY_derive_init(exchange.get()) != 1 ||
      EVP_PKEY_derive_set_peer(exchange.get(), theirs.get()) != 1 ||
      EVP_PKEY_derive(exchange.get(), bytes.data(), &length) != 1 || length != bytes.size()) {
    return std::nullopt;
  }
  const Secret secret(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

}  // namespace pccl
