// SPDX-License-Identifier: Apache-2.0

// AVX-512 (F, DQ, CD, BW, VL): one rotate instruction, a leading-zero count, int64 <-> double conversion, and 32
// registers that hold all 16 rows of the rounds without a spill.

#include <immintrin.h>

#include "noise/noise_kernel_simd.hpp"

namespace dpftrl {
namespace {

struct Avx512 {
  static constexpr std::size_t kLanes = 16;
  using U = __m512i;
  using F = __m512;
  struct W {
    __m512i v;
  };
  using D = __m512d;

  static inline U splat(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static inline F splat(float x) { return _mm512_set1_ps(x); }
  static inline D splat(double x) { return _mm512_set1_pd(x); }
  static inline U lane_numbers(std::uint32_t from) {
    return _mm512_add_epi32(splat(from), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  }
  static inline U load(const std::uint32_t* p) { return _mm512_load_si512(p); }
  static inline F load(const float* p) { return _mm512_loadu_ps(p); }
  static inline D load(const double* p) { return _mm512_loadu_pd(p); }
  static inline void store(std::uint32_t* p, U x) { _mm512_store_si512(p, x); }
  static inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static inline void store(double* p, D x) { _mm512_storeu_pd(p, x); }

  static inline U add(U a, U b) { return _mm512_add_epi32(a, b); }
  static inline U bit_xor(U a, U b) { return _mm512_xor_si512(a, b); }
  static inline U bit_and(U a, U b) { return _mm512_and_si512(a, b); }
  static inline U min(U a, U b) { return _mm512_min_epu32(a, b); }
  template <int N>
  static inline U rotl(U x) {
    return _mm512_rol_epi32(x, N);
  }
  static inline bool any_below(U x, std::uint32_t bound) { return _mm512_cmplt_epu32_mask(x, splat(bound)) != 0; }
  static inline U or_low_halves(U x) { return _mm512_mask_set1_epi32(x, 0x5555, -1); }
  static inline W as_words64(U x) { return {x}; }

  static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
  static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static inline F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static inline F from_int(U x) { return _mm512_cvtepi32_ps(x); }
  static inline D add(D a, D b) { return _mm512_add_pd(a, b); }
  static inline D mul(D a, D b) { return _mm512_mul_pd(a, b); }
  static inline D sqrt(D a) { return _mm512_sqrt_pd(a); }
  static inline D from_int64(W x) { return _mm512_cvtepi64_pd(x.v); }

  static inline void normalise(U radius, U& lz, U& word) {
    lz = _mm512_lzcnt_epi32(radius);
    word = _mm512_sllv_epi32(radius, lz);
  }
  static inline void normalise(W radius, D& lz, W& word) {
    const __m512i count = _mm512_lzcnt_epi64(radius.v);
    lz = _mm512_cvtepi64_pd(count);
    word.v = _mm512_sllv_epi64(radius.v, count);
  }
  static inline D unit_interval(W angle) {
    const __m512i bits = _mm512_srli_epi64(_mm512_slli_epi64(angle.v, 3), 12);
    return _mm512_sub_pd(_mm512_castsi512_pd(_mm512_or_si512(bits, _mm512_set1_epi64(0x3ff0000000000000))), splat(1.0));
  }

  template <int Bit>
  static inline void swap_if_bit(U angle, F c, F s, F& first, F& second) {
    const __mmask16 m = _mm512_test_epi32_mask(angle, splat(1u << Bit));
    first = _mm512_mask_blend_ps(m, c, s);
    second = _mm512_mask_blend_ps(m, s, c);
  }
  template <int Bit>
  static inline void swap_if_bit(W angle, D c, D s, D& first, D& second) {
    const __mmask8 m = _mm512_test_epi64_mask(angle.v, _mm512_set1_epi64(1LL << Bit));
    first = _mm512_mask_blend_pd(m, c, s);
    second = _mm512_mask_blend_pd(m, s, c);
  }
  template <int Bit>
  static inline F negate_if_bit(U angle, F x) {
    const __m512i at_top = _mm512_slli_epi32(angle, 31 - Bit);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(x), at_top, splat(0x80000000u), 0x78));  // x ^ (y & z)
  }
  template <int Bit>
  static inline D negate_if_bit(W angle, D x) {
    const __m512i at_top = _mm512_slli_epi64(angle.v, 63 - Bit);
    return _mm512_castsi512_pd(_mm512_ternarylogic_epi64(_mm512_castpd_si512(x), at_top,
                                                         _mm512_set1_epi64(static_cast<long long>(1ULL << 63)), 0x78));
  }
};

}  // namespace

const NoiseKernels kAvx512Kernels = SimdKernels<Avx512>::table("avx512");

}  // namespace dpftrl
