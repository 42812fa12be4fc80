// What a coverage-guided fuzzer has found to try, read piece by piece. At its end everything is
// zero or empty, so that each input means something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace pccl::fuzz {

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool ended() const { return bytes_.empty(); }
  [[nodiscard]] std::uint8_t byte() {
    const auto one = take(1);
    return one.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(one[0]);
  }
  /// In [0, n); n > 0.
  [[nodiscard]] std::size_t below(std::size_t n) {
    std::size_t number = byte();
    if (n > 256) number = number << 8 | byte();
    return number % n;
  }
  [[nodiscard]] bool flag() { return (byte() & 1) != 0; }
  template <typename T>
  [[nodiscard]] T number() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value = value << 8 | byte();
    return static_cast<T>(value);
  }
  /// So many bytes, or those that are left.
  [[nodiscard]] std::span<const std::byte> take(std::size_t most) {
    const auto taken = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  [[nodiscard]] std::span<const std::byte> rest() { return take(bytes_.size()); }

 private:
  std::span<const std::byte> bytes_;
};

[[nodiscard]] inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A property that each input must have: the fuzzer takes the abort for a finding.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "it does not hold: %s\n", what);
  std::abort();
}

/// What a walk of a simulator has found, which is none.
inline void require_none(const std::string& violation) {
  if (violation.empty()) return;
  std::fflush(stdout);  // its trace
  std::fprintf(stderr, "%s\n", violation.c_str());
  std::abort();
}

}  // namespace pccl::fuzz
