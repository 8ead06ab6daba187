// SPDX-License-Identifier: Apache-2.0

#include "dpftrl/accounting/column_sums.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dpftrl {
namespace {

constexpr std::int64_t kChunk = 1024;  // steps whose sum stays in the fastest cache
constexpr std::int64_t kPollEvery = 1 << 22;

struct Stretch {
  std::int64_t length;
  const std::int64_t* uses;
  std::int64_t n;
};

Stretch stretch_of(const Stretches& all, std::size_t i) {
  return {all.lengths[i], all.uses + all.starts[i], all.starts[i + 1] - all.starts[i]};
}

struct Content {
  std::int64_t length;
  std::string_view uses;
  bool operator==(const Content& other) const { return length == other.length && uses == other.uses; }
};

struct ContentHash {
  std::size_t operator()(const Content& x) const {
    return std::hash<std::string_view>{}(x.uses) ^ (static_cast<std::size_t>(x.length) * 0x9e3779b97f4a7c15U);
  }
};

// For each stretch the first one that is equal to it.
std::vector<std::size_t> first_equal(const Stretches& all) {
  std::unordered_map<Content, std::size_t, ContentHash> known;
  std::vector<std::size_t> first(all.count);
  for (std::size_t i = 0; i < all.count; ++i) {
    const Stretch one = stretch_of(all, i);
    const std::string_view bytes(reinterpret_cast<const char*>(one.uses),
                                 static_cast<std::size_t>(one.n) * sizeof(std::int64_t));
    first[i] = known.emplace(Content{one.length, bytes}, i).first->second;
  }
  return first;
}

// Tells `value(stretch)` of different stretches, and copies the results of equal ones. `work(stretch)` is in
// operations.
template <class Work, class Value>
bool each_stretch(const Stretches& all, std::int64_t work_limit, double* out, const Poll& poll, const Work& work,
                  const Value& value) {
  const std::vector<std::size_t> first = first_equal(all);
  double total = 0;
  for (std::size_t i = 0; i < all.count; ++i) {
    if (first[i] == i) total += work(stretch_of(all, i));
  }
  if (!(total <= static_cast<double>(work_limit))) return false;
  double since = 0;
  for (std::size_t i = 0; i < all.count; ++i) {
    if (first[i] != i) {
      out[i] = out[first[i]];
      continue;
    }
    const Stretch one = stretch_of(all, i);
    since += work(one);
    if (since > static_cast<double>(kPollEvery)) {
      poll();
      since = 0;
    }
    out[i] = value(one);
  }
  return true;
}

double squared_sum(const double* column, std::int64_t size, const Stretch& one) {
  double sum[kChunk];
  double total = 0;
  std::int64_t begun = 0, ended = 0;  // uses whose column begins before the chunk's end, and ends before its start
  for (std::int64_t start = one.uses[0]; start < one.length; start += kChunk) {
    const std::int64_t stop = std::min(start + kChunk, one.length);
    std::fill(sum, sum + (stop - start), 0.0);
    while (begun < one.n && one.uses[begun] < stop) ++begun;
    while (ended < begun && one.uses[ended] + size <= start) ++ended;
    if (ended == one.n) break;
    for (std::int64_t i = ended; i < begun; ++i) {
      const std::int64_t use = one.uses[i];
      const std::int64_t from = std::max(start, use), to = std::min(stop, use + size);
      for (std::int64_t t = from; t < to; ++t) sum[t - start] += column[t - use];
    }
    double part = 0;
    for (std::int64_t t = 0; t < stop - start; ++t) part += sum[t] * sum[t];
    total += part;
  }
  return total;
}

double inner_product(const double* x, const double* y, std::int64_t n) {
  double lane[8] = {};
  std::int64_t t = 0;
  for (; t + 8 <= n; t += 8) {
    for (int i = 0; i < 8; ++i) lane[i] += x[t + i] * y[t + i];
  }
  double total = 0;
  for (; t < n; ++t) total += x[t] * y[t];
  for (const double part : lane) total += part;
  return total;
}

// What the column of a use has in common with itself and with later ones of its stretch.
std::int64_t shared(std::int64_t size, std::int64_t length, std::int64_t use, std::int64_t later) {
  return std::max<std::int64_t>(0, std::min(size - (later - use), length - later));
}

}  // namespace

