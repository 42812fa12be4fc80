#include "no_memory.h"

#include <cstdlib>
#include <new>

std::size_t pccl::test::no_memory_from = pccl::test::kNoLimit;
std::size_t pccl::test::requests_until_none = pccl::test::kNoLimit;

namespace {

bool finds_none(std::size_t bytes) {
  using namespace pccl::test;
  if (bytes >= no_memory_from) return true;
  return requests_until_none != kNoLimit && requests_until_none-- == 0;  // then it is kNoLimit
}

}  // namespace

// Not inline: else the compiler sees `new` beside `free`.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = finds_none(bytes) ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
