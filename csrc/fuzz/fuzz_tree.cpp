// SPDX-License-Identifier: Apache-2.0

// Calls of two trees in one sequence, one that stores its vectors and one with any memory setting, threads and saved
// positions: the same bits in every call, and a refused call changes nothing.

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "dpftrl/noise/tree.hpp"
#include "input.hpp"

using namespace dpftrl;
using fuzz::Input;
using fuzz::require;

namespace {

// Honaker's averages are made of all nodes below, so positions far away would take too long.
constexpr std::uint64_t kFarthest = 1u << 10;

TreeConfig config_of(Input& in) {
  TreeConfig c;
  for (auto& word : c.key.words) word = in.byte();
  c.size = in.below(40);
  c.offset = in.byte() % 8 == 0 ? in.word() : in.below(5000);
  c.std = in.byte() % 8 == 0 ? in.number() : 1.25;
  c.rounds = in.byte() % 8 == 0 ? static_cast<int>(in.byte()) : 8;
  c.threads = 1 + in.byte() % 2;
  c.variant = in.byte() % 2 == 0 ? Variant::honaker : Variant::vanilla;
  return c;
}

SourcePosition position_of(Input& in) {
  SourcePosition p;
  const auto step = [&] { return in.byte() % 16 == 0 ? in.word() : in.below(kFarthest); };
  p.t = step();
  for (std::uint64_t i = in.below(4); i > 0; --i) p.ends.push_back(step());
  p.last.tree = static_cast<std::int64_t>(in.below(6)) - 1;
  p.last.t = step();
  return p;
}

bool near(const SourcePosition& p) {
  std::uint64_t farthest = std::max(p.t, p.last.t);
  for (const std::uint64_t end : p.ends) farthest = std::max(farthest, end);
  return farthest <= kFarthest;
}

bool same(const SourcePosition& a, const SourcePosition& b) {
  const bool nowhere = a.last.tree < 0 && b.last.tree < 0;
  return a.t == b.t && a.ends == b.ends && (nowhere || (a.last.tree == b.last.tree && a.last.t == b.last.t));
}

template <class T>
struct Pair {
  std::unique_ptr<Tree<T>> stored, other;
  std::vector<T> a, b;

  // Makes a call of both; both refuse it or neither.
  template <class Call>
  bool both(const Call& call) {
    const SourcePosition before = other->position();
    std::fill(a.begin(), a.end(), T(7));
    std::fill(b.begin(), b.end(), T(7));
    bool first = true, second = true;
    try {
      call(*stored, a.data());
    } catch (const std::invalid_argument&) {
      first = false;
    }
    try {
      call(*other, b.data());
    } catch (const std::invalid_argument&) {
      second = false;
      require(same(other->position(), before), "a refused call changes nothing");
    }
    require(first == second, "every memory setting takes the same calls");
    require(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0, "every memory setting gives the same bits");
    require(a.back() == T(7), "nothing is written behind the vector");
    require(same(stored->position(), other->position()), "both are at one position");
    return first;
  }
};

template <class T>
void run(Input& in) {
  TreeConfig c = config_of(in);
  Pair<T> trees;
  try {
    trees.stored = std::make_unique<Tree<T>>(c);
  } catch (const std::invalid_argument&) {
    return;
  }
  c.memory.vectors = in.byte() % 4;
  c.threads = 1;
  trees.other = std::make_unique<Tree<T>>(c);
  trees.a.resize(c.size + 1);
  trees.b.resize(c.size + 1);
  for (int calls = 0; calls < 40 && !in.empty(); ++calls) {
    const std::uint64_t way = in.byte() % 10;
    if (way < 3) {
      trees.both([](Tree<T>& tree, T* out) { tree.step(out, {}); });
    } else if (way < 5) {
      trees.both([](Tree<T>& tree, T* out) { tree.residual(out, {}); });
    } else if (way == 5) {
      const bool complete = in.byte() % 2 == 0;
      trees.both([&](Tree<T>& tree, T*) { tree.restart(complete, {}); });
    } else if (way == 6) {
      const std::uint64_t t = in.below(kFarthest);
      trees.both([&](Tree<T>& tree, T*) { tree.advance_to(t); });
    } else if (way == 7) {
      const std::uint64_t t = in.byte() % 8 == 0 ? kMaxSteps + 1 + in.byte() : in.below(kFarthest);
      trees.both([&](Tree<T>& tree, T* out) { tree.prefix(t, out, {}); });
    } else if (way == 8) {
      // Saved and loaded by another object, with its vectors or without.
      auto again = std::make_unique<Tree<T>>(trees.other->config());
      again->set_position(trees.other->position());
      if (in.byte() % 2 == 0) {
        for (const auto& kept : trees.other->kept_vectors()) again->restore_vector(kept);
      }
      trees.other = std::move(again);
    } else {
      const SourcePosition p = position_of(in);
      if (!near(p)) {  // only whether it is taken
        Tree<T> far(c);
        const SourcePosition before = far.position();
        try {
          far.set_position(p);
          require(same(far.position(), p), "a position that is taken is kept");
        } catch (const std::invalid_argument&) {
          require(same(far.position(), before), "a position that is refused changes nothing");
        }
        continue;
      }
      trees.both([&](Tree<T>& tree, T*) { tree.set_position(p); });
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  if (in.byte() % 2 == 0) {
    run<float>(in);
  } else {
    run<double>(in);
  }
  return 0;
}
