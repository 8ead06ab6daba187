// SPDX-License-Identifier: Apache-2.0
#pragma once

// Round to nearest even, no flush to zero, for the life of the guard. Another library in the process may have
// changed either (torch.set_flush_denormal does), and the stream's bits depend on both.

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace dpftrl {

class FloatEnvironment {
 public:
  FloatEnvironment() noexcept : saved_(read()) { write(kDefault); }
  ~FloatEnvironment() { write(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__) || defined(_M_X64)
  using Word = unsigned int;
  static constexpr Word kDefault = 0x1f80;  // all exceptions masked, nearest even, no FTZ, no DAZ
  static Word read() noexcept { return _mm_getcsr(); }
  static void write(Word w) noexcept { _mm_setcsr(w); }
#elif defined(__aarch64__) && defined(__GNUC__)
  using Word = std::uint64_t;
  static constexpr Word kDefault = 0;
  static Word read() noexcept {
    Word w;
    __asm__ volatile("mrs %0, fpcr" : "=r"(w));
    return w;
  }
  static void write(Word w) noexcept { __asm__ volatile("msr fpcr, %0" : : "r"(w)); }
#else
#error "dpftrl: say how to set the rounding mode on this processor"
#endif
  Word saved_;
};

}  // namespace dpftrl
