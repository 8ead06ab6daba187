// SPDX-License-Identifier: Apache-2.0
#pragma once

// The element-by-element loops of the tree, compiled once in each target's file with its vector width.

#include <cstddef>

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
};

template <class T>
constexpr TileKernels<T> tile_kernels(decltype(TileKernels<T>::fill) fill,
                                      decltype(TileKernels<T>::fill_nodes) fill_nodes,
                                      decltype(TileKernels<T>::weighted_sum) weighted_sum) {
  using A = TileArithmetic<T>;
  return {fill, fill_nodes, A::add, A::subtract, weighted_sum, A::add_average};
}

}  // namespace
}  // namespace dpftrl
