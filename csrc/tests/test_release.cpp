// SPDX-License-Identifier: Apache-2.0

// Sums released with the noise of a step, tile by tile: the bits of a residual in memory, and then one pass over it.
// What lies beside the sums is left alone, and so is everything when a call ends at its poll.

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "check.hpp"
#include "dpftrl/noise/release.hpp"
#include "dpftrl/noise/toeplitz.hpp"
#include "dpftrl/noise/tree.hpp"
#include "sources.hpp"

using namespace dpftrl;
using namespace sources;

namespace {

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

// Sums of floats, a gap, sums of doubles, and the remainder.
template <class T>
struct Sums {
  explicit Sums(std::size_t size)
      : cut(size / 3),
        from(size / 3 + size / 5),
        floats(cut + 2, 777.0f),
        doubles(size - from + 2, 777.0),
        remainder(size, T(0)) {}

  void add(std::uint64_t step) {
    for (std::size_t i = 1; i + 1 < floats.size(); ++i) floats[i] = static_cast<float>(step % 7) * 1.3f - 3.0f;
    for (std::size_t i = 1; i + 1 < doubles.size(); ++i) doubles[i] = static_cast<double>(i % 11) * 0.7;
  }
  Release<T> release() {
    Release<T> to;
    to.pieces.push_back({0, cut, floats.data() + 1, false});
    to.pieces.push_back({cut, cut, nullptr, false});
    to.pieces.push_back({from, remainder.size(), doubles.data() + 1, true});
    to.remainder = remainder.data();
    to.grid = T(0.0625);
    to.divisor = 48;
    return to;
  }
  // The same from noise in memory, one element at a time.
  void release_one_by_one(const std::vector<T>& noise) {
    const auto one = [&](std::size_t i, auto& g) {
      using G = std::decay_t<decltype(g)>;
      volatile double wide = static_cast<double>(noise[i]) + static_cast<double>(g);
      volatile T narrow = noise[i] + static_cast<T>(g);
      T& r = remainder[i];
      volatile T x = r + (sizeof(G) > sizeof(T) ? static_cast<T>(wide) : T(narrow));
      volatile T cell = T(x) / T(0.0625);
      cell = T(cell) + T(0.5);
      const T w = std::floor(T(cell)) * T(0.0625);
      r = T(x) - w;
      g = static_cast<G>(w) / G(48);
    };
    for (std::size_t i = 0; i < cut; ++i) one(i, floats[i + 1]);
    for (std::size_t i = from; i < noise.size(); ++i) one(i, doubles[i - from + 1]);
  }

