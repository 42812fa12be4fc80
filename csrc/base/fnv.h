// FNV-1a, 64 bits: a number that tells apart what is not made to be mistaken, for identities and
// for digests that tests compare. Not for secrets, and not where somebody gains by a collision.
// Source: Fowler, Noll, Vo (http://www.isthe.com/chongo/tech/comp/fnv).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pccl {

class Fnv1a {
 public:
  /// One unit: a byte in the published function. Larger numbers may be given whole, in one step,
  /// which is faster; they give another value than their bytes would.
  void add(std::uint64_t unit) { value_ = (value_ ^ unit) * 0x100000001B3ULL; }
  /// Byte by byte.
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) add(std::to_integer<std::uint64_t>(byte));
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325ULL;
};

}  // namespace pccl
