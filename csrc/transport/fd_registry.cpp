#include "transport/fd_registry.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"

namespace pccl {
namespace {
constexpr std::size_t kBits = 64;
}

FdRegistry::~FdRegistry() {
  for (auto& page : pages_) delete page.load();
}

void FdRegistry::add(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  const std::size_t page_index = at / (kBits * kWords);
  PCCL_ASSERT(fd >= 0, fd);
  PCCL_ASSERT(page_index < kPages, fd);
  Page* page = pages_[page_index].load(std::memory_order_acquire);
  if (page == nullptr) {
    page = new Page{};
    pages_[page_index].store(page, std::memory_order_release);
  }
  (*page)[at / kBits % kWords].fetch_or(std::uint64_t{1} << (at % kBits));
}

void FdRegistry::remove(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  Page* page = pages_[at / (kBits * kWords)].load(std::memory_order_acquire);
  if (page != nullptr) {
    (*page)[at / kBits % kWords].fetch_and(~(std::uint64_t{1} << (at % kBits)));
  }
}

bool FdRegistry::contains(int fd) const {
  const auto at = static_cast<std::size_t>(fd);
  const Page* page = pages_[at / (kBits * kWords)].load(std::memory_order_acquire);
  return page != nullptr && ((*page)[at / kBits % kWords].load() >> (at % kBits) & 1) != 0;
}

template <typename Take, typename Function>
void FdRegistry::for_each(Take take, Function function) {
  for (std::size_t p = 0; p < kPages; ++p) {
    Page* page = pages_[p].load(std::memory_order_acquire);
    if (page == nullptr) continue;
    for (std::size_t w = 0; w < kWords; ++w) {
      const std::uint64_t bits = take((*page)[w]);
      for (std::size_t b = 0; b < kBits; ++b) {
        if ((bits >> b & 1) != 0) function(static_cast<int>((p * kWords + w) * kBits + b));
      }
    }
  }
}

void FdRegistry::shut_all() {
  for_each([](std::atomic<std::uint64_t>& word) { return word.load(); },
           [](int fd) { ::shutdown(fd, SHUT_RDWR); });  // fails for other descriptors
}

void FdRegistry::close_in_child() {
  in_child_.store(true);
  for_each([](std::atomic<std::uint64_t>& word) { return word.exchange(0); },
           [](int fd) { ::close(fd); });
}

}  // namespace pccl
