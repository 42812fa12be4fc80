// Runs a test where the process may have no more of something.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace pccl::test {

/// Of address space, by this process.
inline std::size_t mapped_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// Runs `function` while this process may have so much of a resource.
template <typename Function>
void limited_to(decltype(RLIMIT_AS) resource, std::size_t limit, const Function& function) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(resource, &before), 0);
  const rlimit little{limit, before.rlim_max};
  ASSERT_EQ(::setrlimit(resource, &little), 0);
  function();
  ASSERT_EQ(::setrlimit(resource, &before), 0);
}

}  // namespace pccl::test
