// SPDX-License-Identifier: Apache-2.0
#pragma once

// Two ways to spare memory bandwidth where vectors are larger than the caches: stores that do not read the line
// first, and reads that are asked for while the core is still busy with noise. Both are hints: the bytes are the same.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#define DPFTRL_HAS_STREAMING_STORES 1
#endif

namespace dpftrl {

inline constexpr std::size_t kLineBytes = 64;

// Copies past the cache. The last such store of a thread is to be followed by finish_streaming().
inline void copy_streaming(void* to, const void* from, std::size_t bytes) noexcept {
#ifdef DPFTRL_HAS_STREAMING_STORES
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  const std::size_t head = (kLineBytes - reinterpret_cast<std::uintptr_t>(out) % kLineBytes) % kLineBytes;
  if (bytes >= head + kLineBytes) {
    std::memcpy(out, in, head);
    out += head, in += head, bytes -= head;
    for (; bytes >= kLineBytes; out += kLineBytes, in += kLineBytes, bytes -= kLineBytes) {
      const auto* source = reinterpret_cast<const __m128i*>(in);
      auto* line = reinterpret_cast<__m128i*>(out);
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(line, a);
      _mm_stream_si128(line + 1, b);
      _mm_stream_si128(line + 2, c);
      _mm_stream_si128(line + 3, d);
    }
  }
  std::memcpy(out, in, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

inline void finish_streaming() noexcept {
#ifdef DPFTRL_HAS_STREAMING_STORES
  _mm_sfence();
#endif
}

// Asks for these bytes; they need not exist.
inline void prefetch(const void* from, std::size_t bytes) noexcept {
#if defined(__GNUC__)
  for (std::size_t i = 0; i < bytes; i += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + i), 0, 2);
  }
#else
  static_cast<void>(from);
  static_cast<void>(bytes);
#endif
}

}  // namespace dpftrl
