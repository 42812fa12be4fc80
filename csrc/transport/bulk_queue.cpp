#include "transport/bulk_queue.h"

#include <utility>

#include "base/assert.h"

namespace pccl {

void BulkQueue::push(Outgoing segment) {
  const auto found = of_.find(segment.token);
  if (found != of_.end()) return found->second->segments.push_back(std::move(segment));
  const MemoryToken token = segment.token;
  Turns last;
  last.emplace_back().token = token;
  last.front().segments.push_back(std::move(segment));
  of_.emplace(token, last.begin());
  turns_.splice(turns_.end(), last);
}

Outgoing BulkQueue::pop() {
  PCCL_ASSERT(!empty());
  const auto first = turns_.begin();
  Outgoing next = std::move(first->segments.front());
  first->segments.pop_front();
  turn_bytes_ += next.payload_bytes();
  if (first->segments.empty()) {
    leave(first);
  } else if (turn_bytes_ >= kTurnBytes) {
    turns_.splice(turns_.end(), turns_, first);
    turn_bytes_ = 0;
  }
  return next;
}

std::size_t BulkQueue::cancel(MemoryToken token) {
  const auto found = of_.find(token);
  if (found == of_.end()) return 0;
  std::size_t bytes = 0;
  for (const Outgoing& segment : found->second->segments) bytes += segment.payload_bytes();
  leave(found->second);
  return bytes;
}

void BulkQueue::clear() {
  turns_.clear();
  of_.clear();
  turn_bytes_ = 0;
}

void BulkQueue::leave(Turns::iterator waiting) {
  if (waiting == turns_.begin()) turn_bytes_ = 0;
  of_.erase(waiting->token);
  turns_.erase(waiting);
}

}  // namespace pccl
