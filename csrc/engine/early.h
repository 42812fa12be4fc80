// Segments of collectives that arrived before their operation runs here: not issued yet, or
// deferred. One per epoch of a group, so nothing of another epoch can be among them; bounded by the
// senders (flow.h) and by what a link may keep here (kept.h). Engine's thread.
#pragma once

#include <cstdint>
#include <map>
#include <new>
#include <unordered_map>
#include <vector>

#include "engine/context.h"
#include "engine/kept.h"

namespace pccl {

struct EarlySegment {
  PeerId from;
  SegmentHeader header;
  PoolBuffer payload;
  Kept kept;
};

class Early {
 public:
  Early(EngineContext& context, SegmentOwner& owner) : context_(context), owner_(owner) {}
  ~Early() {
    for (const auto& [peer, token] : tokens_) context_.retire(token);
  }
  Early(const Early&) = delete;
  Early& operator=(const Early&) = delete;

  /// Makes memory for the payload; throws std::bad_alloc. `kept`: its share of the link's limit.
  [[nodiscard]] Placement place(PeerId from, const SegmentHeader& header, Kept kept) {
    MemoryToken& token = tokens_[from];
    if (token == 0) token = context_.token(owner_);
    PoolBuffer buffer = context_.pool.take(header.bytes);
    const Placement at{buffer.data(), token, ++last_cookie_};
    arriving_.emplace(at.cookie, EarlySegment{from, header, std::move(buffer), std::move(kept)});
    return at;
  }
  [[nodiscard]] bool owns(PeerId from, const Placement& at) const {
    const auto token = tokens_.find(from);
    return token != tokens_.end() && token->second == at.token && arriving_.contains(at.cookie);
  }
  /// Takes out a segment that has arrived whole.
  [[nodiscard]] EarlySegment take(const Placement& at) {
    return std::move(arriving_.extract(at.cookie).mapped());
  }
  /// It does not come any more.
  void forget(const Placement& at) { arriving_.erase(at.cookie); }
  void keep(EarlySegment segment) {
    const OpKey op = segment.header.op;
    kept_[op].push_back(std::move(segment));
  }
  /// Takes out the segments that have arrived for an operation, oldest first.
  [[nodiscard]] std::vector<EarlySegment> take(OpKey op) {
    auto node = kept_.extract(op);
    return node.empty() ? std::vector<EarlySegment>{} : std::move(node.mapped());
  }
  /// The operation is issued: its segments are expected now, and do not count at their links any
  /// more.
  void issued(OpKey op) {
    const auto found = kept_.find(op);
    if (found == kept_.end()) return;
    for (EarlySegment& segment : found->second) segment.kept.release();
  }
  /// The operation has failed: drops its segments. Segments of earlier operations, which may wait
  /// for memory, stay.
  void drop(OpKey op) { kept_.erase(op); }
  /// Drops the segments of all operations before this one.
  void drop_before(OpKey op) { kept_.erase(kept_.begin(), kept_.lower_bound(op)); }
  void drop_all() { kept_.clear(); }
  /// The link to this peer is gone: drops its half-received segments.
  void link_gone(PeerId peer) {
    const auto token = tokens_.find(peer);
    if (token == tokens_.end()) return;
    context_.retire(token->second);
    tokens_.erase(token);
    std::erase_if(arriving_, [&](const auto& entry) { return entry.second.from == peer; });
  }

 private:
  EngineContext& context_;
  SegmentOwner& owner_;
  std::map<PeerId, MemoryToken> tokens_;
  std::uint64_t last_cookie_ = 0;
  std::unordered_map<std::uint64_t, EarlySegment> arriving_;
  std::map<OpKey, std::vector<EarlySegment>> kept_;
};

}  // namespace pccl
