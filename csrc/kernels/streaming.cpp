// copy_streaming: stores that go around the caches, so that an undo log or a large result, which is
// not read soon, does not push out what is in use. They do not fetch what they overwrite, either.
//
// SSE2 is part of every x86-64; elsewhere it is memcpy.
#include <cstdint>
#include <cstring>

#include "kernels/reduce.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace pccl {

void copy_streaming(void* to, const void* from, std::size_t bytes) {
#ifdef __SSE2__
  constexpr std::size_t kStreamBytesMin = 4096;  // smaller copies may stay in the caches
  if (bytes >= kStreamBytesMin) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const std::size_t head = (16 - reinterpret_cast<std::uintptr_t>(out) % 16) % 16;
    std::memcpy(out, in, head);
    std::size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
      const auto* source = reinterpret_cast<const __m128i*>(in + i);
      auto* target = reinterpret_cast<__m128i*>(out + i);
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();  // streamed stores are not ordered with later ones otherwise
    std::memcpy(out + i, in + i, bytes - i);
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace pccl
