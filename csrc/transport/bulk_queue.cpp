#include "transport/bulk_queue.h"

#include <utility>

#include "base/assert.h"

namespace pccl {

std::size_t BulkQueue::size_of(std::size_t bytes) {
  std::size_t size = 0;
  for (std::size_t most = kTurnBytes; bytes > most && size + 1 < kSizes; most *= kSizeTimes) ++size;
  return size;
}

void BulkQueue::push(Outgoing segment) {
  const std::size_t bytes = segment.payload_bytes();
  auto found = of_.find(segment.token);
  if (found != of_.end()) {
    found->second->segments.push_back(std::move(segment));
  } else {
    Line last;
    last.emplace_back().token = segment.token;
    last.front().segments.push_back(std::move(segment));
    found = of_.emplace(last.front().token, last.begin()).first;
    last.front().since = ++came_;
    lines_.front().splice(lines_.front().end(), last);
  }
  Waiting& waiting = *found->second;
  waiting.bytes += bytes;
  const std::size_t size = size_of(waiting.bytes);
  if (size <= waiting.size) return;
  Line& larger = lines_[size];
  larger.splice(larger.end(), lines_[waiting.size], found->second);
  waiting.size = size;
}

BulkQueue::Line::iterator BulkQueue::smallest() {
  std::size_t size = 0;
  while (lines_[size].empty()) ++size;
  return lines_[size].begin();
}

/// Of those that are the first ones of their sizes.
BulkQueue::Line::iterator BulkQueue::oldest() {
  Line::iterator found = smallest();
  for (std::size_t size = found->size + 1; size < kSizes; ++size) {
    Line& line = lines_[size];
    if (!line.empty() && line.front().since < found->since) found = line.begin();
  }
  return found;
}

Outgoing BulkQueue::pop() {
  PCCL_ASSERT(!empty());
  if (turn_bytes_ >= kTurnBytes) {
    turn_of_oldest_ = !turn_of_oldest_;
    turn_bytes_ = 0;
  }
  const auto next = turn_of_oldest_ ? oldest() : smallest();
  Outgoing segment = std::move(next->segments.front());
  next->segments.pop_front();
  next->bytes -= segment.payload_bytes();
  turn_bytes_ += segment.payload_bytes();
  if (next->segments.empty()) leave(next);
  return segment;
}

std::size_t BulkQueue::cancel(MemoryToken token) {
  const auto found = of_.find(token);
  if (found == of_.end()) return 0;
  const std::size_t bytes = found->second->bytes;
  leave(found->second);
  return bytes;
}

void BulkQueue::clear() {
  of_.clear();
  for (Line& line : lines_) line.clear();
}

void BulkQueue::leave(Line::iterator waiting) {
  of_.erase(waiting->token);
  lines_[waiting->size].erase(waiting);
}

}  // namespace pccl
