// SPDX-License-Identifier: Apache-2.0

// AVX2: a superblock in two halves of 8 blocks. Rotations by 16 and 8 are one byte shuffle each. There is no
// leading-zero count, unsigned comparison or int64 conversion: a float conversion of the top 24 bits gives the
// exponent exactly (rare words never come here), and int64 -> double goes through two exact halves whose
// sum rounds once, as the conversion itself does.

#include <immintrin.h>

#include "noise/noise_kernel_simd.hpp"

namespace dpftrl {
namespace {

struct Avx2 {
  static constexpr std::size_t kLanes = 8;
  using U = __m256i;
  using F = __m256;
  struct W {
    __m256i v;
  };
  using D = __m256d;

  static inline U splat(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static inline __m256i splat64(std::uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
  static inline F splat(float x) { return _mm256_set1_ps(x); }
  static inline D splat(double x) { return _mm256_set1_pd(x); }
  static inline U lane_numbers(std::uint32_t from) {
    return _mm256_add_epi32(splat(from), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static inline U load(const std::uint32_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
  static inline F load(const float* p) { return _mm256_loadu_ps(p); }
  static inline D load(const double* p) { return _mm256_loadu_pd(p); }
  static inline void store(std::uint32_t* p, U x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }
  static inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static inline void store(double* p, D x) { _mm256_storeu_pd(p, x); }

  static inline U add(U a, U b) { return _mm256_add_epi32(a, b); }
  static inline U bit_xor(U a, U b) { return _mm256_xor_si256(a, b); }
  static inline U bit_and(U a, U b) { return _mm256_and_si256(a, b); }
  static inline U min(U a, U b) { return _mm256_min_epu32(a, b); }
  template <int N>
  static inline U rotl(U x) {
    if constexpr (N == 16) {
      return _mm256_shuffle_epi8(x, _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1,
                                                     6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    } else if constexpr (N == 8) {
      return _mm256_shuffle_epi8(x, _mm256_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2,
                                                     7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14));
    } else {
      return _mm256_or_si256(_mm256_slli_epi32(x, N), _mm256_srli_epi32(x, 32 - N));
    }
  }
  static inline bool any_below(U x, std::uint32_t bound) {
    const U last = splat(bound - 1);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_min_epu32(x, last), x)) != 0;
  }
  static inline U or_low_halves(U x) { return _mm256_or_si256(x, splat64(0xffffffffu)); }
  static inline W as_words64(U x) { return {x}; }

  static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
  static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static inline F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static inline F from_int(U x) { return _mm256_cvtepi32_ps(x); }
  static inline D add(D a, D b) { return _mm256_add_pd(a, b); }
  static inline D mul(D a, D b) { return _mm256_mul_pd(a, b); }
  static inline D sqrt(D a) { return _mm256_sqrt_pd(a); }

  // Integers below 2^52 in 64-bit lanes, exactly.
  static inline D from_small64(__m256i x) {
    return _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(x, splat64(0x4330000000000000))), splat(0x1p52));
  }
  // high * 2^32 + low with high signed: 2^84 + 2^63 + high * 2^32 and 2^52 + low are exact doubles.
  static inline D from_int64(W x) {
    const __m256i high = _mm256_xor_si256(_mm256_srli_epi64(x.v, 32), splat64(0x4530000080000000));
    const __m256i low = _mm256_blend_epi32(x.v, splat64(0x4330000000000000), 0xaa);
    const D upper = _mm256_sub_pd(_mm256_castsi256_pd(high), splat(0x1p84 + 0x1p63 + 0x1p52));
    return _mm256_add_pd(upper, _mm256_castsi256_pd(low));
  }

  static inline void normalise(U radius, U& lz, U& word) {
    const __m256i exponent =
        _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srli_epi32(radius, 8))), 23);
    lz = _mm256_sub_epi32(splat(127u + 23u), exponent);
    word = _mm256_sllv_epi32(radius, lz);
  }
  static inline void normalise(W radius, D& lz, W& word) {
    const __m256i exponent = _mm256_srli_epi64(_mm256_castpd_si256(from_small64(_mm256_srli_epi64(radius.v, 40))), 52);
    const __m256i count = _mm256_sub_epi64(splat64(1023 + 23), exponent);
    lz = from_small64(count);
    word.v = _mm256_sllv_epi64(radius.v, count);
  }
  static inline D unit_interval(W angle) {
    const __m256i bits = _mm256_srli_epi64(_mm256_slli_epi64(angle.v, 3), 12);
    return _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(bits, splat64(0x3ff0000000000000))), splat(1.0));
  }

  template <int Bit>
  static inline void swap_if_bit(U angle, F c, F s, F& first, F& second) {
    const F m = _mm256_castsi256_ps(_mm256_slli_epi32(angle, 31 - Bit));
    first = _mm256_blendv_ps(c, s, m);
    second = _mm256_blendv_ps(s, c, m);
  }
  template <int Bit>
  static inline void swap_if_bit(W angle, D c, D s, D& first, D& second) {
    const D m = _mm256_castsi256_pd(_mm256_slli_epi64(angle.v, 63 - Bit));
    first = _mm256_blendv_pd(c, s, m);
    second = _mm256_blendv_pd(s, c, m);
  }
  template <int Bit>
  static inline F negate_if_bit(U angle, F x) {
    const U sign = _mm256_and_si256(_mm256_slli_epi32(angle, 31 - Bit), splat(0x80000000u));
    return _mm256_xor_ps(x, _mm256_castsi256_ps(sign));
  }
  template <int Bit>
  static inline D negate_if_bit(W angle, D x) {
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi64(angle.v, 63 - Bit), splat64(std::uint64_t{1} << 63));
    return _mm256_xor_pd(x, _mm256_castsi256_pd(sign));
  }
};

}  // namespace

const NoiseKernels kAvx2Kernels = SimdKernels<Avx2>::table("avx2");

}  // namespace dpftrl
