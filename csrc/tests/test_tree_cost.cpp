// SPDX-License-Identifier: Apache-2.0

// What the aggregator draws and keeps, through kernels that make every node all ones and note what is asked for:
// the bookkeeping without randomness, the claims about work and memory, and that no node is ever drawn twice.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "check.hpp"
#include "dpftrl/noise/tree.hpp"

using namespace dpftrl;

namespace {

std::vector<std::pair<std::uint32_t, std::uint64_t>> drawn;  // (tree, node id)

template <class T>
void fill_ones(const NodeStream& stream, std::uint64_t, std::size_t n, T, T* out) {
  drawn.emplace_back(stream.tree, stream.node);
  std::fill_n(out, n, T(1));
}

NoiseKernels counting_kernels() {
  NoiseKernels k = kScalarKernels;
  k.f32.fill = fill_ones<float>;
  k.f64.fill = fill_ones<double>;
  return k;
}
const NoiseKernels kCounting = counting_kernels();

Tree<double> tree_of(Variant variant, std::size_t memory) {
  TreeConfig c;
  c.size = 1;
  c.variant = variant;
  c.memory.vectors = memory;
  c.kernels = &kCounting;
  return Tree<double>(c);
}

int popcount(std::uint64_t t) {
  int n = 0;
  for (; t != 0; t &= t - 1) ++n;
  return n;
}

// Ones everywhere: r of a node at level l is l + 1.
double ones_prefix(Variant variant, std::uint64_t t) {
  double sum = 0;
  for (int level = 46; level >= 0; --level) {
    if (((t >> level) & 1) == 0) continue;
    sum += variant == Variant::vanilla ? 1.0 : (level + 1) * (1.0 / (2.0 - std::pow(2.0, -level)));
  }
  return sum;
}

void all_ones() {
  double out = 0;
  for (const Variant variant : {Variant::vanilla, Variant::honaker}) {
    for (const std::size_t memory : {Memory::kStored, Memory::kRegenerate, std::size_t{1}, std::size_t{3}}) {
      Tree<double> tree = tree_of(variant, memory);
      for (std::uint64_t t = 1; t <= 1100; ++t) {
        tree.step(&out, {});
        CHECK_EQ(out, ones_prefix(variant, t));
      }
      tree.prefix(25, &out, {});
      CHECK_EQ(out, ones_prefix(variant, 25));
      tree.restart(true, {});
      double before = ones_prefix(variant, 1100);
      for (std::uint64_t t = 1; t <= 40; ++t) {
        const double now = ones_prefix(variant, 2048) + ones_prefix(variant, t);
        tree.residual(&out, {});
        CHECK_NEAR(out, now - before, 1e-12);
        before = now;
      }
    }
  }
  Tree<double> vanilla = tree_of(Variant::vanilla, Memory::kStored);
  vanilla.prefix(0x2aaaaaaaaaaa, &out, {});
  CHECK_EQ(out, 23.0);
}

std::uint64_t cost_of_steps(Tree<double>& tree, std::uint64_t steps) {
  double out;
  drawn.clear();
  for (std::uint64_t t = 0; t < steps; ++t) tree.step(&out, {});
  return drawn.size();
}

void cost_stored() {
  for (const bool through_residuals : {false, true}) {
    Tree<double> vanilla = tree_of(Variant::vanilla, Memory::kStored);
    Tree<double> honaker = tree_of(Variant::honaker, Memory::kStored);
    std::uint64_t total = 0;
    double out;
    for (std::uint64_t t = 1; t <= 5000; ++t) {
      drawn.clear();
      through_residuals ? vanilla.residual(&out, {}) : vanilla.step(&out, {});
      CHECK_EQ(drawn.size(), 1u);
      drawn.clear();
      through_residuals ? honaker.residual(&out, {}) : honaker.step(&out, {});
      total += drawn.size();
      // Every node that ends by t, once: two a step.
      CHECK_EQ(total, 2 * t - static_cast<std::uint64_t>(popcount(t)));
    }
  }
}

void cost_regenerate() {
  for (const std::uint64_t steps : {std::uint64_t{255}, std::uint64_t{1} << 16}) {
    Tree<double> tree = tree_of(Variant::vanilla, Memory::kRegenerate);
    CHECK(static_cast<double>(cost_of_steps(tree, steps)) < 2.0 * static_cast<double>(steps));
  }
  // Honaker from nothing: all nodes up to t. A run: about sqrt(T) a step.
  Tree<double> tree = tree_of(Variant::honaker, Memory::kRegenerate);
  double out;
  for (const std::uint64_t t : {1u, 7u, 64u, 1000u}) {
    drawn.clear();
    tree.prefix(t, &out, {});
    CHECK_EQ(drawn.size(), 2 * t - static_cast<std::uint64_t>(popcount(t)));
  }
  for (const std::uint64_t steps : {256u, 1024u, 4096u}) {
    Tree<double> run = tree_of(Variant::honaker, Memory::kRegenerate);
    const double mean = static_cast<double>(cost_of_steps(run, steps)) / static_cast<double>(steps);
    CHECK(mean < 4 * std::sqrt(static_cast<double>(steps)));
    CHECK(mean > 0.5 * std::sqrt(static_cast<double>(steps)));
  }
}

// With m vectors: never less work for fewer vectors, and no more than stored once m covers all levels.
void cost_of_m_vectors() {
  for (const Variant variant : {Variant::vanilla, Variant::honaker}) {
    Tree<double> stored = tree_of(variant, Memory::kStored);
    const std::uint64_t least = cost_of_steps(stored, 1023);
    std::uint64_t before = ~std::uint64_t{0};
    for (std::size_t m = 1; m <= 10; ++m) {
      Tree<double> tree = tree_of(variant, m);
      const std::uint64_t cost = cost_of_steps(tree, 1023);
      CHECK(cost <= before);
      before = cost;
    }
    CHECK_EQ(before, least);
  }
  // Honaker: each level that is not kept doubles what lies below.
  Tree<double> seven = tree_of(Variant::honaker, 7);
  CHECK(cost_of_steps(seven, 1023) < 1023 * 8);
}

void no_node_twice() {
  double out;
  for (const Variant variant : {Variant::vanilla, Variant::honaker}) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool complete = kind % 2 == 1, through_residuals = kind / 2 == 1;
      Tree<double> tree = tree_of(variant, Memory::kStored);
      std::vector<std::pair<std::uint32_t, std::uint64_t>> by_steps;
      for (const int length : {21, 1, 64, 7, 21}) {
        drawn.clear();
        for (int t = 0; t < length; ++t) through_residuals ? tree.residual(&out, {}) : tree.step(&out, {});
        by_steps.insert(by_steps.end(), drawn.begin(), drawn.end());
        tree.restart(complete, {});  // may draw the last leaf once more
        for (const auto& node : drawn) CHECK_EQ(node.first + 1, tree.tree());
      }
      const std::set<std::pair<std::uint32_t, std::uint64_t>> distinct(by_steps.begin(), by_steps.end());
      CHECK_EQ(distinct.size(), by_steps.size());
    }
  }
  // Made again or not, what a step draws is of its own tree or an earlier one, never of one to come.
  Tree<double> tree = tree_of(Variant::honaker, Memory::kRegenerate);
  for (int i = 0; i < 4; ++i) {
    for (int t = 0; t < 11; ++t) tree.residual(&out, {});
    tree.restart(i % 2 == 1, {});
    tree.set_position(tree.position());
    drawn.clear();
    tree.residual(&out, {});
    std::set<std::uint32_t> trees;
    for (const auto& [number, node] : drawn) trees.insert(number);
    CHECK_EQ(*trees.rbegin(), static_cast<std::uint32_t>(tree.tree()));
    CHECK_EQ(trees.size(), static_cast<std::size_t>(tree.tree() + 1));
  }
}

