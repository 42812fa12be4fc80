#include "transport/bulk_queue.h"

#include <utility>

#include "base/assert.h"

namespace pccl {

std::size_t BulkQueue::size_of(std::size_t bytes) {
  std::size_t size = 0;
  for (std::size_t most = kBatchBytes; bytes > most && size + 1 < kSizes; most *= kSizeTimes)
    ++size;
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
    lines_.front().splice(lines_.front().end(), last);
  }
  Waiting& waiting = *found->second;
  waiting.bytes += bytes;
  waiting.brought += bytes;
  const std::size_t size = size_of(waiting.brought);
  if (size <= waiting.size) return;
  Line& larger = lines_[size];
  larger.splice(larger.end(), lines_[waiting.size], found->second);
  waiting.size = size;
}

std::size_t BulkQueue::smallest() const {
  std::size_t size = 0;
  while (lines_[size].empty()) ++size;
  return size;
}

/// After a batch of the smallest ones one of the next larger size that waits, and the other way
/// round.
void BulkQueue::begin_batch() {
  batch_bytes_ = 0;
  smallest_first_ = !smallest_first_;
  if (smallest_first_) return;
  const std::size_t least = smallest();
  std::size_t next = batch_from_;
  do {
    next = (next + 1) % kSizes;
  } while (next != batch_from_ && (next == least || lines_[next].empty()));
  batch_from_ = lines_[next].empty() ? least : next;
}

Outgoing BulkQueue::pop() {
  PCCL_ASSERT(!empty());
  const bool over = !smallest_first_ && lines_[batch_from_].empty();
  if (over || batch_bytes_ >= kBatchBytes) begin_batch();
  const auto next = lines_[smallest_first_ ? smallest() : batch_from_].begin();
  Outgoing segment = std::move(next->segments.front());
  next->segments.pop_front();
  next->bytes -= segment.payload_bytes();
  batch_bytes_ += segment.payload_bytes();
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
  batch_bytes_ = 0;
}

void BulkQueue::leave(Line::iterator waiting) {
  of_.erase(waiting->token);
  lines_[waiting->size].erase(waiting);
}

}  // namespace pccl
