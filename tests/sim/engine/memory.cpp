#include "memory.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace {

thread_local pccl::Random* shortage = nullptr;

void* take(std::size_t bytes, std::size_t alignment) {
  if (shortage != nullptr && shortage->below(8) == 0) throw std::bad_alloc();
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The pool of an engine asks for aligned memory, and nobody else does.
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace pccl::sim {

MemoryShortage::MemoryShortage(Random* chance) : before_(std::exchange(shortage, chance)) {}
MemoryShortage::~MemoryShortage() { shortage = before_; }

}  // namespace pccl::sim
