// PCCL_ASSERT: invariants that stay on in release builds. Throws BrokenInvariant, which only the
// engine's loop and the master's loop catch: a broken invariant stops them, it is never logged
// away.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pccl {

class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <typename... Values>
[[noreturn]] void fail_assert(const char* condition, const char* file, int line,
                              const Values&... values) {
  std::ostringstream text;
  text << file << ":" << line << ": " << condition;
  ((text << " " << values), ...);
  throw BrokenInvariant(text.str());
}

}  // namespace pccl

#define PCCL_ASSERT(condition, ...)                                                   \
  do {                                                                                \
    if (!(condition))                                                                 \
      ::pccl::fail_assert(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
