// SPDX-License-Identifier: Apache-2.0
#pragma once

// The element-by-element loops of the tree, compiled once in each target's file with its vector width.

#include <cstddef>

#include "dpftrl/noise_kernel.hpp"

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
  static void scale(std::size_t n, const T* x, T w, T* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = x[i] * w;
  }
  static void add_scaled(std::size_t n, const T* a, const T* x, T w, T* out) {
    for (std::size_t i = 0; i < n; ++i) {
      const T product = x[i] * w;
      out[i] = a[i] + product;
    }
  }
  static void add_average(std::size_t n, const T* z, const T* left, const T* right, T* out) {
    for (std::size_t i = 0; i < n; ++i) {
      const T half = (left[i] + right[i]) * T(0.5);
      out[i] = z[i] + half;
    }
  }
};

template <class T>
constexpr TileKernels<T> tile_kernels(decltype(TileKernels<T>::fill) fill) {
  using A = TileArithmetic<T>;
  return {fill, A::add, A::subtract, A::scale, A::add_scaled, A::add_average};
}

}  // namespace
}  // namespace dpftrl
