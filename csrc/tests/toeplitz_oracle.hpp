// SPDX-License-Identifier: Apache-2.0
#pragma once

// Noise of Toeplitz mechanisms by their definition (docs/guarantees/stream.md), whole vectors at a time: all z and x of
// a block are kept. It knows no memory settings, tiles or threads.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dpftrl/noise/toeplitz.hpp"

namespace oracle {

template <class T>
class Toeplitz {
 public:
  using V = std::vector<T>;

  explicit Toeplitz(const dpftrl::ToeplitzConfig& config) : config_(config) {}

  V step() {
    make();
    pending_.clear();
    return sum_;
  }

  V residual() {
    make();
    V total = pending_[0];
    for (std::size_t i = 1; i < pending_.size(); ++i) total = plus(total, pending_[i]);
    pending_.clear();
    return total;
  }

  // Of a step that was taken.
  V prefix(std::uint64_t t) const {
    V total = x_[0];
    for (std::uint64_t s = 1; s < t; ++s) total = plus(total, x_[s]);
    return total;
  }

  void advance_to(std::uint64_t t) {
    while (x_.size() < t) make();
  }

  void restart() {
    ++block_;
    z_.clear();
    x_.clear();
    buffers_.clear();
  }

 private:
  static V plus(V a, const V& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = a[i] + b[i];
    return a;
  }
  static V plus_product(V a, const V& b, T c) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const T product = b[i] * c;
      a[i] = a[i] + product;
    }
    return a;
  }
  static V minus_product(V a, const V& b, T c) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const T product = b[i] * c;
      a[i] = a[i] - product;
    }
    return a;
  }

  void make() {
    const dpftrl::NodeStream stream{config_.key, config_.rounds, config_.purpose, block_,
                                    dpftrl::node_id(0, x_.size())};
    V z(config_.size);
    const auto& kernels = dpftrl::DtypeTraits<T>::kernels(dpftrl::kScalarKernels);
    kernels.fill(stream, config_.offset, config_.size, static_cast<T>(config_.std), z.data());
    V x = z;
    const std::size_t before = x_.size();
    const auto first = [&](std::size_t i) { return static_cast<T>(config_.first[i]); };
    const auto second = [&](std::size_t i) { return static_cast<T>(config_.second[i]); };
    const std::size_t count = config_.first.size();
    switch (config_.kind) {
      case dpftrl::ToeplitzKind::taps:
        for (std::size_t j = 1; j < count && j <= before; ++j) x = plus_product(x, z_[before - j], first(j));
        break;
      case dpftrl::ToeplitzKind::bands:
        for (std::size_t j = 1; j < count && j <= before; ++j) x = minus_product(x, x_[before - j], first(j));
        if (first(0) != T(1)) {
          for (T& value : x) value = value / first(0);
        }
        break;
      case dpftrl::ToeplitzKind::buffers:
        if (before == 0) {
          buffers_.assign(count, x);
          break;
        }
        for (std::size_t i = 0; i < count; ++i) x = minus_product(x, buffers_[i], second(i));
        for (std::size_t i = 0; i < count; ++i) {
          for (std::size_t e = 0; e < x.size(); ++e) {
            const T product = buffers_[i][e] * first(i);
            buffers_[i][e] = product + x[e];
          }
        }
        break;
    }
    z_.push_back(z);
    x_.push_back(x);
    pending_.push_back(x);
    sum_ = sum_.empty() ? x : plus(sum_, x);
  }

  dpftrl::ToeplitzConfig config_;
  std::uint32_t block_ = 0;
  std::vector<V> z_, x_, buffers_, pending_;
  V sum_;
};

}  // namespace oracle