  std::size_t cut, from;
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<T> remainder;
};

template <class T>
void same(const Sums<T>& a, const Sums<T>& b) {
  CHECK_SAME_BITS(a.floats.data(), b.floats.data(), a.floats.size());
  CHECK_SAME_BITS(a.doubles.data(), b.doubles.data(), a.doubles.size());
  CHECK_SAME_BITS(a.remainder.data(), b.remainder.data(), a.remainder.size());
}

template <class T, class Source, class Config>
void same_as_residual(const Config& config, std::uint64_t steps) {
  Source one(config), other(config);
  Sums<T> found(config.size), expected(config.size);
  std::vector<T> noise(config.size), row(config.size);
  std::uint64_t taken = 0;
  const auto check = [&](std::uint64_t n) {
    for (std::uint64_t i = 0; i < n; ++i, ++taken) {
      found.add(taken), expected.add(taken);
      one.release(found.release(), {});
      other.residual(noise.data(), {});
      expected.release_one_by_one(noise);
      same(found, expected);
      CHECK_EQ(one.t(), other.t());
      CHECK_EQ(one.position().last.t, other.position().last.t);
      CHECK_EQ(one.position().last.tree, other.position().last.tree);
    }
  };
  check(steps);
  one.step(row.data(), {}), other.step(noise.data(), {});
  CHECK_SAME_BITS(row.data(), noise.data(), noise.size());
  check(3);
  one.residual(row.data(), {}), other.residual(noise.data(), {});
  CHECK_SAME_BITS(row.data(), noise.data(), noise.size());
  check(2);
  restart(one), restart(other);
  check(steps);
  const std::uint64_t far = one.t() + 5;
  one.advance_to(far), other.advance_to(far);  // steps of which nothing was made
  check(3);
  restart(one), restart(other);
  one.advance_to(2), other.advance_to(2);
  check(2);
  one.set_position(one.position());  // without its vectors
  check(4);
}

template <class T>
void every_setting() {
  struct Run {
    std::size_t size;
    std::uint64_t offset, steps;
  };
  const TargetList targets = available_targets();
  for (std::size_t target = 0; target < targets.count; ++target) {
    for (const std::size_t memory : kMemories) {
      for (const Run& run : {Run{1, 0, 9}, Run{5, 253, 18}, Run{300, 1021, 9}, Run{9000, 2000, 5}}) {
        const auto set = [&](SourceConfig& c) {
          c.kernels = targets.items[target];
          c.threads = run.size > 5000 ? 2 : 1;
        };
        for (TreeConfig c : trees(run.size, run.offset, memory)) set(c), same_as_residual<T, Tree<T>>(c, run.steps);
        for (ToeplitzConfig c : mechanisms(run.size, run.offset, memory)) {
          set(c), same_as_residual<T, Toeplitz<T>>(c, run.steps);
        }
      }
    }
  }
}

// Vectors past the caches, on two threads.
void large() {
  constexpr std::size_t size = (std::size_t{1} << 21) + 77;
  const auto check = [](auto config, auto source) {
    config.threads = 2;
    same_as_residual<float, decltype(source)>(config, 2);
  };
  check(trees(size, 100, Memory::kStored)[1], Tree<float>(trees(1, 0, Memory::kStored)[1]));
  check(mechanisms(size, 100, Memory::kStored)[2], Toeplitz<float>(mechanisms(1, 0, Memory::kStored)[2]));
}

// A call that has much to make before it can write ends at its poll, with nothing changed.
template <class Source, class Config>
void ended_by_poll(const Config& config) {
  Source noise(config), other(config);
  Sums<float> found(config.size), before(config.size);
  found.add(1), before.add(1);
  noise.advance_to(17000), other.advance_to(17000);
  CHECK_THROWS(noise.release(found.release(), [] { throw Stop(); }), Stop, "stop");
  same(found, before);
  CHECK_EQ(noise.t(), 17000u);
  std::vector<float> residual(config.size);
  noise.release(found.release(), {}), other.residual(residual.data(), {});
  before.release_one_by_one(residual);
  same(found, before);
}

// A call that finds its vectors asks for no poll: more tiles than lie between two polls.
void never_ended_while_it_writes() {
  for (const ToeplitzConfig& c : mechanisms(7, 0, Memory::kStored)) {
    Toeplitz<float> noise(c);
    Sums<float> sums(c.size);
    for (int t = 0; t < 17000; ++t) noise.release(sums.release(), [] { throw Stop(); });
    CHECK_EQ(noise.t(), 17000u);
  }
  for (const TreeConfig& c : trees(7, 0, Memory::kStored)) {
    Tree<float> noise(c);
    Sums<float> sums(c.size);
    for (int t = 0; t < 17000; ++t) noise.release(sums.release(), [] { throw Stop(); });
    CHECK_EQ(noise.t(), 17000u);
  }
}

}  // namespace

int main() {
  every_setting<float>();
  every_setting<double>();
  large();
  for (const std::size_t memory : kMemories) {
    ended_by_poll<Toeplitz<float>>(mechanisms(3, 0, memory)[2]);
    ended_by_poll<Toeplitz<float>>(mechanisms(3, 0, memory)[3]);
    ended_by_poll<Tree<float>>(trees(3, 0, memory)[1]);
  }
  never_ended_while_it_writes();
  return check::report();
}
