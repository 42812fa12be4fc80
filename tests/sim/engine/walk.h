// One walk: a run under one master, its members, and what goes wrong, all from a seed.
#pragma once

#include <cstdint>
#include <string>

namespace pccl::sim {

struct Walked {
  std::string violation;  // empty: none
  std::uint64_t calls = 0;
  std::uint64_t messages = 0;
  std::uint64_t bits = 0;
  std::uint64_t fetched = 0;
  std::string sizes;  // of memory, where asked for
};

/// `trace`: prints the story.
[[nodiscard]] Walked walk_engines(std::uint64_t seed, bool trace);

}  // namespace pccl::sim
