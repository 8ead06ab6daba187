// SPDX-License-Identifier: Apache-2.0

// The noise of two steps is correlated, through the nodes that both hold, so the variance of a momentum-smoothed noise
// asks for T^2 covariances. Not one by one: v_t needs of the past only how it covaries with what n_(t+1), n_(t+2), ...
// can hold, which is the carry and what the live nodes bring, at most log2(t) + 1 numbers. They are carried along:
//
//   r_l    what the live node of level l brings: its own noise (vanilla), or the average r (Honaker)
//   n_t    = carry + sum over live l of w_l r_l,  w_l Var(r_l) = 1 for both variants
//   a_l    = Cov(v_(t-1), r_l), a_c = Cov(v_(t-1), carry)
//   c      = Cov(v_(t-1), n_t) = a_c + sum over live l of w_l a_l
//   Var(v_t) = momentum^2 Var(v_(t-1)) + 2 momentum c + Var(n_t)
//   after the step  a_l <- momentum a_l + w_l Var(r_l),  a_c <- momentum a_c + Var(carry)
//
// A new leaf starts with covariance 0, and where nodes are merged r = z + (r_left + r_right)/2 gives the mean of the
// two covariances (Honaker), or the new node's own noise gives 0 (vanilla). All terms are >= 0: nothing cancels.

#include "dpftrl/accounting/prefix_error.hpp"

#include <array>
#include <cmath>

#include "dpftrl/noise/node.hpp"

namespace dpftrl {
namespace {

constexpr int kLevels = 64;

class RunningError {
 public:
  RunningError(bool honaker, double momentum) noexcept : honaker_(honaker), momentum_(momentum) {
    for (int l = 0; l < kLevels; ++l) weight_[index(l)] = honaker ? honaker_weight<double>(l) : 1.0;
  }

  void step() noexcept {
    ++t_;
    double merged = 0.0;  // of the node that leaf t completes
    const int top = lowest_bit(t_);
    for (int l = 0; l < top; ++l) merged = merge(with_live_[index(l)], merged);
    with_live_[index(top)] = merged;

    double covariance = with_carry_, prefix = 0.0;
    for (std::uint64_t rest = t_; rest != 0; rest &= rest - 1) {
      const std::size_t l = index(lowest_bit(rest));
      covariance += weight_[l] * with_live_[l];
      prefix += weight_[l];  // w_l^2 Var(r_l)
      with_live_[l] = momentum_ * with_live_[l] + 1.0;
    }
    variance_ = carry_ + prefix;
    smoothed_ = momentum_ * (momentum_ * smoothed_ + 2.0 * covariance) + variance_;
    with_carry_ = momentum_ * with_carry_ + carry_;
  }

  // The noise at the end of the tree, t or the next power of two, joins the carry; v stays as it is.
  void restart(bool completed) noexcept {
    const int height = highest_bit(next_power_of_two(t_));
    if (completed && (t_ & (t_ - 1)) != 0) {
      double merged = 0.0;  // of the node over the first leaf without a step
      for (int l = 0; l < height; ++l) {
        const bool left_is_live = ((t_ >> l) & 1) != 0;
        merged = left_is_live ? merge(with_live_[index(l)], merged) : merge(merged, 0.0);
      }
      with_carry_ += weight_[index(height)] * merged;
      carry_ += weight_[index(height)];
    } else {
      for (std::uint64_t rest = t_; rest != 0; rest &= rest - 1) {
        const std::size_t l = index(lowest_bit(rest));
        with_carry_ += weight_[l] * with_live_[l];
        carry_ += weight_[l];
      }
    }
    t_ = 0;
  }

  double variance() const noexcept { return variance_; }
  double smoothed() const noexcept { return (1.0 - momentum_) * (1.0 - momentum_) * smoothed_; }

 private:
  static std::size_t index(int level) noexcept { return static_cast<std::size_t>(level); }
  double merge(double left, double right) const noexcept { return honaker_ ? 0.5 * (left + right) : 0.0; }

  bool honaker_;
  double momentum_;
  std::uint64_t t_ = 0;
  double carry_ = 0.0, with_carry_ = 0.0;
  double variance_ = 0.0, smoothed_ = 0.0;
  std::array<double, kLevels> weight_{}, with_live_{};
};

}  // namespace

void prefix_error(const EqualTrees* trees, std::size_t size, bool honaker, double momentum, double* variance,
                  double* smoothed) noexcept {
  RunningError error(honaker, momentum);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::uint64_t tree = 0; tree < trees[i].count; ++tree) {
      for (std::uint64_t t = 0; t < trees[i].steps; ++t) {
        error.step();
        *variance++ = error.variance();
        *smoothed++ = error.smoothed();
      }
      error.restart(trees[i].completed);
    }
  }
}

}  // namespace dpftrl
