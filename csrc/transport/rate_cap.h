// How much a process may send under a rate: a token bucket. It fills at the rate, up to what
// kBurstMs bring, and each byte that is sent is taken out of it. Messages do not wait for it: they
// take it below zero (debt), and data waits until the debt is paid. Pure: a function of the times
// and bytes passed in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pccl {

class RateCap {
 public:
  static constexpr std::uint64_t kBurstMs = 100;
  /// The longest time for which debt keeps data waiting after the last message; deeper debt is
  /// forgiven. So messages alone can exceed the rate.
  static constexpr std::uint64_t kDebtMs = 1000;

  /// The bucket is full at first. `bytes_per_second`: at least 1.
  RateCap(std::uint64_t bytes_per_second, std::uint64_t now_ms);
  /// Bytes that may be sent now; below zero: debt. Times do not go back.
  [[nodiscard]] std::int64_t level(std::uint64_t now_ms);
  /// So many bytes have been sent.
  void took(std::uint64_t bytes);
  /// Data is not sent in smaller parts than this: many small ones would cost more than they carry.
  [[nodiscard]] std::size_t grain() const { return grain_; }

 private:
  // In thousandths of a byte, so that a rate of bytes a second fills whole ones each millisecond.
  std::int64_t rate_;  // in a millisecond
  std::int64_t most_;
  std::int64_t least_;
  std::int64_t level_;
  std::uint64_t at_ms_;
  std::size_t grain_;
};

}  // namespace pccl
