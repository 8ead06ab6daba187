// SPDX-License-Identifier: Apache-2.0

// NEON (aarch64): a superblock in four parts of 4 blocks. Rotation by 16 reverses half-words; by 8 it is a byte table;
// by 12 and 7 a shift with insert.

#include <arm_neon.h>

#include "noise/noise_kernel_simd.hpp"

namespace dpftrl {
namespace {

struct Neon {
  static constexpr std::size_t kLanes = 4;
  using U = uint32x4_t;
  using F = float32x4_t;
  struct W {
    uint64x2_t v;
  };
  using D = float64x2_t;

  static inline U splat(std::uint32_t x) { return vdupq_n_u32(x); }
  static inline F splat(float x) { return vdupq_n_f32(x); }
  static inline D splat(double x) { return vdupq_n_f64(x); }
  static inline U lane_numbers(std::uint32_t from) {
    const std::uint32_t base[4] = {0, 1, 2, 3};
    return vaddq_u32(vdupq_n_u32(from), vld1q_u32(base));
  }
  static inline U load(const std::uint32_t* p) { return vld1q_u32(p); }
  static inline F load(const float* p) { return vld1q_f32(p); }
  static inline D load(const double* p) { return vld1q_f64(p); }
  static inline void store(std::uint32_t* p, U x) { vst1q_u32(p, x); }
  static inline void store(float* p, F x) { vst1q_f32(p, x); }
  static inline void store(double* p, D x) { vst1q_f64(p, x); }

  static inline U add(U a, U b) { return vaddq_u32(a, b); }
  static inline U bit_xor(U a, U b) { return veorq_u32(a, b); }
  static inline U bit_and(U a, U b) { return vandq_u32(a, b); }
  static inline U min(U a, U b) { return vminq_u32(a, b); }
  template <int N>
  static inline U rotl(U x) {
    if constexpr (N == 16) {
      return vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(x)));
    } else if constexpr (N == 8) {
      const std::uint8_t order[16] = {3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14};
      return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(x), vld1q_u8(order)));
    } else {
      return vsriq_n_u32(vshlq_n_u32(x, N), x, 32 - N);
    }
  }
  static inline bool any_below(U x, std::uint32_t bound) { return vminvq_u32(x) < bound; }
  static inline U or_low_halves(U x) { return vorrq_u32(x, vreinterpretq_u32_u64(vdupq_n_u64(0xffffffffu))); }
  static inline W as_words64(U x) { return {vreinterpretq_u64_u32(x)}; }

  static inline F add(F a, F b) { return vaddq_f32(a, b); }
  static inline F mul(F a, F b) { return vmulq_f32(a, b); }
  static inline F sqrt(F a) { return vsqrtq_f32(a); }
  static inline F from_int(U x) { return vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }
  static inline D add(D a, D b) { return vaddq_f64(a, b); }
  static inline D mul(D a, D b) { return vmulq_f64(a, b); }
  static inline D sqrt(D a) { return vsqrtq_f64(a); }
  static inline D from_int64(W x) { return vcvtq_f64_s64(vreinterpretq_s64_u64(x.v)); }

  static inline void normalise(U radius, U& lz, U& word) {
    lz = vclzq_u32(radius);
    word = vshlq_u32(radius, vreinterpretq_s32_u32(lz));
  }
  // Rare words never come here, so the leading bit is in the high half.
  static inline void normalise(W radius, D& lz, W& word) {
    const uint64x2_t count = vshrq_n_u64(vreinterpretq_u64_u32(vclzq_u32(vreinterpretq_u32_u64(radius.v))), 32);
    lz = vcvtq_f64_u64(count);
    word.v = vshlq_u64(radius.v, vreinterpretq_s64_u64(count));
  }
  static inline D unit_interval(W angle) {
    const uint64x2_t bits = vshrq_n_u64(vshlq_n_u64(angle.v, 3), 12);
    return vsubq_f64(vreinterpretq_f64_u64(vorrq_u64(bits, vdupq_n_u64(0x3ff0000000000000))), splat(1.0));
  }

  template <int Bit>
  static inline void swap_if_bit(U angle, F c, F s, F& first, F& second) {
    const uint32x4_t m = vtstq_u32(angle, vdupq_n_u32(1u << Bit));
    first = vbslq_f32(m, s, c);
    second = vbslq_f32(m, c, s);
  }
  template <int Bit>
  static inline void swap_if_bit(W angle, D c, D s, D& first, D& second) {
    const uint64x2_t m = vtstq_u64(angle.v, vdupq_n_u64(std::uint64_t{1} << Bit));
    first = vbslq_f64(m, s, c);
    second = vbslq_f64(m, c, s);
  }
  template <int Bit>
  static inline F negate_if_bit(U angle, F x) {
    const uint32x4_t sign = vandq_u32(vshlq_u32(angle, vdupq_n_s32(31 - Bit)), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), sign));
  }
  template <int Bit>
  static inline D negate_if_bit(W angle, D x) {
    const uint64x2_t sign = vandq_u64(vshlq_u64(angle.v, vdupq_n_s64(63 - Bit)), vdupq_n_u64(std::uint64_t{1} << 63));
    return vreinterpretq_f64_u64(veorq_u64(vreinterpretq_u64_f64(x), sign));
  }
};

}  // namespace

const NoiseKernels kNeonKernels = SimdKernels<Neon>::table("neon");

}  // namespace dpftrl
