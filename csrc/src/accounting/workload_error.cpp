// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "dpftrl/accounting/workload.hpp"
#include "dpftrl/noise/node.hpp"

namespace dpftrl {
namespace {

// U and V, or their coefficients on one normal.
struct Iterate {
  double u = 0.0, v = 0.0;

  void step(const Workload& workload, double rate, double x) noexcept {
    v = workload.momentum * v + (1.0 - workload.momentum) * x - workload.decay * u;
    u += rate * v;
  }
};

// Second moments of (U, V) over normals that no longer enter.
struct Moments {
  double uu = 0.0, uv = 0.0, vv = 0.0;

  void add(const Iterate& of) noexcept {
    uu += of.u * of.u;
    uv += of.u * of.v;
    vv += of.v * of.v;
  }

  void step(const Workload& workload, double rate) noexcept {
    const double g = workload.momentum, w = workload.decay;
    const double new_vv = g * g * vv - 2.0 * g * w * uv + w * w * uu;
    const double mixed = g * uv - w * uu;  // Cov(U_(t-1), V_t)
    uu += rate * (2.0 * mixed + rate * new_vv);
    uv = mixed + rate * new_vv;
    vv = new_vv;
  }
};

void equal_rates(const double* inverse, std::size_t size, const Workload& workload, const Blocks& blocks,
                 double* variance) {
  std::size_t longest = 0;
  for (const auto& [steps, count] : blocks) longest = std::max(longest, steps);
  std::vector<Moments> within(longest);
  Moments sum;
  Iterate at;
  for (std::size_t t = 0; t < longest; ++t) {
    at.step(workload, 1.0, t < size ? inverse[t] : 0.0);
    sum.add(at);
    within[t] = sum;
  }
  Moments before;
  for (const auto& [steps, count] : blocks) {
    for (std::size_t block = 0; block < count; ++block) {
      for (std::size_t t = 0; t < steps; ++t) {
        before.step(workload, 1.0);
        *variance++ = before.uu + within[t].uu;
      }
      before.uu += within[steps - 1].uu;
      before.uv += within[steps - 1].uv;
      before.vv += within[steps - 1].vv;
    }
  }
}

}  // namespace

void workload_error(const double* inverse, std::size_t size, const Workload& workload, const Blocks& blocks,
                    double* variance) {
  if (workload.rates == nullptr) return equal_rates(inverse, size, workload, blocks, variance);
  std::vector<double> u(size), v(size);  // coefficients of U and V on the normals of age 0, 1, ..
  const double g = workload.momentum, w = workload.decay;
  Moments old;
  std::size_t step = 0;
  for (const auto& [steps, count] : blocks) {
    for (std::size_t block = 0; block < count; ++block) {
      std::size_t live = 0;
      for (std::size_t t = 0; t < steps; ++t, ++step) {
        const double rate = workload.rates[step];
        if (live == size) {
          old.add({u[size - 1], v[size - 1]});
        } else {
          ++live;
        }
        old.step(workload, rate);
        double sum = 0.0;
        for (std::size_t j = live; j-- > 0;) {
          const double last_u = j == 0 ? 0.0 : u[j - 1], last_v = j == 0 ? 0.0 : v[j - 1];
          v[j] = g * last_v + (1.0 - g) * inverse[j] - w * last_u;
          u[j] = last_u + rate * v[j];
          sum += u[j] * u[j];
        }
        *variance++ = old.uu + sum;
      }
      for (std::size_t j = 0; j < live; ++j) old.add({u[j], v[j]});
    }
  }
}

void workload_error_buffers(const double* decay, const double* scale, std::size_t k, const Workload& workload,
                            const Blocks& blocks, double* variance) {
  const std::size_t m = k + 2;  // U, V, s_1 .. s_k
  std::vector<double> covariance(m * m), image(m * m), column(m), noise(m);
  // The state after a step, from the one before and the new normal z.
  const auto advance = [&](double* state, double rate, double z) {
    double x = z;
    for (std::size_t i = 0; i < k; ++i) x -= scale[i] * state[2 + i];
    for (std::size_t i = 0; i < k; ++i) state[2 + i] = decay[i] * state[2 + i] + x;
    Iterate iterate{state[0], state[1]};
    iterate.step(workload, rate, x);
    state[0] = iterate.u;
    state[1] = iterate.v;
  };
  std::size_t step = 0;
  for (const auto& [steps, count] : blocks) {
    for (std::size_t block = 0; block < count; ++block) {
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < m; ++j) {
          if (i >= 2 || j >= 2) covariance[i * m + j] = 0.0;
        }
      }
      for (std::size_t t = 0; t < steps; ++t, ++step) {
        const double rate = workload.rate(step);
        for (std::size_t j = 0; j < m; ++j) {  // row j of the symmetric covariance is its column j
          std::copy_n(&covariance[j * m], m, column.begin());
          advance(column.data(), rate, 0.0);
          for (std::size_t i = 0; i < m; ++i) image[i * m + j] = column[i];
        }
        std::fill(noise.begin(), noise.end(), 0.0);
        advance(noise.data(), rate, 1.0);
        for (std::size_t i = 0; i < m; ++i) {
          advance(&image[i * m], rate, 0.0);
          for (std::size_t j = 0; j < m; ++j) covariance[i * m + j] = image[i * m + j] + noise[i] * noise[j];
        }
        *variance++ = covariance[0];
      }
    }
  }
}

