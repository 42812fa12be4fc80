// Segments that arrived before their operation runs here: not issued yet, deferred, or of an epoch
// that has been accepted and not started. Bounded by the senders (flow.h). One per group; engine's
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "engine/context.h"

namespace pccl {

struct EarlySegment {
  PeerId from;
  SegmentHeader header;
  PoolBuffer payload;
};

class Early {
 public:
  Early(EngineContext& context, SegmentOwner& owner) : context_(context), owner_(owner) {}
  ~Early() { context_.retire(token_); }
  Early(const Early&) = delete;
  Early& operator=(const Early&) = delete;

  [[nodiscard]] Placement place(const SegmentHeader& header) {
    if (token_ == 0) token_ = context_.token(owner_);
    PoolBuffer buffer = context_.pool.take(header.bytes);
    const Placement at{buffer.data(), token_, ++last_cookie_};
    arriving_.emplace(at.cookie, std::move(buffer));
    return at;
  }
  [[nodiscard]] bool owns(const Placement& at) const { return token_ != 0 && at.token == token_; }
  /// Its payload, now complete.
  [[nodiscard]] PoolBuffer take(const Placement& at) {
    auto node = arriving_.extract(at.cookie);
    PCCL_ASSERT(!node.empty(), at.cookie);
    return std::move(node.mapped());
  }
  void keep(EarlySegment segment) {
    const auto key = std::pair{segment.header.epoch, segment.header.op};
    kept_[key].push_back(std::move(segment));
  }
  /// What has arrived for an operation of an epoch, oldest first.
  [[nodiscard]] std::vector<EarlySegment> take(EpochId epoch, OpKey op) {
    auto node = kept_.extract({epoch, op});
    return node.empty() ? std::vector<EarlySegment>{} : std::move(node.mapped());
  }
  /// Segments of older epochs are dropped.
  void drop_before(EpochId epoch) {
    kept_.erase(kept_.begin(), kept_.lower_bound({epoch, OpKey{}}));
  }
  void drop_operations_before(EpochId epoch, OpKey op) {
    kept_.erase(kept_.lower_bound({epoch, OpKey{}}), kept_.lower_bound({epoch, op}));
  }

 private:
  EngineContext& context_;
  SegmentOwner& owner_;
  MemoryToken token_ = 0;
  std::uint64_t last_cookie_ = 0;
  std::unordered_map<std::uint64_t, PoolBuffer> arriving_;
  std::map<std::pair<EpochId, OpKey>, std::vector<EarlySegment>> kept_;
};

}  // namespace pccl
