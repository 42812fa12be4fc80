#include "trust/sealer.h"

#include <openssl/evp.h>
#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"

namespace pccl {
namespace {

constexpr std::string_view kSealLabel = "pccl1 seal key";
constexpr std::string_view kNextSealLabel = "pccl1 seal next";
constexpr std::size_t kNonceBytes = 12;

const EVP_CIPHER* evp_of(Cipher cipher) {
  return cipher == Cipher::aes_128_gcm ? EVP_aes_128_gcm() : EVP_chacha20_poly1305();
}

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

bool has_aes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0;
#elif defined(__aarch64__)
  return (::getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  return false;
#endif
}

void SealKeys::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

SealKeys::SealKeys(Cipher cipher, const Secret& first, bool seals)
    : cipher_(cipher), seals_(seals), secret_(first), present_(context_of(first)) {}

SealKeys::Context SealKeys::context_of(const Secret& generation) const {
  const Secret key = derive(generation, kSealLabel, {});  // AES-128 takes its first half
  Context context(EVP_CIPHER_CTX_new());
  const bool made =
      context != nullptr && EVP_CipherInit_ex(context.get(), evp_of(cipher_), nullptr,
                                              key.bytes().data(), nullptr, seals_ ? 1 : 0) == 1;
  PCCL_ASSERT(made);
  return context;
}

bool SealKeys::use(std::uint64_t number, std::span<const std::byte> beside,
                   std::span<const SealPart> parts, SealTag& tag) {
  const std::uint64_t generation = number / kSealsOfOneKey;
  if (generation == generation_ + 1) {
    secret_ = derive(secret_, kNextSealLabel, {});
    generation_ = generation;
    before_ = std::exchange(present_, context_of(secret_));
  }
  const bool late = generation + 1 == generation_;
  EVP_CIPHER_CTX* context = late ? before_.get() : present_.get();
  if (context == nullptr || (!late && generation != generation_)) return false;
  std::array<unsigned char, kNonceBytes> nonce{};
  for (std::size_t i = 0; i < 8; ++i) {
    nonce[i] = static_cast<unsigned char>(number >> (8 * i) & 0xFF);
  }
  int done = 0;
  bool good = EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
              EVP_CipherUpdate(context, nullptr, &done, raw(beside.data()),
                               static_cast<int>(beside.size())) == 1;
  for (const SealPart& part : parts) {
    if (part.bytes == 0) continue;
    good = good && EVP_CipherUpdate(context, raw(part.to), &done, raw(part.from),
                                    static_cast<int>(part.bytes)) == 1;
  }
  const int size = static_cast<int>(tag.size());
  std::array<unsigned char, 16> rest{};  // both are stream ciphers: nothing comes
  if (seals_) {
    good = good && EVP_CipherFinal_ex(context, rest.data(), &done) == 1 &&
           EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, size, tag.data()) == 1;
    PCCL_ASSERT(good);
    return true;
  }
  return good && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, size, tag.data()) == 1 &&
         EVP_CipherFinal_ex(context, rest.data(), &done) == 1;
}

SealTag Sealer::seal(std::span<const std::byte> beside, std::span<const SealPart> parts) {
  SealTag tag{};
  const bool sealed = keys_.use(next_++, beside, parts, tag);
  PCCL_ASSERT(sealed);
  return tag;
}

bool Opener::open(std::uint64_t number, std::span<const std::byte> beside,
                  std::span<const SealPart> parts, const SealTag& tag) {
  SealTag said = tag;
  return keys_.use(number, beside, parts, said);
}

}  // namespace pccl