namespace {

// Of trees, x_t = n_t - n_(t-1), n_t = carry + sum over live l of w_l r_l as in prefix_error.cpp. With
// W_t = V_t - (1 - momentum) n_t the recursion asks for n_t alone:
//
//   W_(t+1) = momentum W_t - decay U_t - (1 - momentum)^2 n_t,  U_t = U_(t-1) + rate_t (W_t + (1 - momentum) n_t),
//
// and the state needs of the past only how U and W covary with the carry and with the live nodes.
class TreeIterate {
 public:
  TreeIterate(bool honaker, const Workload& workload) noexcept : honaker_(honaker), workload_(workload) {
    for (int l = 0; l < kLevels; ++l) weight_[index(l)] = honaker ? honaker_weight<double>(l) : 1.0;
  }

  double step(double rate) noexcept {
    ++t_;
    Iterate merged;
    const int top = lowest_bit(t_);
    for (int l = 0; l < top; ++l) merged = merge(live_[index(l)], merged);
    live_[index(top)] = merged;
    Iterate with = with_carry_;  // covariances of n_t with U_(t-1) and W_t
    double variance = carry_;
    for (std::uint64_t rest = t_; rest != 0; rest &= rest - 1) {
      const std::size_t l = index(lowest_bit(rest));
      with.u += weight_[l] * live_[l].u;
      with.v += weight_[l] * live_[l].v;
      variance += weight_[l];
    }
    const double g = workload_.momentum, w = workload_.decay, b = 1.0 - g;
    // U_t, with rate (W_t + b n_t) added to U_(t-1)
    const double moved_vv = vv_ + 2.0 * b * with.v + b * b * variance;
    const double uu = uu_ + rate * (2.0 * (uv_ + b * with.u) + rate * moved_vv);
    const double uw = uv_ + rate * (vv_ + b * with.v);
    const double un = with.u + rate * (with.v + b * variance);
    // W_(t+1)
    const double n = b * b;
    uv_ = g * uw - w * uu - n * un;
    vv_ = g * g * vv_ + w * w * uu + n * n * variance - 2.0 * g * w * uw - 2.0 * g * n * with.v + 2.0 * w * n * un;
    uu_ = uu;
    for (std::uint64_t rest = t_; rest != 0; rest &= rest - 1) {
      Iterate& one = live_[index(lowest_bit(rest))];
      advance(one, rate, 1.0);  // w_l Var(r_l) = 1
    }
    advance(with_carry_, rate, carry_);
    return uu_;
  }

  // As in prefix_error.cpp: the noise at the end of the tree joins the carry. W holds the noise n_t of the last step,
  // the carry that of the completed tree: the difference enters with the next step.
  void restart(bool completed) noexcept {
    const int height = highest_bit(next_power_of_two(t_));
    if (completed && (t_ & (t_ - 1)) != 0) {
      Iterate merged;
      for (int l = 0; l < height; ++l) {
        const bool left_is_live = ((t_ >> l) & 1) != 0;
        merged = left_is_live ? merge(live_[index(l)], merged) : merge(merged, {});
      }
      keep(merged, height);
    } else {
      for (std::uint64_t rest = t_; rest != 0; rest &= rest - 1) {
        const int l = lowest_bit(rest);
        keep(live_[index(l)], l);
      }
    }
    t_ = 0;
  }

 private:
  static constexpr int kLevels = 64;
  static std::size_t index(int level) noexcept { return static_cast<std::size_t>(level); }

  Iterate merge(const Iterate& left, const Iterate& right) const noexcept {
    return honaker_ ? Iterate{0.5 * (left.u + right.u), 0.5 * (left.v + right.v)} : Iterate{};
  }

  void keep(const Iterate& one, int level) noexcept {
    with_carry_.u += weight_[index(level)] * one.u;
    with_carry_.v += weight_[index(level)] * one.v;
    carry_ += weight_[index(level)];
  }

  // Covariances of U and W with something whose covariance with n_t is `with_n`.
  void advance(Iterate& one, double rate, double with_n) const noexcept {
    const double g = workload_.momentum, b = 1.0 - g;
    one.u += rate * (one.v + b * with_n);
    one.v = g * one.v - workload_.decay * one.u - b * b * with_n;
  }

  bool honaker_;
  Workload workload_;
  std::uint64_t t_ = 0;
  double carry_ = 0.0;
  double uu_ = 0.0, uv_ = 0.0, vv_ = 0.0;  // of U_t and W_(t+1)
  Iterate with_carry_;
  std::array<double, kLevels> weight_{};
  std::array<Iterate, kLevels> live_{};
};

}  // namespace

void workload_error_trees(const EqualTrees* trees, std::size_t size, bool honaker, const Workload& workload,
                          double* variance) noexcept {
  TreeIterate iterate(honaker, workload);
  std::size_t step = 0;
  for (std::size_t i = 0; i < size; ++i) {
    for (std::uint64_t tree = 0; tree < trees[i].count; ++tree) {
      for (std::uint64_t t = 0; t < trees[i].steps; ++t) *variance++ = iterate.step(workload.rate(step++));
      iterate.restart(trees[i].completed);
    }
  }
}

}  // namespace dpftrl
