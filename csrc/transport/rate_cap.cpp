#include "transport/rate_cap.h"

#include <algorithm>

#include "base/assert.h"
#include "base/limits.h"

namespace pccl {
namespace {

constexpr std::int64_t kParts = 1000;  // of a byte
constexpr std::uint64_t kRateMax = 1ULL << 50;
constexpr std::size_t kRateGrainMin = 4096;
constexpr std::size_t kRateGrainMax = 16384;
constexpr std::size_t kGrainsPerSecond = 64;

}  // namespace

RateCap::RateCap(std::uint64_t bytes_per_second, std::uint64_t now_ms)
    : rate_(static_cast<std::int64_t>(std::min(bytes_per_second, kRateMax))),
      // A whole slice at least, since small segments go whole.
      most_(std::max(rate_ * static_cast<std::int64_t>(kBurstMs),
                     static_cast<std::int64_t>(kSliceBytes) * kParts)),
      least_(-std::max(rate_ * static_cast<std::int64_t>(kDebtMs), most_)),
      level_(most_),
      at_ms_(now_ms),
      grain_(std::clamp(static_cast<std::size_t>(rate_) / kGrainsPerSecond, kRateGrainMin,
                        kRateGrainMax)) {
  PCCL_ASSERT(bytes_per_second > 0);
}

std::int64_t RateCap::level(std::uint64_t now_ms) {
  const std::uint64_t since_ms = now_ms - std::min(at_ms_, now_ms);
  at_ms_ = std::max(at_ms_, now_ms);
  // From the deepest debt the bucket is full again after so long, or after the burst of a slice.
  const auto full_ms = static_cast<std::uint64_t>((most_ - least_) / rate_) + 1;
  const auto filled_ms = static_cast<std::int64_t>(std::min(since_ms, full_ms));
  level_ = std::min(most_, level_ + filled_ms * rate_);
  return level_ / kParts;
}

void RateCap::took(std::uint64_t bytes) {
  const auto most = static_cast<std::uint64_t>((most_ - least_) / kParts) + 1;
  level_ = std::max(least_, level_ - static_cast<std::int64_t>(std::min(bytes, most)) * kParts);
}

}  // namespace pccl
