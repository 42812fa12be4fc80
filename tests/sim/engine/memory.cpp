#include "memory.h"

#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace {

constexpr int kPieces = 20000;

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

OtherHeap::OtherHeap(std::uint64_t seed) {
  mallopt(M_PERTURB, 0x5A);
  Random chance(seed);
  std::vector<std::unique_ptr<std::byte[]>> holes;
  for (int i = 0; i < kPieces; ++i) {
    const std::size_t bytes = 1 + chance.below(chance.below(4) == 0 ? 4096 : 256);
    auto piece = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memset(piece.get(), 0x5A, bytes);
    auto& pieces = chance.below(2) == 0 ? between_ : holes;
    pieces.push_back(std::move(piece));
  }
  for (std::size_t i = holes.size(); i > 1; --i) {
    std::swap(holes[i - 1], holes[chance.below(i)]);
  }
  for (auto& hole : holes) hole.reset();
}

OtherHeap::~OtherHeap() { mallopt(M_PERTURB, 0); }

}  // namespace pccl::sim
