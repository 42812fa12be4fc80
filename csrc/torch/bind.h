// Shared by bind.cpp, bind_groups.cpp, bind_run.cpp and bind_state.cpp: conversions from Python,
// questions to the engine, and the parts of the module.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/text.h"
#include "python/gil.h"
#include "state/sha256.h"
#include "torch/errors.h"

namespace pccl {

using Items = std::vector<std::pair<std::uintptr_t, std::uint64_t>>;  // address and bytes

inline std::byte* to_pointer(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT: what tensor.data_ptr() says
}

inline pybind11::bytes to_bytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

inline Digest to_digest(const pybind11::bytes& bytes) {
  const std::string_view view(bytes);
  Digest digest{};
  TORCH_CHECK_VALUE(view.size() == digest.size(), "pccl: a digest has ", digest.size(),
                    " bytes, got ", view.size());
  std::memcpy(digest.data(), view.data(), digest.size());
  return digest;
}

inline PeerId to_peer(const std::string& hex) {
  TORCH_CHECK_VALUE(hex.size() == 16 && is_hex(hex),
                    "pccl: a peer is named by 16 hexadecimal digits, got '", hex, "'");
  return PeerId{std::stoull(hex, nullptr, 16)};
}

inline std::chrono::milliseconds to_milliseconds(double seconds) {
  TORCH_CHECK_VALUE(seconds >= 0, "pccl: a time must not be negative, got ", seconds, " s");
  constexpr double kMax = 1e12;  // about 30 years: "for ever", without an overflow anywhere
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds * 1000 + 0.5, kMax)));
}

/// What the engine answers to a question. Raises where it does not.
template <typename Question>
auto answer_of(const Question& question) {
  const GilRelease release;
  auto answer = question();
  check(answer.error());
  return std::move(answer).value();
}

/// Groups: how they are made, their types, and how calls are quantised.
void bind_groups(pybind11::module_& m);
/// What belongs to the process's run.
void bind_run(pybind11::module_& m);
/// `sha256`, `StateFetch`, `Turn` and `or_back`.
void bind_state(pybind11::module_& m);

}  // namespace pccl
