// SPDX-License-Identifier: Apache-2.0

// The aggregator against the oracle, bit for bit: every variant, memory setting, dtype, thread count and offset,
// through restarts, completions, residuals, jumps, saves and loads.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "dpftrl/infra/float_environment.hpp"
#include "dpftrl/noise/tree.hpp"
#include "tree_oracle.hpp"

using namespace dpftrl;

namespace {

constexpr std::size_t kMemories[] = {Memory::kStored, Memory::kRegenerate, 1, 2, 4};
constexpr Variant kVariants[] = {Variant::vanilla, Variant::honaker};

TreeConfig config_of(Variant variant, std::size_t memory, std::size_t size = 5, std::uint64_t offset = 0,
                     std::size_t threads = 1) {
  TreeConfig c;
  for (std::uint32_t i = 0; i < 8; ++i) c.key.words[i] = 0x01234567u * (i + 1);
  c.size = size;
  c.offset = offset;
  c.std = 1.3;
  c.variant = variant;
  c.memory.vectors = memory;
  c.threads = threads;
  return c;
}

// What a call wrote, with a guard behind it.
template <class T, class Call>
std::vector<T> written(std::size_t size, const Call& call) {
  std::vector<T> out(size + 1, T(777));
  call(out.data());
  CHECK_EQ(out.back(), T(777));
  out.pop_back();
  return out;
}

template <class T>
std::vector<T> step(Tree<T>& tree) {
  return written<T>(tree.config().size, [&](T* out) { tree.step(out, {}); });
}
template <class T>
std::vector<T> residual(Tree<T>& tree) {
  return written<T>(tree.config().size, [&](T* out) { tree.residual(out, {}); });
}
template <class T>
std::vector<T> prefix(Tree<T>& tree, std::uint64_t t) {
  return written<T>(tree.config().size, [&](T* out) { tree.prefix(t, out, {}); });
}

template <class T>
void same(const std::vector<T>& got, const std::vector<T>& expected) {
  CHECK_EQ(got.size(), expected.size());
  CHECK_SAME_BITS(got.data(), expected.data(), expected.size());
}

// One object only steps, one only takes residuals, one mixes them.
template <class Source>
struct Three {
  explicit Three(const TreeConfig& c) : steps(c), residuals(c), mixed(c) {}
  Source steps, residuals, mixed;
};

// Five trees of different lengths, the second and the fourth completed, in every memory setting beside one oracle.
template <class T>
void runs(TreeConfig c, std::uint64_t longest) {
  std::vector<Three<Tree<T>>> found;
  for (const std::size_t memory : kMemories) {
    c.memory.vectors = memory;
    found.emplace_back(c);
  }
  Three<oracle::Tree<T>> expected(c);
  // Makes one call of the oracle, and the same call in each setting.
  const auto all = [&](const std::vector<T>& value, const auto& call) {
    for (Three<Tree<T>>& three : found) same(call(three), value);
  };
  int calls = 0;
  for (const std::uint64_t length :
       {longest, std::uint64_t{1}, std::uint64_t{13}, std::uint64_t{6}, std::uint64_t{8}}) {
    for (std::uint64_t t = 1; t <= length; ++t, ++calls) {
      all(expected.steps.step(), [](auto& three) { return step(three.steps); });
      all(expected.residuals.residual(), [](auto& three) { return residual(three.residuals); });
      if (calls % 3 == 1) {
        all(expected.mixed.step(), [](auto& three) { return step(three.mixed); });
      } else {
        all(expected.mixed.residual(), [](auto& three) { return residual(three.mixed); });
      }
      if (calls % 5 == 0) {  // a look elsewhere changes nothing
        const std::uint64_t at = 1 + static_cast<std::uint64_t>(calls * 7) % 90;
        all(expected.steps.prefix(at), [&](auto& three) { return prefix(three.steps, at); });
        all(expected.mixed.prefix(t), [&](auto& three) { return prefix(three.mixed, t); });
      }
    }
    const bool complete = calls % 2 == 1;
    for (auto* tree : {&expected.steps, &expected.residuals, &expected.mixed}) tree->restart(complete);
    for (Three<Tree<T>>& three : found) {
      CHECK_EQ(three.steps.t(), length);
      for (Tree<T>* tree : {&three.steps, &three.residuals, &three.mixed}) tree->restart(complete, {});
      CHECK_EQ(three.steps.t(), 0u);
    }
  }
  for (Three<Tree<T>>& three : found) CHECK_EQ(three.mixed.tree(), 5u);
}

void every_setting() {
  for (const Variant variant : kVariants) {
    runs<float>(config_of(variant, 0), 70);
    runs<double>(config_of(variant, 0, 3, 1000), 70);
    // Some tiles and several threads; the first tile is cut by the offset.
    runs<float>(config_of(variant, 0, 2 * 8 * 2048 + 100, 2048 * 5 - 3, 2), 9);
    runs<double>(config_of(variant, 0, 3 * 8 * 1024 + 1, 77, 3), 9);
  }
  for (const int rounds : {8, 20}) {
    TreeConfig c = config_of(Variant::honaker, 0);
    c.rounds = rounds;
    c.purpose = Purpose::covariance_tree;
    runs<float>(c, 10);
  }
}

// Vectors larger than the caches take another way to memory.
template <class T>
void large_vectors() {
  const std::size_t size = (std::size_t{9} << 20) / sizeof(T) + 5;
  for (const Variant variant : kVariants) {
    for (const std::size_t memory : kMemories) {
      const TreeConfig c = config_of(variant, memory, size, 1030, 1 + memory % 3);
      Tree<T> tree(c), one_tile(config_of(variant, Memory::kStored, 700, 1030 + size - 700));
      oracle::Tree<T> expected(config_of(variant, memory, 3000, 1030));
      std::vector<T> got(size);
      for (int t = 1; t <= 5; ++t) {
        t == 2 ? tree.step(got.data(), {}) : tree.residual(got.data(), {});
        const std::vector<T> start = t == 2 ? expected.step() : expected.residual();
        const std::vector<T> end = t == 2 ? step(one_tile) : residual(one_tile);
        CHECK_SAME_BITS(got.data(), start.data(), start.size());
        CHECK_SAME_BITS(got.data() + size - 700, end.data(), end.size());
        if (t == 3) tree.restart(true, {}), one_tile.restart(true, {}), expected.restart(true);
      }
    }
    // All of it, and into memory that no vector store is aligned to.
    Tree<T> tree(config_of(variant, Memory::kStored, size, 3, 2));
    oracle::Tree<T> expected(config_of(variant, Memory::kStored, size, 3));
    std::vector<T> room(size + 2, T(777));
    for (int t = 1; t <= 2; ++t) {
      tree.residual(room.data() + 1, {});
      const std::vector<T> now = expected.residual();
      CHECK_SAME_BITS(room.data() + 1, now.data(), size);
      CHECK_EQ(room.front(), T(777));
      CHECK_EQ(room.back(), T(777));
    }
    same(prefix(tree, 3), expected.prefix(3));
  }
}

// Any split of the coordinates gives slices, any thread count the same bits.
template <class T>
void splits() {
  constexpr std::size_t size = 40000;
  for (const Variant variant : kVariants) {
    Tree<T> whole(config_of(variant, Memory::kStored, size, 11, 1));
    Tree<T> threaded(config_of(variant, Memory::kRegenerate, size, 11, 3));
    Tree<T> left(config_of(variant, 1, 12345, 11, 2)), right(config_of(variant, 2, size - 12345, 11 + 12345, 3));
    for (int t = 1; t <= 20; ++t) {
      const std::vector<T> expected = residual(whole);
      same(residual(threaded), expected);
      std::vector<T> joined = residual(left);
      const std::vector<T> rest = residual(right);
      joined.insert(joined.end(), rest.begin(), rest.end());
      same(joined, expected);
      if (t == 11) {
        for (Tree<T>* tree : {&whole, &threaded, &left, &right}) tree->restart(true, {});
      }
    }
  }
}

// Saved at every step of a run with restarts, loaded into every memory setting, with and without the vectors.
template <class T>
void saves() {
  for (const Variant variant : kVariants) {
    for (const std::size_t memory : kMemories) {
      Tree<T> tree(config_of(variant, memory));
      oracle::Tree<T> expected(config_of(variant, memory));
      for (int call = 0; call < 70; ++call) {
        if (call == 21 || call == 22 || call == 40) {
          tree.restart(call == 21, {});
          expected.restart(call == 21);
        }
        for (const std::size_t other : kMemories) {
          for (const bool with_vectors : {true, false}) {
            Tree<T> loaded(config_of(variant, other));
            step(loaded);  // whatever it held is dropped
            loaded.set_position(tree.position());
            if (with_vectors) {
              for (const auto& kept : tree.kept_vectors()) loaded.restore_vector(kept);
            }
            CHECK_EQ(loaded.t(), tree.t());
            CHECK_EQ(loaded.tree(), tree.tree());
            oracle::Tree<T> after = expected;
            same(residual(loaded), after.residual());
            same(step(loaded), after.step());
            same(residual(loaded), after.residual());
          }
        }
        if (call % 4 == 3) {
          same(step(tree), expected.step());
        } else {
          same(residual(tree), expected.residual());
        }
      }
    }
  }
}

// Jumps, a restart right after one, and a node, anywhere up to the end of the tree.
template <class T>
void jumps() {
  for (const Variant variant : kVariants) {
    for (const std::size_t memory : kMemories) {
      Tree<T> tree(config_of(variant, memory));
      oracle::Tree<T> expected(config_of(variant, memory));
      for (const std::uint64_t t : {2u, 5u, 9u, 40u, 44u, 63u, 500u, 1023u, 1500u}) {
        tree.advance_to(t);
        expected.advance_to(t);
        same(residual(tree), expected.residual());
        same(step(tree), expected.step());
        same(residual(tree), expected.residual());
      }
      tree.advance_to(1600);
      expected.advance_to(1600);
      tree.restart(true, {});
      expected.restart(true);
      same(residual(tree), expected.residual());
    }
  }
  Tree<T> tree(config_of(Variant::vanilla, Memory::kStored));
  oracle::Tree<T> expected(config_of(Variant::vanilla, Memory::kStored));
  for (const std::uint64_t t : {std::uint64_t{1} << 40, kMaxSteps - 3}) {
    tree.advance_to(t);
    expected.advance_to(t);
    same(step(tree), expected.step());
    same(step(tree), expected.step());
  }
  same(step(tree), expected.step());
  CHECK_EQ(tree.t(), kMaxSteps);
  CHECK_THROWS(step(tree), std::invalid_argument, "2**46");
  CHECK_EQ(tree.t(), kMaxSteps);
  tree.restart(false, {});
  expected.restart(false);
  same(step(tree), expected.step());
  for (const Node node : {Node{0, kMaxSteps - 1}, Node{46, 0}, Node{5, 3}}) {
    same(written<T>(5, [&](T* out) { tree.node(node, out, {}); }),
         [&] { return expected.node(node.level, node.index); }());
  }
}

void useless_vectors_are_passed_over() {
  Tree<float> tree(config_of(Variant::honaker, 2));
  tree.advance_to(12);
  const std::vector<float> value(5, 1.0f);
  using Kind = Tree<float>::VectorKind;
  // No restart, nothing returned, not live at 12, not live anywhere near, below the two highest levels.
  tree.restore_vector({Kind::carry, {}, value.data()});
  tree.restore_vector({Kind::last, {}, value.data()});
  tree.restore_vector({Kind::average, {2, 1}, value.data()});
  tree.restore_vector({Kind::average, {3, 1}, value.data()});
  tree.restore_vector({Kind::average, {0, 11}, value.data()});
  CHECK_EQ(tree.allocated(), 0u);
  tree.restore_vector({Kind::average, {2, 2}, value.data()});
  CHECK_EQ(tree.allocated(), 1u);
}

void refusals() {
  const auto make = [](auto change) {
    TreeConfig c = config_of(Variant::honaker, Memory::kStored);
    change(c);
    Tree<float> tree(c);
  };
  const double nan = std::nan("");
  CHECK_THROWS(make([](TreeConfig& c) { c.size = 0; }), std::invalid_argument, "size must be an integer >= 1, got 0");
  CHECK_THROWS(make([](TreeConfig& c) { c.threads = 0; }), std::invalid_argument, "threads must be");
  CHECK_THROWS(make([](TreeConfig& c) { c.rounds = 7; }), std::invalid_argument, "rounds must be 8, 12 or 20, got 7");
  CHECK_THROWS(make([&](TreeConfig& c) { c.std = nan; }), std::invalid_argument, "got nan");
  CHECK_THROWS(make([](TreeConfig& c) { c.std = -1.0; }), std::invalid_argument, "got -1");
  CHECK_THROWS(make([](TreeConfig& c) { c.std = 1e39; }), std::invalid_argument, "in the dtype");
  CHECK_THROWS(make([](TreeConfig& c) { c.offset = (std::uint64_t{1} << 36) - 4; }), std::invalid_argument, "2**36");
  CHECK_THROWS(make([](TreeConfig& c) { c.offset = ~std::uint64_t{0}; }), std::invalid_argument, "2**36");

  Tree<float> tree(config_of(Variant::honaker, 2));
  oracle::Tree<float> expected(config_of(Variant::honaker, 2));
  float out[5];
  CHECK_THROWS(tree.restart(false, {}), std::invalid_argument, "at least one step");
  for (int t = 0; t < 5; ++t) same(residual(tree), expected.residual());
  CHECK_THROWS(tree.advance_to(4), std::invalid_argument, "cannot go back");
  CHECK_THROWS(tree.advance_to(kMaxSteps + 1), std::invalid_argument, "2**46");
  CHECK_THROWS(tree.prefix(0, out, {}), std::invalid_argument, "got 0");
  CHECK_THROWS(tree.prefix(kMaxSteps + 1, out, {}), std::invalid_argument, "2**46");
  CHECK_THROWS(tree.node({-1, 0}, out, {}), std::out_of_range, "level must be");
  CHECK_THROWS(tree.node({47, 0}, out, {}), std::out_of_range, "got 47");
  CHECK_THROWS(tree.node({46, 1}, out, {}), std::out_of_range, "[0, 1) at level 46");
  for (const SourcePosition& bad :
       {SourcePosition{kMaxSteps + 1, {}, {}}, SourcePosition{1, {0}, {}}, SourcePosition{1, {kMaxSteps + 1}, {}},
        SourcePosition{3, {}, {0, 4}}, SourcePosition{3, {2}, {0, 3}}, SourcePosition{3, {2}, {2, 1}},
        SourcePosition{3, {2}, {1, 0}}}) {
    CHECK_THROWS(tree.set_position(bad), std::invalid_argument, "saved position");
  }
  CHECK_EQ(tree.t(), 5u);
  same(residual(tree), expected.residual());

  tree.set_position({1, std::vector<std::uint64_t>(std::size_t{1} << 24, 1), {}});
  CHECK_THROWS(tree.restart(false, {}), std::invalid_argument, "at most 2**24 restarts");
  CHECK_EQ(tree.tree(), std::uint64_t{1} << 24);
}

}  // namespace

int main() {
  const FloatEnvironment guard;
  every_setting();
  large_vectors<float>();
  large_vectors<double>();
  splits<float>();
  splits<double>();
  saves<float>();
  saves<double>();
  jumps<float>();
  jumps<double>();
  useless_vectors_are_passed_over();
  refusals();
  return check::report();
}
