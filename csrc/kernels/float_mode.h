// The floating-point mode in which kernels compute: the default one, whatever the calling thread
// has. Threads of the program may flush denormals (torch.set_flush_denormal, libraries built with
// -ffast-math), trap, or round otherwise, and which thread adds is chance: the sum of one element
// would have other bits at another rank.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace pccl {

/// While it lives the calling thread rounds to nearest even, keeps denormals and does not trap.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : before_(read()) { change(kDefault); }
  ~DefaultFloatMode() { change(before_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__SSE2__)
  using Mode = std::uint32_t;
  static constexpr Mode kDefault = 0x1F80;
  static constexpr Mode kBits = 0xFFC0;  // the others say what has happened
  static Mode read() { return _mm_getcsr(); }
  static void write(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  using Mode = std::uint64_t;
  static constexpr Mode kDefault = 0;
  static constexpr Mode kBits = ~Mode{0};
  static Mode read() {
    Mode mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  using Mode = std::uint32_t;
  static constexpr Mode kDefault = 0;
  static constexpr Mode kBits = 0;
  static Mode read() { return 0; }
  static void write(Mode) {}
#endif
  /// No look at memory is moved over the change.
  void change(Mode to) const {
    asm volatile("" : : : "memory");
    if ((before_ & kBits) != kDefault) write(to);
    asm volatile("" : : : "memory");
  }

  const Mode before_;
};

}  // namespace pccl
