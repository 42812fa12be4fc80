#include "no_memory.h"

#include <cstdlib>
#include <new>

std::size_t pccl::test::no_memory_from = pccl::test::kNoLimit;

// Not inline: else the compiler sees `new` beside `free`.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = bytes >= pccl::test::no_memory_from ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
