// SPDX-License-Identifier: Apache-2.0

// Calls that are ended midway by their poll leave the position and all later values as if they had not been made;
// and a caller's rounding mode and flush-to-zero bits change nothing and are given back.

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "dpftrl/noise/tree.hpp"
#include "tree_oracle.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

using namespace dpftrl;

namespace {

TreeConfig config_of(Variant variant, std::size_t memory, std::size_t size, std::size_t threads) {
  TreeConfig c;
  for (std::uint32_t i = 0; i < 8; ++i) c.key.words[i] = 77 * (i + 1);
  c.size = size;
  c.offset = 100;
  c.std = 0.7;
  c.variant = variant;
  c.memory.vectors = memory;
  c.threads = threads;
  return c;
}

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

// While true, threads of the pool wait in fill_cheaply, so that worker 0, which polls, gets most of the work.
std::atomic<bool> hold{false};

// Ends the n-th poll.
struct StopAt {
  int n;
  void operator()() {
    if (--n > 0) return;
    hold = false;
    throw Stop();
  }
};

template <class T>
void same(const std::vector<T>& got, const std::vector<T>& expected) {
  CHECK_SAME_BITS(got.data(), expected.data(), expected.size());
}

// A run of long calls, each interrupted first at each of these polls, in several settings beside one that is not.
template <class T>
void interrupted_run(const std::vector<TreeConfig>& settings, std::uint64_t far, std::uint64_t end,
                     const std::vector<int>& places) {
  TreeConfig of_other = settings.front();
  of_other.threads = 1;
  of_other.memory.vectors = Memory::kStored;
  Tree<T> untouched(of_other);
  std::vector<Tree<T>> trees;
  for (const TreeConfig& c : settings) trees.emplace_back(c);
  std::vector<T> out(of_other.size), expected(of_other.size);
  std::size_t interruptions = 0;
  const auto position_kept = [&](auto&& call) {
    for (Tree<T>& tree : trees) {
      const SourcePosition before = tree.position();
      for (const int at : places) {
        try {
          hold = true;
          call(tree, Poll(StopAt{at}));
          CHECK(false);
        } catch (const Stop&) {
          ++interruptions;
        }
        const SourcePosition after = tree.position();
        CHECK_EQ(after.t, before.t);
        CHECK(after.ends == before.ends);
        CHECK_EQ(after.last.tree, before.last.tree);
        CHECK_EQ(after.last.t, before.last.t);
      }
    }
  };
  const auto residual = [&] {
    untouched.residual(expected.data(), {});
    for (Tree<T>& tree : trees) {
      tree.residual(out.data(), {});
      same(out, expected);
    }
  };
  const auto all = [&](auto&& call) {
    call(untouched);
    for (Tree<T>& tree : trees) call(tree);
  };
  const auto forget = [&] {  // nothing at hand, so that the next call has all to do
    for (Tree<T>& tree : trees) tree.set_position(tree.position());
  };
  residual();
  residual();
  all([&](Tree<T>& tree) { tree.advance_to(far); });
  position_kept([&](Tree<T>& tree, const Poll& poll) { tree.residual(out.data(), poll); });
  residual();
  residual();
  position_kept([&](Tree<T>& tree, const Poll& poll) { tree.prefix(end - 1, out.data(), poll); });
  residual();
  all([&](Tree<T>& tree) { tree.advance_to(end); });
  position_kept([&](Tree<T>& tree, const Poll& poll) { tree.step(out.data(), poll); });
  untouched.step(expected.data(), {});
  for (Tree<T>& tree : trees) {
    tree.step(out.data(), {});
    same(out, expected);
  }
  forget();
  position_kept([&](Tree<T>& tree, const Poll& poll) { tree.restart(false, poll); });
  all([](Tree<T>& tree) { tree.restart(false, {}); });
  residual();
  all([&](Tree<T>& tree) { tree.advance_to(far); });
  const bool complete = of_other.variant == Variant::honaker;  // for vanilla that is one node
  position_kept([&](Tree<T>& tree, const Poll& poll) { tree.restart(complete, poll); });
  residual();
  forget();
  position_kept([&](Tree<T>& tree, const Poll& poll) { tree.residual(out.data(), poll); });  // carry and last value too
  residual();
  all([](Tree<T>& tree) { tree.restart(true, {}); });
  residual();
  CHECK_EQ(interruptions, 6 * places.size() * trees.size());
}

// Cheap nodes, all different.
std::thread::id caller;
void fill_cheaply(const NodeStream& s, std::uint64_t first, std::size_t n, double scale, double* out) {
  while (hold && std::this_thread::get_id() != caller) std::this_thread::sleep_for(std::chrono::microseconds(100));
  const std::uint64_t of_node = (s.node ^ (std::uint64_t{s.tree} << 40)) * 0x9e3779b97f4a7c15u >> 40;
  for (std::size_t i = 0; i < n; ++i) out[i] = scale * static_cast<double>(of_node + ((first + i) & 1023));
}

void interruptions() {
  caller = std::this_thread::get_id();
  NoiseKernels cheap = kScalarKernels;
  cheap.f64.fill = fill_cheaply;
  std::vector<TreeConfig> few_coordinates, many_tiles;
  // Honaker needs many nodes for a jump; vanilla, where one vector is kept at most, needs many tiles.
  for (const std::size_t memory : {Memory::kStored, Memory::kRegenerate, std::size_t{2}}) {
    few_coordinates.push_back(config_of(Variant::honaker, memory, 3, 1));
  }
  for (const std::size_t memory : {Memory::kStored, Memory::kRegenerate}) {
    many_tiles.push_back(config_of(Variant::vanilla, memory, 1024 * 450, memory == Memory::kStored ? 1 : 3));
    many_tiles.back().kernels = &cheap;
  }
  interrupted_run<float>(few_coordinates, 17000, 34001, {1, 2, 1});
  interrupted_run<double>(many_tiles, (std::uint64_t{1} << 44) - 2, (std::uint64_t{1} << 45) - 2, {1});
}

// Polls are counted over sums, so that many short ones are polled too: a carry of thousands of trees.
void many_short_sums() {
  Tree<float> tree(config_of(Variant::vanilla, Memory::kStored, 2, 1));
  SourcePosition position;
  position.ends.assign(40000, 1);
  tree.set_position(position);
  float out[2];
  int polls = 0;
  tree.step(out, [&] { ++polls; });
  CHECK(polls >= 2);
}

// The calling thread polls while other workers still work on their last tiles: two polls with no tile of its own
// between them. The other worker's first tile lasts until then, and the caller's first until the other has begun.
std::atomic<bool> other_began{false}, polled_while_waiting{false};
std::atomic<int> own_tiles{0};

void wait_for(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!flag && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void polls_while_waiting() {
  NoiseKernels slow = kScalarKernels;
  slow.f32.fill = [](const NodeStream&, std::uint64_t, std::size_t n, float scale, float* out) {
    if (std::this_thread::get_id() == caller) {
      wait_for(other_began);
      ++own_tiles;
    } else {
      other_began = true;
      wait_for(polled_while_waiting);
    }
    std::fill_n(out, n, scale);
  };
  TreeConfig c = config_of(Variant::vanilla, Memory::kStored, 2048 * 200, 2);
  c.kernels = &slow;
  Tree<float> tree(c);
  std::vector<float> out(c.size);
  int tiles_at_last_poll = -1;
  tree.step(out.data(), [&] {
    if (own_tiles == tiles_at_last_poll) polled_while_waiting = true;
    tiles_at_last_poll = own_tiles;
  });
  CHECK(other_began.load());
  CHECK(polled_while_waiting.load());
}

// --- the floating-point environment ---

void with_environment(const char* what, void (*set)(), bool (*still_set)()) {
  for (const Variant variant : {Variant::vanilla, Variant::honaker}) {
    for (const std::size_t threads : {1u, 2u}) {
      TreeConfig c = config_of(variant, Memory::kRegenerate, 2048 * 17, threads);
      c.std = 1e-38;  // sums and averages of subnormal numbers
      oracle::Tree<float> plain(c);
      std::vector<std::vector<float>> expected;
      for (int t = 0; t < 12; ++t) {
        expected.push_back(plain.residual());
        if (t == 6) plain.restart(true);
      }
      Tree<float> tree(c);
      std::vector<float> out(c.size);
      std::fenv_t saved;
      std::fegetenv(&saved);
      std::vector<std::vector<float>> got;
      bool given_back = true;
      set();
      for (int t = 0; t < 12; ++t) {
        tree.residual(out.data(), {});
        given_back = given_back && still_set();
        if (t == 6) tree.restart(true, {});
        got.push_back(out);
      }
      std::fesetenv(&saved);
      check::record(given_back, __FILE__, __LINE__, std::string("not given back: ") + what);
      for (std::size_t i = 0; i < got.size(); ++i) same(got[i], expected[i]);
    }
  }
}

void environments() {
  with_environment(
      "upward", [] { std::fesetround(FE_UPWARD); }, [] { return std::fegetround() == FE_UPWARD; });
  with_environment(
      "towards zero", [] { std::fesetround(FE_TOWARDZERO); }, [] { return std::fegetround() == FE_TOWARDZERO; });
#if defined(__x86_64__) || defined(_M_X64)
  with_environment(
      "flush to zero, denormals are zero", [] { _mm_setcsr(_mm_getcsr() | 0x8040); },
      [] { return (_mm_getcsr() & 0x8040) == 0x8040; });
  // The control: without the guard the same sums come out otherwise.
  volatile float tiny = 1e-39f;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);
  volatile float sum = tiny + tiny;
  _mm_setcsr(saved);
  CHECK_EQ(sum, 0.0f);
#endif
}

}  // namespace

int main() {
  interruptions();
  many_short_sums();
  polls_while_waiting();
  environments();
  return check::report();
}
