// One loop, compiled for several instruction sets, and run in the best one that this CPU has. The
// results are the same bits in all of them: loops use no operation that some CPU rounds in another
// way (half.h, -ffp-contract=off).
#pragma once

#include <cstdint>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define PCCL_X86 1
#include <cpuid.h>
#define PCCL_FOR_AVX2 __attribute__((target("avx2,f16c")))
#define PCCL_FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#endif

namespace pccl {

/// `plain`: what every CPU of this architecture has (SSE2 on x86-64, NEON on 64-bit ARM).
enum class InstructionSet : std::uint8_t { plain, avx2, avx512 };

#ifdef PCCL_X86
/// By cpuid, since not every compiler knows the word f16c.
inline bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/// Those that this CPU has, the best one last. It is asked once: in a virtual machine each cpuid is
/// a call of its host, which takes microseconds.
inline const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> found = {InstructionSet::plain};
#ifdef PCCL_X86
    if (__builtin_cpu_supports("avx2") && has_f16c()) {
      found.push_back(InstructionSet::avx2);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        found.push_back(InstructionSet::avx512);
      }
    }
#endif
    return found;
  }();
  return sets;
}

// Loops are vectorised also where the rest of the program is built with -O2.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

#ifdef PCCL_X86
template <typename Loop, typename... Args>
PCCL_FOR_AVX2 void run_avx2(Args... args) {
  Loop::loop(args...);
}
template <typename Loop, typename... Args>
PCCL_FOR_AVX512 void run_avx512(Args... args) {
  Loop::loop(args...);
}
#endif

/// Loop::loop has to be PCCL_INLINE, with all that it calls (half.h).
template <typename Loop, typename... Args>
void run_loop(InstructionSet set, Args... args) {
#ifdef PCCL_X86
  if (set == InstructionSet::avx512) return run_avx512<Loop>(args...);
  if (set == InstructionSet::avx2) return run_avx2<Loop>(args...);
#endif
  Loop::loop(args...);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

}  // namespace pccl
