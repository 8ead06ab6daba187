// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tree by its definition (docs/guarantees/stream.md), whole vectors at a time and from nothing at every call:
// recursion for Honaker's averages, a sum over the set bits of t for a prefix. It knows no heads, tiles or threads.

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "dpftrl/noise/tree.hpp"

namespace oracle {

template <class T>
class Tree {
 public:
  explicit Tree(const dpftrl::TreeConfig& config) : config_(config) {}

  std::vector<T> node(int level, std::uint64_t index) const {
    const dpftrl::NodeStream stream{config_.key, config_.rounds, config_.purpose, tree_, dpftrl::node_id(level, index)};
    std::vector<T> z(config_.size);
    const auto& kernels = dpftrl::DtypeTraits<T>::kernels(dpftrl::kScalarKernels);
    kernels.fill(stream, config_.offset, config_.size, static_cast<T>(config_.std), z.data());
    return z;
  }

  std::vector<T> prefix(std::uint64_t t) { return sum(std::nullopt, t); }

  std::vector<T> step() {
    last_ = sum(carry_, ++t_);
    return *last_;
  }

  std::vector<T> residual() {
    const std::optional<std::vector<T>> before = last_;
    std::vector<T> out = step();
    for (std::size_t i = 0; before && i < out.size(); ++i) out[i] = out[i] - (*before)[i];
    return out;
  }

  void advance_to(std::uint64_t t) { t_ = t; }

  void restart(bool complete) {
    std::uint64_t end = t_;
    while (complete && (end & (end - 1)) != 0) ++end;
    carry_ = sum(carry_, end);
    ++tree_;
    t_ = 0;
    averages_.clear();
  }

 private:
  std::vector<T> average(int level, std::uint64_t index) {
    const auto known = averages_.find({level, index});
    if (known != averages_.end()) return known->second;
    std::vector<T> r = node(level, index);
    if (level > 0) {
      const std::vector<T> left = average(level - 1, 2 * index), right = average(level - 1, 2 * index + 1);
      for (std::size_t i = 0; i < r.size(); ++i) {
        const T half = (left[i] + right[i]) * T(0.5);
        r[i] = r[i] + half;
      }
    }
    averages_[{level, index}] = r;
    return r;
  }

  std::vector<T> sum(std::optional<std::vector<T>> total, std::uint64_t t) {
    for (int level = 46; level >= 0; --level) {
      if (((t >> level) & 1) == 0) continue;
      const std::uint64_t index = (t >> level) - 1;
      std::vector<T> term = config_.variant == dpftrl::Variant::vanilla ? node(level, index) : average(level, index);
      if (config_.variant == dpftrl::Variant::honaker) {
        const T weight = static_cast<T>(1.0 / (2.0 - std::pow(2.0, -level)));
        for (T& x : term) x = x * weight;
      }
      if (total) {
        for (std::size_t i = 0; i < term.size(); ++i) term[i] = (*total)[i] + term[i];
      }
      total = std::move(term);
    }
    return *total;
  }

  dpftrl::TreeConfig config_;
  std::uint32_t tree_ = 0;
  std::uint64_t t_ = 0;
  std::optional<std::vector<T>> carry_, last_;
  std::map<std::pair<int, std::uint64_t>, std::vector<T>> averages_;
};

}  // namespace oracle
