// copy_streaming: stores that go around the caches, so that an undo log or a large result, which is
// not read soon, does not push out what is in use. They do not fetch what they overwrite, either.
//
// SSE2 is part of every x86-64; elsewhere it is memcpy.
#include <cstdint>
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/reduce.h"

#ifdef PCCL_X86
#include <immintrin.h>
#endif

namespace pccl {
namespace {

#ifdef PCCL_X86

constexpr std::size_t kStreamBytesMin = 4096;  // smaller copies may stay in the caches
constexpr std::size_t kLineBytes = 64;

/// Whole lines; `to` is the begin of one.
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}

PCCL_FOR_AVX2 void stream_lines_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLineBytes) {
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
  }
}

#endif

}  // namespace

void copy_streaming(void* to, const void* from, std::size_t bytes,
                    [[maybe_unused]] InstructionSet set) {
#ifdef PCCL_X86
  if (bytes >= kStreamBytesMin) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const std::size_t head =
        (kLineBytes - reinterpret_cast<std::uintptr_t>(out) % kLineBytes) % kLineBytes;
    const std::size_t lines = (bytes - head) / kLineBytes * kLineBytes;
    std::memcpy(out, in, head);
    const auto stream = set >= InstructionSet::avx2 ? stream_lines_avx2 : stream_lines;
    stream(out + head, in + head, lines);
    _mm_sfence();  // streamed stores are not ordered with later ones otherwise
    std::memcpy(out + head + lines, in + head + lines, bytes - head - lines);
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace pccl
