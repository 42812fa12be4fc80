// What the fuzzers share: NAME [SEED] [COUNT] runs COUNT cases from SEED on and prints the seed of
// the one that fails. No special compiler is needed; a sanitizer makes them sharper.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/random.h"

namespace pccl::fuzz {

inline void require(bool holds, const char* what, std::uint64_t seed) {
  if (holds) return;
  std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), what);
  std::abort();
}

/// Flips, overwrites, inserts, removes, repeats and cuts.
inline void mutate(std::vector<std::byte>& bytes, Random& random) {
  for (std::uint64_t n = 1 + random.below(6); n > 0; --n) {
    if (bytes.empty()) {
      bytes.push_back(static_cast<std::byte>(random.next()));
      continue;
    }
    const auto at = static_cast<std::ptrdiff_t>(random.below(bytes.size()));
    const auto index = static_cast<std::size_t>(at);
    switch (random.below(7)) {
      case 0:
        bytes[index] ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 1:
        bytes[index] = static_cast<std::byte>(random.next());
        break;
      case 2:
        bytes.insert(bytes.begin() + at, static_cast<std::byte>(random.next()));
        break;
      case 3:
        bytes.erase(bytes.begin() + at);
        break;
      case 4: {
        const std::vector<std::byte> part(bytes.begin() + at, bytes.end());
        if (bytes.size() < 100000) bytes.insert(bytes.end(), part.begin(), part.end());
        break;
      }
      case 5:
        bytes.resize(index);
        break;
      default: {
        // Lengths are where parsers break.
        static constexpr unsigned kHeads[] = {0x9B, 0xBB, 0x5B, 0x7B, 0xFF, 0x7F, 0x80, 0x9F};
        bytes[index] = static_cast<std::byte>(kHeads[random.below(8)]);
      }
    }
  }
}

template <typename Case>
int run(int argc, char** argv, std::uint64_t default_count, Case&& one) {
  const std::uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const std::uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : default_count;
  for (std::uint64_t seed = first; seed < first + count; ++seed) one(seed);
  std::printf("%llu cases from seed %llu\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(first));
  return 0;
}

}  // namespace pccl::fuzz
