// SPDX-License-Identifier: Apache-2.0

// Calls of two trees in one sequence, one that stores its vectors and one with any memory setting, threads and saved
// positions: the same bits in every call, and a refused call changes nothing.

#include "dpftrl/noise/tree.hpp"
#include "pair.hpp"

using namespace dpftrl;
using fuzz::Input;
using fuzz::Pair;
using fuzz::position_of;

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

template <class T>
void run(Input& in) {
  Pair<Tree, T> trees;
  if (!trees.make(config_of(in), in, 4)) return;
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
      trees.save_and_load(in.byte() % 2 == 0, [](Tree<T>& again, const auto& vectors) {
        for (const auto& kept : vectors) again.restore_vector(kept);
      });
    } else {
      trees.move_to(position_of(in, kFarthest), kFarthest);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run_of_either(data, size, [](Input& in, auto zero) { run<decltype(zero)>(in); });
}
