#include "engine/preimage.h"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.h"

namespace pccl {

void Preimage::save(std::uint32_t index, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return;
  Log& log = logs_[index];
  if (!log.memory) log.memory = pool_.take(outputs_[index].bytes);
  std::uint64_t begin = offset;
  const std::uint64_t end = offset + bytes;
  // Save the gaps between what is saved already, then merge all of it into one interval.
  auto it = log.saved.upper_bound(begin);
  if (it != log.saved.begin() && std::prev(it)->second >= begin) --it;
  std::uint64_t merged_begin = begin;
  std::uint64_t merged_end = end;
  const auto first = it;
  while (it != log.saved.end() && it->first <= end) {
    if (begin < it->first) save_gap(log, index, begin, it->first);
    begin = std::max(begin, it->second);
    merged_begin = std::min(merged_begin, it->first);
    merged_end = std::max(merged_end, it->second);
    ++it;
  }
  if (begin < end) save_gap(log, index, begin, end);
  if (first == it) {
    log.saved.emplace(merged_begin, merged_end);
    return;
  }
  // With memory that is there: what is saved is never forgotten.
  log.saved.erase(std::next(first), it);
  auto merged = log.saved.extract(first);
  merged.key() = merged_begin;
  merged.mapped() = merged_end;
  log.saved.insert(std::move(merged));
}

void Preimage::save_gap(Log& log, std::uint32_t index, std::uint64_t begin, std::uint64_t end) {
  copy_streaming(log.memory.data() + begin, outputs_[index].data + begin, end - begin);
}

void Preimage::restore() {
  for (auto& [index, log] : logs_) {
    for (const auto& [begin, end] : log.saved) {
      std::memcpy(outputs_[index].data + begin, log.memory.data() + begin, end - begin);
    }
    log.saved.clear();
  }
}

}  // namespace pccl
