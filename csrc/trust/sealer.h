// Numbered messages that nobody but their receiver reads, and that nobody changes unseen:
// AES-128-GCM or ChaCha20-Poly1305 with a key of one direction. The number is the nonce, and each
// number seals one message. After kSealsOfOneKey numbers a key gives way to the next one, which is
// derived from it: who steals a key opens nothing that was sealed with earlier ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "trust/secrets.h"

struct evp_cipher_ctx_st;

namespace pccl {

enum class Cipher : std::uint8_t { aes_128_gcm, chacha20_poly1305 };

/// Does the processor encrypt AES by itself? Elsewhere ChaCha20 is faster.
[[nodiscard]] bool has_aes();

inline constexpr std::size_t kSealTagBytes = 16;
using SealTag = std::array<std::byte, kSealTagBytes>;

/// A message is sealed part by part: from its place to another one, or within its place.
struct SealPart {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

/// What `number` is sealed with: the key of its generation, and the one before.
class SealKeys {
 public:
  SealKeys(Cipher cipher, const Secret& first, bool seals);
  /// Seals or opens; when it opens, false: the tag is not that of these parts.
  [[nodiscard]] bool use(std::uint64_t number, std::span<const std::byte> beside,
                         std::span<const SealPart> parts, SealTag& tag);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  using Context = std::unique_ptr<evp_cipher_ctx_st, Free>;
  [[nodiscard]] Context context_of(const Secret& generation) const;

  Cipher cipher_;
  bool seals_;
  Secret secret_;  // of `generation_`
  std::uint64_t generation_ = 0;
  Context present_;
  Context before_;  // null: there is none
};

/// The sender's side of one direction.
class Sealer {
 public:
  Sealer(Cipher cipher, const Secret& first) : keys_(cipher, first, true) {}
  /// The number of the next message.
  [[nodiscard]] std::uint64_t next() const { return next_; }
  /// Encrypts the parts of the next message. `beside` is not in it and is authenticated with it.
  [[nodiscard]] SealTag seal(std::span<const std::byte> beside, std::span<const SealPart> parts);

 private:
  SealKeys keys_;
  std::uint64_t next_ = 0;
};

/// The receiver's side. Knows nothing of order: the same message opens twice.
class Opener {
 public:
  Opener(Cipher cipher, const Secret& first) : keys_(cipher, first, false) {}
  /// Decrypts the parts of the message of that number. False: the message is another one than was
  /// sealed, and what the parts hold now is nobody's.
  [[nodiscard]] bool open(std::uint64_t number, std::span<const std::byte> beside,
                          std::span<const SealPart> parts, const SealTag& tag);

 private:
  SealKeys keys_;
};

}  // namespace pccl