void memory_bound() {
  double out;
  for (const Variant variant : {Variant::vanilla, Variant::honaker}) {
    for (const std::size_t m : {Memory::kStored, Memory::kRegenerate, std::size_t{1}, std::size_t{3}}) {
      for (const bool through_residuals : {false, true}) {
        Tree<double> tree = tree_of(variant, m);
        std::size_t longest = 1;  // spare vectors of longer trees are kept
        for (const std::uint64_t length : {1100u, 3u, 100u}) {
          for (std::uint64_t t = 1; t <= length; ++t) {
            through_residuals ? tree.residual(&out, {}) : tree.step(&out, {});
            longest = std::max(longest, static_cast<std::size_t>(highest_bit(t)) + 2);
            const std::size_t bound = m == Memory::kStored ? longest : m == Memory::kRegenerate ? 1 : m;
            const std::size_t extra = (tree.tree() > 0 ? 1u : 0u) + (through_residuals ? 1u : 0u);
            CHECK(tree.allocated() <= bound + extra);
          }
          tree.restart(length == 3, {});
        }
      }
    }
  }
}

}  // namespace

int main() {
  all_ones();
  cost_stored();
  cost_regenerate();
  cost_of_m_vectors();
  no_node_twice();
  memory_bound();
  return check::report();
}