bool column_sums(const double* column, std::size_t size, const Stretches& stretches, std::int64_t work_limit,
                 double* out, const Poll& poll) {
  const auto n = static_cast<std::int64_t>(size);
  std::vector<double> squares(size + 1, 0.0);
  for (std::size_t t = 0; t < size; ++t) squares[t + 1] = squares[t] + column[t] * column[t];
  const auto work = [n](const Stretch& one) {
    const std::int64_t most = std::min(n, one.length - one.uses[0]);
    return one.n == 1 ? 1.0 : static_cast<double>(one.n) * static_cast<double>(most) + static_cast<double>(one.length);
  };
  return each_stretch(stretches, work_limit, out, poll, work, [&](const Stretch& one) {
    if (one.n == 1) return squares[static_cast<std::size_t>(std::min(n, one.length - one.uses[0]))];
    return squared_sum(column, n, one);
  });
}

bool column_products(const double* column, std::size_t size, double slack, const Stretches& stretches,
                     std::int64_t work_limit, double* out, const Poll& poll) {
  const auto n = static_cast<std::int64_t>(size);
  const auto work = [n](const Stretch& one) {
    const std::int64_t most = std::min(n, one.length - one.uses[0]);
    return static_cast<double>(one.n) * static_cast<double>(one.n + 1) / 2 * static_cast<double>(most);
  };
  return each_stretch(stretches, work_limit, out, poll, work, [&](const Stretch& one) {
    double total = 0;
    for (std::int64_t i = 0; i < one.n; ++i) {
      for (std::int64_t j = i; j < one.n; ++j) {
        const std::int64_t apart = one.uses[j] - one.uses[i];
        const std::int64_t terms = shared(n, one.length, one.uses[i], one.uses[j]);
        if (terms == 0) break;  // later ones have nothing in common with this use, either
        const double product = std::fabs(inner_product(column, column + apart, terms)) + slack;
        total += i == j ? product : 2 * product;
      }
    }
    return total;
  });
}

void buffer_sums(const double* decay, const double* scale, std::size_t k, const Stretches& stretches, double* out,
                 const Poll& poll) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < stretches.count; ++i) longest = std::max(longest, stretches.lengths[i]);
  const std::size_t n = static_cast<std::size_t>(longest) + 1;
  // decay_i^g, and the sums of (decay_i decay_j)^s over s < g.
  std::vector<double> powers(k * n), sums(k * (k + 1) / 2 * n);
  std::size_t pair = 0;
  for (std::size_t i = 0; i < k; ++i) {
    double power = 1;
    for (std::size_t g = 0; g < n; ++g, power *= decay[i]) powers[g * k + i] = power;
  }
  const std::size_t pairs = k * (k + 1) / 2;
  for (std::size_t i = 0; i < k; ++i) {
    for (std::size_t j = i; j < k; ++j, ++pair) {
      const double ratio = decay[i] * decay[j];
      double power = i == j ? 1 : 2, sum = 0;
      for (std::size_t g = 0; g < n; ++g, sum += power, power *= ratio) sums[g * pairs + pair] = sum;
    }
  }
  std::vector<double> state(k);
  const auto work = [k](const Stretch& one) { return static_cast<double>(k * k) * static_cast<double>(one.n); };
  each_stretch(stretches, INT64_MAX, out, poll, work, [&](const Stretch& one) {
    std::fill(state.begin(), state.end(), 0.0);
    double total = 0;
    for (std::int64_t at = 0; at < one.n;) {
      const std::int64_t use = one.uses[at];
      double times = 0;
      while (at < one.n && one.uses[at] == use) ++times, ++at;
      double shift = times;
      for (std::size_t i = 0; i < k; ++i) shift += state[i];
      // Of one use by itself: one sum over all uses would round each term k^2 times a use.
      double part = shift * shift;
      for (std::size_t i = 0; i < k; ++i) state[i] = decay[i] * state[i] + times * scale[i];
      // The steps after it and before the next use, or the end.
      const auto gap = static_cast<std::size_t>((at < one.n ? one.uses[at] : one.length) - use - 1);
      const double* const sum = &sums[gap * pairs];
      std::size_t both = 0;
      for (std::size_t i = 0; i < k; ++i) {
        for (std::size_t j = i; j < k; ++j, ++both) part += state[i] * state[j] * sum[both];
      }
      total += part;
      for (std::size_t i = 0; i < k; ++i) state[i] *= powers[gap * k + i];
    }
    return total;
  });
}

}  // namespace dpftrl
