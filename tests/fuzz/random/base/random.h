// Stands before csrc/base/random.h where a fuzzer walks a simulator (-iquote): the generator of one
// seed draws from the fuzzer's input, as long as that lasts. So what a walk does, or what a liar in
// it says, is what the fuzzer looks for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pccl {

namespace fuzz {
/// What is drawn by the generator that begins with `seed`.
struct Drawn {
  std::uint64_t seed = 0;
  std::span<const std::byte> input;
};
inline Drawn drawn;
}  // namespace fuzz

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {
    if (seed == fuzz::drawn.seed) input_ = fuzz::drawn.input;
  }

  std::uint64_t next() { return input_.empty() ? generate() : read(8); }
  std::uint64_t below(std::uint64_t n) {
    if (input_.empty()) return generate() % n;
    return read(n <= 256 ? 1 : n <= 65536 ? 2 : 8) % n;
  }
  double unit() {
    if (input_.empty()) return static_cast<double>(generate() >> 11) * 0x1.0p-53;
    return static_cast<double>(read(2)) * 0x1.0p-16;
  }

 private:
  std::uint64_t generate() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::uint64_t read(std::size_t bytes) {
    std::uint64_t number = 0;
    const auto taken = input_.first(std::min(bytes, input_.size()));
    for (const std::byte byte : taken) number = number << 8 | static_cast<std::uint64_t>(byte);
    input_ = input_.subspan(taken.size());
    return number;
  }

  std::uint64_t state_;
  std::span<const std::byte> input_;
};

}  // namespace pccl
