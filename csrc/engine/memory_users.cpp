#include "engine/memory_users.h"

#include <algorithm>
#include <bit>

namespace pccl {
namespace {

std::uint64_t begin_of(const Buffer& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data);
}

std::uint64_t width_of(const Buffer& memory) {
  return static_cast<std::uint64_t>(std::bit_width(memory.bytes));
}

}  // namespace

void MemoryUsers::Uses::add(OpKey key, const Buffer& memory) {
  if (memory.bytes == 0) return;
  const std::uint64_t begin = begin_of(memory);
  by_width_[width_of(memory)].insert({begin, begin + memory.bytes, key});
}

void MemoryUsers::Uses::remove(OpKey key, const Buffer& memory) {
  if (memory.bytes == 0) return;
  const std::uint64_t begin = begin_of(memory);
  by_width_[width_of(memory)].erase({begin, begin + memory.bytes, key});
}

std::optional<OpKey> MemoryUsers::Uses::last_before(OpKey key, const Buffer& memory,
                                                    std::optional<OpKey> found) const {
  if (memory.bytes == 0) return found;
  const std::uint64_t begin = begin_of(memory);
  const std::uint64_t end = begin + memory.bytes;
  for (const auto& [width, uses] : by_width_) {
    const std::uint64_t longest = ~0ULL >> (64 - width);
    auto first = uses.lower_bound({begin - std::min(begin, longest), 0, {}});
    while (first != uses.end() && first->begin < end) {
      // All uses of one place lie side by side, in the order of the calls.
      const Use place = *first;
      const auto after = uses.lower_bound({place.begin, place.end, key});
      if (place.end > begin && place.op < key) found = std::max(found, {std::prev(after)->op});
      first = uses.upper_bound({place.begin, place.end, kNoOp});
    }
  }
  return found;
}

void MemoryUsers::add(OpKey key, const OpRequest& request) {
  for (const Buffer& memory : request.inputs) reads_.add(key, memory);
  for (const Buffer& memory : request.outputs) writes_.add(key, memory);
}

void MemoryUsers::remove(OpKey key, const OpRequest& request) {
  for (const Buffer& memory : request.inputs) reads_.remove(key, memory);
  for (const Buffer& memory : request.outputs) writes_.remove(key, memory);
}

std::optional<OpKey> MemoryUsers::last_before(OpKey key, const OpRequest& request) const {
  std::optional<OpKey> last;
  for (const Buffer& memory : request.inputs) last = writes_.last_before(key, memory, last);
  for (const Buffer& memory : request.outputs) {
    last = reads_.last_before(key, memory, writes_.last_before(key, memory, last));
  }
  return last;
}

}  // namespace pccl
