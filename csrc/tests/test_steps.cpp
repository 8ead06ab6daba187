// SPDX-License-Identifier: Apache-2.0

// Many steps in one call: the bits of as many calls of step, for trees and Toeplitz mechanisms, every memory setting
// and target; what such a call draws; calls that their poll ends, which leave whole steps.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "dpftrl/infra/float_environment.hpp"
#include "dpftrl/noise/toeplitz.hpp"
#include "dpftrl/noise/tree.hpp"
#include "sources.hpp"

using namespace dpftrl;
using namespace sources;

namespace {

template <class T, class Source, class Config>
void same_as_one_by_one(const Config& config) {
  Source many(config), one(config);
  const std::size_t size = config.size;
  const auto check = [&](std::uint64_t n) {
    std::vector<T> rows(static_cast<std::size_t>(n) * size + 1, T(777)), expected(rows);
    many.steps(n, rows.data(), {});
    for (std::uint64_t i = 0; i < n; ++i) one.step(expected.data() + i * size, {});
    CHECK_SAME_BITS(rows.data(), expected.data(), rows.size());
    CHECK_EQ(many.t(), one.t());
    CHECK_EQ(many.position().last.t, one.position().last.t);
  };
  const auto mix = [&] {
    std::vector<T> x(size), y(size);
    many.residual(x.data(), {}), one.residual(y.data(), {});
    CHECK_SAME_BITS(x.data(), y.data(), size);
    many.step(x.data(), {}), one.step(y.data(), {});
    CHECK_SAME_BITS(x.data(), y.data(), size);
  };
  for (const std::uint64_t n : {0U, 1U, 2U, 33U, 7U, 64U, 5U}) check(n);
  mix();
  check(21);
  many.advance_to(150), one.advance_to(150);  // steps of which nothing was made
  check(19);
  restart(many), restart(one);
  check(11);
  mix();
  check(130);
}

template <class T>
void every_setting() {
  const TargetList targets = available_targets();
  for (std::size_t target = 0; target < targets.count; ++target) {
    for (const std::size_t memory : kMemories) {
      // Within a superblock, over several, over the end of a tile.
      for (const std::size_t size : {1u, 3u, 5u, 8u, 50u, 300u}) {
        if (memory != Memory::kStored && size > 5) continue;
        for (const std::uint64_t offset : {0u, 61u, 126u, 1021u}) {
          for (TreeConfig c : trees(size, offset, memory)) {
            c.kernels = targets.items[target];
            same_as_one_by_one<T, Tree<T>>(c);
          }
          for (ToeplitzConfig c : mechanisms(size, offset, memory)) {
            c.kernels = targets.items[target];
            same_as_one_by_one<T, Toeplitz<T>>(c);
          }
        }
      }
    }
  }
}

// Long calls are made in parts; far steps need all 48 bits of a node.
void long_and_far() {
  const auto compare = [](auto& many, auto& one, std::uint64_t n) {
    std::vector<double> rows(static_cast<std::size_t>(n) * 2), expected(rows);
    many.steps(n, rows.data(), {});
    for (std::uint64_t i = 0; i < n; ++i) one.step(expected.data() + i * 2, {});
    CHECK_SAME_BITS(rows.data(), expected.data(), rows.size());
  };
  for (const TreeConfig& c : trees(2, 60, Memory::kStored)) {
    Tree<double> many(c), one(c);
    compare(many, one, 9000);
  }
  for (const ToeplitzConfig& c : mechanisms(2, 60, Memory::kStored)) {
    Toeplitz<double> many(c), one(c);
    compare(many, one, 9000);
  }
  Tree<double> many(trees(2, 60, Memory::kStored)[0]), one(trees(2, 60, Memory::kStored)[0]);
  many.advance_to(kMaxSteps - 50), one.advance_to(kMaxSteps - 50);
  compare(many, one, 45);
  std::vector<double> rows(12, 5.0);
  CHECK_THROWS(many.steps(6, rows.data(), {}), std::invalid_argument, "2**46");
  CHECK_THROWS(many.steps(std::numeric_limits<std::uint64_t>::max(), rows.data(), {}), std::invalid_argument, "2**46");
  CHECK(std::all_of(rows.begin(), rows.end(), [](double x) { return x == 5.0; }));
  CHECK_EQ(many.t(), kMaxSteps - 5);
  compare(many, one, 5);
  Toeplitz<double> taps(mechanisms(2, 60, Memory::kStored)[1]), taps_one(mechanisms(2, 60, Memory::kStored)[1]);
  std::vector<double> at(2);
  taps.step(at.data(), {}), taps_one.step(at.data(), {});
  CHECK_THROWS(taps.steps(kMaxSteps, rows.data(), {}), std::invalid_argument, "2**46");
  CHECK_EQ(taps.t(), 1u);
  compare(taps, taps_one, 4);
}

// --- what a call draws ---

std::size_t drawn = 0;

void count_fill(const NodeStream&, std::uint64_t, std::size_t n, double, double* out) {
  ++drawn;
  std::fill_n(out, n, 1.0);
}
void count_fill_nodes(const NodeStream&, const std::uint64_t*, std::size_t count, std::uint64_t, std::size_t n, double,
                      double* out) {
  drawn += count;
  std::fill_n(out, count * n, 1.0);
}

void cost() {
  NoiseKernels counting = kScalarKernels;
  counting.f64.fill = count_fill;
  counting.f64.fill_nodes = count_fill_nodes;
  constexpr std::uint64_t n = 10000;
  for (const std::size_t size : {1u, 9u}) {
    std::vector<double> rows(n * size);
    const auto draws = [&](auto source, std::uint64_t part) {
      drawn = 0;
      for (std::uint64_t i = 0; i < n; i += part) source.steps(part, rows.data(), {});
      return drawn;
    };
    for (const std::uint64_t part : {n, std::uint64_t{10}}) {
      for (TreeConfig c : trees(size, 0, Memory::kStored)) {
        c.kernels = &counting;
        // Each node once: as many as steps, or all that are complete.
        std::size_t nodes = n;
        for (std::uint64_t t = n / 2; c.variant == Variant::honaker && t > 0; t /= 2) nodes += t;
        CHECK_EQ(draws(Tree<double>(c), part), nodes);
      }
      for (ToeplitzConfig c : mechanisms(size, 0, Memory::kStored)) {
        c.kernels = &counting;
        CHECK_EQ(draws(Toeplitz<double>(c), part), n);
      }
    }
    for (ToeplitzConfig c : mechanisms(size, 0, Memory::kRegenerate)) {  // what came before is made once a part
      c.kernels = &counting;
      CHECK(draws(Toeplitz<double>(c), n) <= 3 * n);
    }
  }
}

// --- calls that end early ---

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

template <class Source, class Config>
void ended_early(const Config& config) {
  constexpr std::uint64_t n = 60000;
  std::vector<float> expected(n), rows(n, 777.0f);
  Source whole(config);
  whole.steps(n, expected.data(), {});
  for (const int polls : {1, 2}) {
    Source noise(config);
    int left = polls;
    CHECK_THROWS(noise.steps(n, rows.data(), Poll([&] {
                               if (--left == 0) throw Stop();
                             })),
                 Stop, "stop");
    const std::uint64_t taken = noise.t();
    CHECK(taken > 0 && taken < n);
    CHECK_EQ(noise.position().last.t, taken);
    CHECK_SAME_BITS(rows.data(), expected.data(), static_cast<std::size_t>(taken));
    noise.steps(100, rows.data(), {});
    CHECK_SAME_BITS(rows.data(), expected.data() + taken, 100);
  }
}

void interruptions() {
  for (const TreeConfig& c : trees(1, 3, Memory::kStored)) ended_early<Tree<float>>(c);
  for (const ToeplitzConfig& c : mechanisms(1, 3, Memory::kStored)) ended_early<Toeplitz<float>>(c);
}

}  // namespace

int main() {
  const FloatEnvironment guard;
  every_setting<float>();
  every_setting<double>();
  long_and_far();
  cost();
  interruptions();
  return check::report();
}
