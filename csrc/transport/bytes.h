// Little-endian numbers at the front of a span: all that framing and handshake need of
// serialisation.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"

namespace pccl {

/// Writes fields one after the other into memory of fixed size.
class BytesOut {
 public:
  explicit BytesOut(std::span<std::byte> to) : to_(to) {}
  template <std::unsigned_integral T>
  BytesOut& number(T value) {
    PCCL_ASSERT(to_.size() >= sizeof(T), to_.size());
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      to_[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
    }
    to_ = to_.subspan(sizeof(T));
    return *this;
  }
  template <std::size_t N>
  BytesOut& array(const std::array<std::uint8_t, N>& value) {
    for (const std::uint8_t byte : value) number(byte);
    return *this;
  }

 private:
  std::span<std::byte> to_;
};

/// Reads what BytesOut wrote. The caller has checked that the span is long enough; BytesIn asserts
/// it, and never reads past the end.
class BytesIn {
 public:
  explicit BytesIn(std::span<const std::byte> from) : from_(from) {}
  template <std::unsigned_integral T>
  [[nodiscard]] T number() {
    PCCL_ASSERT(from_.size() >= sizeof(T), from_.size());
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<std::uint64_t>(from_[i]) << (8 * i);
    }
    from_ = from_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  template <std::size_t N>
  [[nodiscard]] std::array<std::uint8_t, N> array() {
    std::array<std::uint8_t, N> value{};
    for (auto& byte : value) byte = number<std::uint8_t>();
    return value;
  }

 private:
  std::span<const std::byte> from_;
};

}  // namespace pccl
