// The limit of data that has arrived over a link and cannot be used yet: segments of operations
// that are not issued, messages for groups that are not made, sends without a receive. A correct
// sender keeps its window (flow.h); this is the receiver's own limit, for each link over all
// groups. Engine's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/ids.h"
#include "base/limits.h"

namespace pccl {

/// The bytes for which sender and receiver count a kept segment: a short segment takes a whole
/// page.
[[nodiscard]] constexpr std::uint64_t kept_cost(std::uint64_t bytes) {
  return std::max<std::uint64_t>(bytes, kKeptBytesMin);
}

class KeptBytes;

/// Counts some bytes of one link as kept, as long as the object lives.
class Kept {
 public:
  Kept() = default;
  Kept(KeptBytes* of, PeerId peer, std::uint64_t bytes) : of_(of), peer_(peer), bytes_(bytes) {}
  Kept(Kept&& other) noexcept { *this = std::move(other); }
  Kept& operator=(Kept&& other) noexcept {
    if (this == &other) return *this;
    release();
    of_ = std::exchange(other.of_, nullptr);
    peer_ = other.peer_;
    bytes_ = other.bytes_;
    return *this;
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() { release(); }
  void release();

 private:
  KeptBytes* of_ = nullptr;
  PeerId peer_;
  std::uint64_t bytes_ = 0;
};

/// The bytes that are kept for each peer. Outlives every `Kept` that it has handed out.
class KeptBytes {
 public:
  /// Nothing is returned if the link has no more room: then its peer ignores its window.
  [[nodiscard]] std::optional<Kept> keep(PeerId peer, std::uint64_t bytes) {
    std::uint64_t& held = held_[peer];
    if (bytes > kKeptBytesMax || held > kKeptBytesMax - bytes) return {};
    held += bytes;
    return Kept(this, peer, bytes);
  }
  [[nodiscard]] std::uint64_t of(PeerId peer) const {
    const auto found = held_.find(peer);
    return found == held_.end() ? 0 : found->second;
  }

 private:
  friend class Kept;
  std::unordered_map<PeerId, std::uint64_t> held_;
};

inline void Kept::release() {
  if (of_ == nullptr) return;
  const auto held = of_->held_.find(peer_);
  held->second -= bytes_;
  if (held->second == 0) of_->held_.erase(held);
  of_ = nullptr;
}

}  // namespace pccl
