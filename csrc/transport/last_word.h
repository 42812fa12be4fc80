// The end of a link for which memory has run out.
#pragma once

#include <unistd.h>

#include <exception>
#include <new>
#include <string>

namespace pccl {

/// The reason of such an end. It names this process: the reason is told to others, as that of the
/// loss of the peer at the far end.
inline std::string no_memory_for(const std::string& what) {
  return "process " + std::to_string(::getpid()) + ", which says so, has no memory for " + what;
}

/// There was not even memory to report the end of a link. No std::bad_alloc, which an operation
/// would take for its own and give up: all would wait for a report that never comes. The engine
/// ends.
struct NobodyHears final : std::exception {
  [[nodiscard]] const char* what() const noexcept override {
    return "there was no memory to report the end of a link";
  }
};

/// Runs `body`, which ends a link and reports it.
template <typename Body>
void last_word(Body body) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    throw NobodyHears();
  }
}

}  // namespace pccl
