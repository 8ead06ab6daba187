// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels that make one node's noise, one set a target, and their choice at run time.

#include <cstddef>
#include <cstdint>

#include "dpftrl/noise/stream.hpp"

namespace dpftrl {

// Work on a tile in cache. Element by element, so the same bits from any vector width. Arrays may coincide, not
// overlap otherwise.
template <class T>
struct TileKernels {
  // out[i] = scale * z(stream, first + i): one multiplication, after the transform.
  void (*fill)(const NodeStream& stream, std::uint64_t first, std::size_t n, T scale, T* out);
  // The same of many nodes of one tree, n >= 1: out[k * n + i] is of nodes[k], whatever stream.node is. Up to
  // DtypeTraits::packed coordinates of a superblock share the vectors of the cipher with those of other nodes.
  void (*fill_nodes)(const NodeStream& stream, const std::uint64_t* nodes, std::size_t count, std::uint64_t first,
                     std::size_t n, T scale, T* out);
  // out[i] = a[i] + b[i]
  void (*add)(std::size_t n, const T* a, const T* b, T* out);
  // out[i] = a[i] - b[i]
  void (*subtract)(std::size_t n, const T* a, const T* b, T* out);
  // out[i] = (base[i] + x[0][i] * w[0]) + x[1][i] * w[1] ..., count >= 1; a null base is left out
  void (*weighted_sum)(std::size_t n, const T* base, std::size_t count, const T* const* x, const T* w, T* out);
  // out[i] = z[i] + (left[i] + right[i]) * 0.5
  void (*add_average)(std::size_t n, const T* z, const T* left, const T* right, T* out);
  // The release of sums with this noise (release.hpp). No two arrays overlap.
  void (*release_f32)(std::size_t n, const T* noise, T grid, float divisor, T* remainder, float* sums);
  void (*release_f64)(std::size_t n, const T* noise, T grid, double divisor, T* remainder, double* sums);
};

struct NoiseKernels {
  const char* name;
  TileKernels<float> f32;
  TileKernels<double> f64;
  // 16 blocks from this counter on, in the natural order.
  void (*keystream16)(const Key& key, const Counter& counter, int rounds, std::uint32_t* out);
};

template <class T>
struct DtypeTraits;
template <>
struct DtypeTraits<float> {
  static constexpr std::size_t superblock = kNormals32;
  static constexpr std::size_t packed = 8;
  static constexpr std::uint64_t max_coordinates = kMaxCoordinates32;
  static constexpr const char* name = "float32";
  static const TileKernels<float>& kernels(const NoiseKernels& k) noexcept { return k.f32; }
};
template <>
struct DtypeTraits<double> {
  static constexpr std::size_t superblock = kNormals64;
  static constexpr std::size_t packed = 4;
  static constexpr std::uint64_t max_coordinates = kMaxCoordinates64;
  static constexpr const char* name = "float64";
  static const TileKernels<double>& kernels(const NoiseKernels& k) noexcept { return k.f64; }
};

// Defined one a file under csrc/src. The scalar set is the specification.
extern const NoiseKernels kScalarKernels;
extern const NoiseKernels kAvx2Kernels;
extern const NoiseKernels kAvx512Kernels;
extern const NoiseKernels kNeonKernels;

// Compiled in and able to run on this processor, slowest first; the scalar set is always there.
struct TargetList {
  const NoiseKernels* items[4];
  std::size_t count;
};
TargetList available_targets() noexcept;

// The set with this name, or null when it is not compiled in or the processor lacks it.
const NoiseKernels* find_target(const char* name) noexcept;

// What agrees_with_scalar compares: superblock 5 of this stream, which has a rare radius word (gaussian.hpp), and a
// little before it.
inline constexpr std::uint64_t kSelfCheckSuperblock = 5;
NodeStream self_check_stream(int rounds) noexcept;

// True when the set gives the scalar set's bits on a few blocks of every kind and number of rounds.
bool agrees_with_scalar(const NoiseKernels& kernels) noexcept;

// The fastest available set that agrees with scalar, chosen once, on first use.
const NoiseKernels& active_kernels() noexcept;

// Name of a target that was passed over since it disagreed with scalar, or null.
const char* rejected_target() noexcept;

}  // namespace dpftrl
