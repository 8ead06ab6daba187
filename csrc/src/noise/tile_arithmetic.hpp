// SPDX-License-Identifier: Apache-2.0
#pragma once

// The element-by-element loops of the tree, compiled once in each target's file with its vector width.

#include <math.h>

#include <cstddef>
#include <type_traits>

#include "dpftrl/noise/noise_kernel.hpp"

namespace dpftrl {
namespace {

template <class T>
struct TileArithmetic {
  static void add(std::size_t n, const T* a, const T* b, T* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
  }
  static void subtract(std::size_t n, const T* a, const T* b, T* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = a[i] - b[i];
  }
  static void weighted_sum(std::size_t n, const T* base, std::size_t count, const T* const* x, const T* w, T* out) {
    for (std::size_t i = 0; i < n; ++i) {
      T sum = x[0][i] * w[0];
      if (base != nullptr) sum = base[i] + sum;
      for (std::size_t j = 1; j < count; ++j) {
        const T product = x[j][i] * w[j];
        sum = sum + product;
      }
      out[i] = sum;
    }
  }
  static void add_average(std::size_t n, const T* z, const T* left, const T* right, T* out) {
    for (std::size_t i = 0; i < n; ++i) {
      const T half = (left[i] + right[i]) * T(0.5);
      out[i] = z[i] + half;
    }
  }
  template <class G>
  static void release(std::size_t n, const T* noise, T grid, G divisor, T* remainder, G* sums) {
    // A division by a power of two is a multiplication, to the bit, and takes a fraction of its time.
    int exponent;
    if (frexp(static_cast<double>(divisor), &exponent) == 0.5) {
      const G factor = 1 / divisor;
      release_each(n, noise, grid, remainder, sums, [factor](G w) { return w * factor; });
    } else {
      release_each(n, noise, grid, remainder, sums, [divisor](G w) { return w / divisor; });
    }
  }

 private:
  template <class G, class Divided>
  static void release_each(std::size_t n, const T* noise, T grid, T* remainder, G* sums, const Divided& divided) {
    using Wider = std::conditional_t<(sizeof(G) > sizeof(T)), G, T>;
    const T cells = 1 / grid;
    for (std::size_t i = 0; i < n; ++i) {
      const T noisy = static_cast<T>(static_cast<Wider>(noise[i]) + static_cast<Wider>(sums[i]));
      const T x = remainder[i] + noisy;
      const T w = floor_of(x * cells + T(0.5)) * grid;
      remainder[i] = x - w;
      sums[i] = divided(static_cast<G>(w));
    }
  }
  // C's functions: those of <cmath> are inline, with external linkage.
  static float floor_of(float x) { return floorf(x); }
  static double floor_of(double x) { return floor(x); }
};

template <class T>
constexpr TileKernels<T> tile_kernels(decltype(TileKernels<T>::fill) fill,
                                      decltype(TileKernels<T>::fill_nodes) fill_nodes,
                                      decltype(TileKernels<T>::weighted_sum) weighted_sum) {
  using A = TileArithmetic<T>;
  return {fill,
          fill_nodes,
          A::add,
          A::subtract,
          weighted_sum,
          A::add_average,
          A::template release<float>,
          A::template release<double>};
}

}  // namespace
}  // namespace dpftrl
