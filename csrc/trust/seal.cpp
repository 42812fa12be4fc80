#include "trust/seal.h"

#include <algorithm>

#include "trust/secrets.h"

namespace pccl {
namespace {

constexpr std::string_view kLabel = "pccl1 store";

Secret seal_of(const Token& token, const SealedPlace& place, std::span<const std::byte> handle) {
  std::vector<std::byte> sealed;
  const auto add = [&](std::uint64_t number) {
    for (int i = 0; i < 8; ++i) sealed.push_back(static_cast<std::byte>(number >> (8 * i) & 0xFF));
  };
  add(place.turn);
  add(place.rank);
  add(place.size);
  sealed.insert(sealed.end(), handle.begin(), handle.end());
  return derive(token.secret, kLabel, sealed);
}

}  // namespace

std::vector<std::uint8_t> seal(const Tokens* tokens, const SealedPlace& place,
                               std::span<const std::byte> handle) {
  std::vector<std::uint8_t> value = {0};
  if (tokens != nullptr) {
    const Secret made = seal_of(tokens->all().front(), place, handle);
    value = {1};
    value.insert(value.end(), made.bytes().begin(), made.bytes().end());
  }
  for (const std::byte byte : handle) value.push_back(static_cast<std::uint8_t>(byte));
  return value;
}

Result<std::span<const std::byte>> unseal(const Tokens* tokens, const SealedPlace& place,
                                          std::span<const std::byte> value) {
  const std::string rank = "rank " + std::to_string(place.rank);
  const bool sealed = !value.empty() && value[0] == std::byte{1};
  const std::size_t before = sealed ? 1 + Secret::kBytes : 1;
  if (value.size() < before || (!sealed && value[0] != std::byte{0})) {
    return {ErrorCode::malformed, rank + " has written no handle of pccl into the store"};
  }
  const auto handle = value.subspan(before);
  if (sealed && tokens == nullptr) {
    return {ErrorCode::refused, rank + " has a token, and this process has none: give all ranks " +
                                    "the same token file (PCCL_TOKEN_FILE), or none of them"};
  }
  if (tokens == nullptr) return handle;
  if (!sealed) {
    return {ErrorCode::refused, rank + " has no token, and this process has one (" +
                                    tokens->where() + "): give all ranks the same token file " +
                                    "(PCCL_TOKEN_FILE), or none of them"};
  }
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(value[1 + i]);
  const Secret said(bytes);
  const bool known =
      std::any_of(tokens->all().begin(), tokens->all().end(),
                  [&](const Token& token) { return seal_of(token, place, handle).same_as(said); });
  if (known) return handle;
  return {ErrorCode::refused, "the handle of " + rank +
                                  " is sealed with none of the tokens of this process (" +
                                  tokens->where() +
                                  "): another process has written it into the store, or this "
                                  "process lacks the first line of that rank's token file"};
}

}  // namespace pccl
