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
  std::uint64_t hash = 0;  // of the story
};

struct Wishes {
  bool trace = false;  // prints the story
  bool fixed = false;
  bool liars = false;  // one member lies
};

[[nodiscard]] Walked walk_engines(std::uint64_t seed, const Wishes& wishes);
/// Without a run or a master: fixed groups.
[[nodiscard]] Walked walk_fixed(std::uint64_t seed, const Wishes& wishes);

}  // namespace pccl::sim
