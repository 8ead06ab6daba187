// SPDX-License-Identifier: Apache-2.0

// Noise of Toeplitz mechanisms: the bits of the definition for every kind, memory setting, thread count, target and
// offset; what a call draws and keeps; calls that their poll ends; the caller's floating-point environment.

#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "dpftrl/noise/toeplitz.hpp"
#include "toeplitz_oracle.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

using namespace dpftrl;

namespace {

constexpr std::size_t kMemories[] = {Memory::kStored, Memory::kRegenerate, 1, 2, 3, 5, 40};

std::vector<double> long_row(std::size_t count) {
  std::vector<double> row{1.0};
  for (std::size_t j = 1; j < count; ++j) row.push_back((j % 3 == 0 ? 1.0 : -1.0) / static_cast<double>(8u << (j % 7)));
  return row;
}

// Dyadic coefficients, so that the same ones are exact in both dtypes. The long rows are past the terms of one pass,
// the terms of a tree's sum (47), and what is held in cache (64).
std::vector<ToeplitzConfig> mechanisms() {
  const auto make = [](ToeplitzKind kind, std::vector<double> first, std::vector<double> second) {
    ToeplitzConfig c;
    for (std::uint32_t i = 0; i < 8; ++i) c.key.words[i] = 91 * (i + 1);
    c.purpose = static_cast<Purpose>(3);
    c.std = 0.7;
    c.kind = kind;
    c.first = std::move(first);
    c.second = std::move(second);
    return c;
  };
  return {
      make(ToeplitzKind::taps, {1.0}, {}),
      make(ToeplitzKind::taps, {1.0, -0.875}, {}),
      make(ToeplitzKind::taps, {1.0, -0.5, 0.25, 0.0, -0.125}, {}),
      make(ToeplitzKind::taps, long_row(70), {}),
      make(ToeplitzKind::buffers, {0.875}, {0.25}),
      make(ToeplitzKind::buffers, {0.984375, 0.75, 0.5}, {0.125, 0.25, 0.0625}),
      make(ToeplitzKind::buffers, {1.0, 0.0}, {0.0, 0.5}),
      make(ToeplitzKind::bands, {1.0}, {}),
      make(ToeplitzKind::bands, {3.0}, {}),
      make(ToeplitzKind::bands, {1.0, 0.5, 0.375}, {}),
      make(ToeplitzKind::bands, {3.0, -0.5, 0.25, 0.125}, {}),
      make(ToeplitzKind::bands, long_row(55), {}),
  };
}

template <class T>
void same(const std::vector<T>& got, const std::vector<T>& expected) {
  CHECK_EQ(got.size(), expected.size());
  CHECK_SAME_BITS(got.data(), expected.data(), expected.size());
}

// Steps and residuals in turn, skipped steps, restarts; on the way a prefix, which changes nothing, and positions
// that are saved with vectors or without them.
template <class T>
void run_of(const ToeplitzConfig& config, int cycles, std::uint64_t far) {
  oracle::Toeplitz<T> plain(config);
  Toeplitz<T> noise(config);
  std::vector<T> out(config.size);
  const auto residual = [&] {
    noise.residual(out.data(), {});
    same(out, plain.residual());
  };
  const auto step = [&] {
    noise.step(out.data(), {});
    const std::vector<T> expected = plain.step();
    same(out, expected);
    noise.current(out.data(), {});
    same(out, expected);
  };
  const auto resume = [&](bool with_vectors) {
    Toeplitz<T> other(config);
    other.set_position(noise.position());
    if (with_vectors) other.restore_vectors(noise.kept_vectors());
    noise = std::move(other);
  };
  for (int cycle = 0; cycle < cycles; ++cycle) {
    for (int i = 0; i < 5; ++i) residual();
    noise.prefix(4, out.data(), {});
    same(out, plain.prefix(4));
    step(), residual(), residual(), step(), step();
    resume(true);
    residual(), step();
    resume(false);
    residual(), residual();
    noise.advance_to(far), plain.advance_to(far);
    residual(), residual(), step();
    noise.advance_to(far + 6), plain.advance_to(far + 6);
    step();
    resume(true);
    step();
    noise.advance_to(far + 9), plain.advance_to(far + 9);
    if (cycle % 2 == 0) resume(true);
    noise.restart(), plain.restart();
    if (cycle % 2 != 0) {  // a block of which nothing is returned
      noise.advance_to(3), plain.advance_to(3);
      noise.restart(), plain.restart();
    }
  }
}

void settings() {
  for (ToeplitzConfig c : mechanisms()) {
    const std::uint64_t far = c.first.size() > 40 ? 75 : 18;
    for (const std::size_t memory : kMemories) {
      c.memory.vectors = memory;
      c.size = 5, c.offset = 253, c.rounds = 8, c.threads = 1;
      run_of<float>(c, 2, far);
      run_of<double>(c, 2, far);
    }
  }
  // Several tiles and workers: taps, buffers, bands.
  for (const std::size_t number : {1u, 5u, 10u}) {
    ToeplitzConfig c = mechanisms()[number];
    c.size = 2048 * 17 + 5, c.offset = 2040, c.threads = 3;
    for (const std::size_t memory : {Memory::kStored, Memory::kRegenerate}) {
      c.memory.vectors = memory;
      run_of<float>(c, 1, 18);
    }
  }
}

template <class T>
void targets() {
  const TargetList list = available_targets();
  for (ToeplitzConfig c : mechanisms()) {
    c.size = 531, c.offset = 77;
    oracle::Toeplitz<T> plain(c);
    std::vector<std::vector<T>> expected;
    for (int t = 0; t < 12; ++t) expected.push_back(plain.residual());
    for (std::size_t i = 0; i < list.count; ++i) {
      c.kernels = list.items[i];
      Toeplitz<T> noise(c);
      std::vector<T> out(c.size);
      for (const std::vector<T>& right : expected) {
        noise.residual(out.data(), {});
        same(out, right);
      }
    }
  }
}

// A vector past the caches: streaming stores, and reads asked for ahead.
void large() {
  for (const std::size_t number : {1u, 5u, 10u}) {
    ToeplitzConfig c = mechanisms()[number];
    c.size = (std::size_t{2} << 20) + 100, c.threads = 2, c.rounds = 8;
    ToeplitzConfig end = c;
    end.size = 300, end.offset = c.size - 300;
    Toeplitz<float> noise(c);
    oracle::Toeplitz<float> plain(end);
    std::vector<float> out(c.size);
    for (int t = 0; t < 6; ++t) {
      t == 3 ? noise.step(out.data(), {}) : noise.residual(out.data(), {});
      const std::vector<float> expected = t == 3 ? plain.step() : plain.residual();
      CHECK_SAME_BITS(out.data() + end.offset, expected.data(), expected.size());
    }
  }
}

// --- work and memory ---

std::size_t drawn = 0;
template <class T>
void count_fill(const NodeStream&, std::uint64_t, std::size_t n, T, T* out) {
  ++drawn;
  std::fill_n(out, n, T(1));
}

void count_fill_nodes(const NodeStream&, const std::uint64_t*, std::size_t count, std::uint64_t, std::size_t n, double,
                      double* out) {
  drawn += count;
  std::fill_n(out, count * n, 1.0);
}

void cost() {
  NoiseKernels counting = kScalarKernels;
  counting.f64.fill = count_fill<double>;
  counting.f64.fill_nodes = count_fill_nodes;
  double out;
  for (ToeplitzConfig c : mechanisms()) {
    c.size = 1;
    c.kernels = &counting;
    const std::size_t p = c.first.size(), state = c.kind == ToeplitzKind::buffers ? p : p - 1;
    for (const std::size_t memory : kMemories) {
      c.memory.vectors = memory;
      Toeplitz<double> noise(c);
      for (std::size_t t = 1; t <= 100; ++t) {
        drawn = 0;
        noise.residual(&out, {});
        const bool taps = c.kind == ToeplitzKind::taps;
        const std::size_t terms = std::min(p - 1, t - 1);
        const std::size_t normals = taps ? 1 + terms - std::min(terms, memory) : state <= memory ? 1 : t;
        CHECK_EQ(drawn, normals);
        CHECK(noise.allocated() <= std::min(memory, state));
      }
      drawn = 0;
      noise.step(&out, {});
      CHECK(noise.allocated() <= std::min(memory, state) + 1);
    }
  }
}

// --- refusals ---

void refusals() {
  const auto with = [](ToeplitzKind kind, std::vector<double> first, std::vector<double> second) {
    ToeplitzConfig c = mechanisms()[0];
    c.size = 3;
    c.kind = kind, c.first = std::move(first), c.second = std::move(second);
    return c;
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (const ToeplitzConfig& bad : {
           with(ToeplitzKind::taps, {}, {}),
           with(ToeplitzKind::taps, {0.5}, {}),
           with(ToeplitzKind::taps, {1.0}, {1.0}),
           with(ToeplitzKind::taps, {1.0, inf}, {}),
           with(ToeplitzKind::taps, {1.0, 0.1}, {}),
           with(ToeplitzKind::bands, {0.0, 1.0}, {}),
           with(ToeplitzKind::bands, {-1.0}, {}),
           with(ToeplitzKind::buffers, {0.5}, {}),
           with(ToeplitzKind::buffers, {0.5}, {0.25, 0.5}),
           with(ToeplitzKind::buffers, {0.5}, {inf}),
       }) {
    CHECK_THROWS(Toeplitz<float>{bad}, std::invalid_argument, "coefficients must be");
  }
  Toeplitz<float> noise(with(ToeplitzKind::buffers, {0.5}, {0.25}));
  float out[3];
  CHECK_THROWS(noise.restart(), std::invalid_argument, "at least one step");
  noise.residual(out, {});
  CHECK_THROWS(noise.advance_to(0), std::invalid_argument, "cannot go back");
  CHECK_THROWS(noise.prefix(0, out, {}), std::invalid_argument, "t must be");
  CHECK_THROWS(noise.prefix(kMaxSteps + 1, out, {}), std::invalid_argument, "t must be");
  CHECK_THROWS(noise.set_position({1, {}, {0, 2}}), std::invalid_argument, "saved position");
  CHECK_EQ(noise.t(), 1u);
  const std::size_t most = std::size_t{1} << 24;
  noise.set_position({1, std::vector<std::uint64_t>(most - 1, 1), {}});
  noise.restart();
  noise.advance_to(1);
  CHECK_THROWS(noise.restart(), std::invalid_argument, "at most 2**24 restarts");
  CHECK_EQ(noise.block(), most);
}

// --- interruptions ---

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

// Cheap noise, all of it different.
void fill_cheaply(const NodeStream& s, std::uint64_t first, std::size_t n, float scale, float* out) {
  const std::uint64_t of_node = ((s.node ^ (std::uint64_t{s.tree} << 40)) * 0x9e3779b97f4a7c15u) >> 50;
  for (std::size_t i = 0; i < n; ++i) out[i] = scale * static_cast<float>(of_node + ((first + i) & 255));
}

void fill_nodes_cheaply(const NodeStream& s, const std::uint64_t* nodes, std::size_t count, std::uint64_t first,
                        std::size_t n, float scale, float* out) {
  NodeStream each = s;
  for (std::size_t k = 0; k < count; ++k) {
    each.node = nodes[k];
    fill_cheaply(each, first, n, scale, out + k * n);
  }
}

// Calls over `far` steps, each ended at its first poll, beside a run that is not interrupted.
void interrupted_run(ToeplitzConfig c, std::size_t size, std::uint64_t far) {
  static NoiseKernels cheap = active_kernels();
  cheap.f32.fill = fill_cheaply;
  cheap.f32.fill_nodes = fill_nodes_cheaply;
  c.size = size, c.offset = 100, c.kernels = &cheap;
  Toeplitz<float> noise(c);
  c.memory.vectors = Memory::kStored;
  Toeplitz<float> untouched(c);
  std::vector<float> out(size), expected(size);
  const auto stopped = [&](auto&& call) {
    const SourcePosition before = noise.position();
    CHECK_THROWS(call(Poll([] { throw Stop(); })), Stop, "stop");
    const SourcePosition after = noise.position();
    CHECK_EQ(after.t, before.t);
    CHECK_EQ(after.last.t, before.last.t);
    CHECK_EQ(after.last.tree, before.last.tree);
    CHECK(after.ends == before.ends);
  };
  const auto residual = [&] {
    noise.residual(out.data(), {});
    untouched.residual(expected.data(), {});
    same(out, expected);
  };
  const auto step = [&] {
    noise.step(out.data(), {});
    untouched.step(expected.data(), {});
    same(out, expected);
  };
  residual();
  step();
  noise.advance_to(far), untouched.advance_to(far);
  stopped([&](const Poll& poll) { noise.residual(out.data(), poll); });
  stopped([&](const Poll& poll) { noise.step(out.data(), poll); });
  step();
  stopped([&](const Poll& poll) { noise.prefix(far, out.data(), poll); });
  residual();
  noise.restart(), untouched.restart();
  noise.advance_to(far), untouched.advance_to(far);
  stopped([&](const Poll& poll) { noise.step(out.data(), poll); });
  residual();
  step();
}

void interruptions() {
  // A poll comes after 16384 tiles: in the middle of one long tile, or when part of a kept vector's tiles has moved on.
  for (ToeplitzConfig c : mechanisms()) {
    if (c.first.size() > 40) continue;
    for (const std::size_t memory : {Memory::kStored, Memory::kRegenerate, std::size_t{1}}) {
      c.memory.vectors = memory;
      interrupted_run(c, 3, 17000);
    }
  }
  for (const std::size_t number : {1u, 5u, 10u}) interrupted_run(mechanisms()[number], 2048 * 1000, 20);
}

// --- the floating-point environment ---

void with_environment(void (*set)(), bool (*still_set)()) {
  for (ToeplitzConfig c : mechanisms()) {
    if (c.first.size() > 40) continue;
    c.size = 2048 * 17, c.threads = 2;
    c.std = 1e-38;  // sums of subnormal numbers
    oracle::Toeplitz<float> plain(c);
    Toeplitz<float> noise(c);
    std::vector<std::vector<float>> expected, got;
    for (int t = 0; t < 5; ++t) expected.push_back(t % 2 ? plain.step() : plain.residual());
    std::vector<float> out(c.size);
    std::fenv_t saved;
    std::fegetenv(&saved);
    bool given_back = true;
    set();
    for (int t = 0; t < 5; ++t) {
      t % 2 ? noise.step(out.data(), {}) : noise.residual(out.data(), {});
      given_back = given_back && still_set();
      got.push_back(out);
    }
    std::fesetenv(&saved);
    CHECK(given_back);
    for (std::size_t i = 0; i < got.size(); ++i) same(got[i], expected[i]);
  }
}

void environments() {
  with_environment([] { std::fesetround(FE_UPWARD); }, [] { return std::fegetround() == FE_UPWARD; });
#if defined(__x86_64__) || defined(_M_X64)
  with_environment([] { _mm_setcsr(_mm_getcsr() | 0x8040); }, [] { return (_mm_getcsr() & 0x8040) == 0x8040; });
#endif
}

}  // namespace

int main() {
  settings();
  targets<float>();
  targets<double>();
  large();
  cost();
  refusals();
  interruptions();
  environments();
  return check::report();
}
