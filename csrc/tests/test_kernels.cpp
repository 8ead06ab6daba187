// SPDX-License-Identifier: Apache-2.0

// Each available target called directly and compared with scalar, bit for bit; and scalar with the layout of
// docs/guarantees/stream.md. On aarch64 the same file tests NEON.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "dpftrl/infra/float_environment.hpp"
#include "dpftrl/noise/chacha.hpp"
#include "dpftrl/noise/gaussian.hpp"
#include "dpftrl/noise/noise_kernel.hpp"

using namespace dpftrl;

namespace {

constexpr int kRounds[] = {8, 12, 20};
constexpr std::size_t kSizes[] = {1,  2,  3,  7,  8,   9,   15,  16,  17,  31,  32,  33,  63,  64,
                                  65, 95, 96, 97, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000};
constexpr std::uint64_t kOffsets[] = {0, 1, 3, 7, 8, 15, 16, 17, 100, 127, 128, 129, 255, 256, 257, 1001};

NodeStream stream_of(int rounds, std::uint64_t index = 11, std::uint32_t tree = 3) {
  return {{{9, 8, 7, 6, 5, 0xdeadbeef, 3, 2}}, rounds, Purpose::tree, tree, node_id(2, index)};
}

template <class T>
T guard_value() {
  return T(12345.5);
}

// What fill writes, between two guards that it must leave alone.
template <class T>
std::vector<T> filled(const NoiseKernels& kernels, const NodeStream& s, std::uint64_t first, std::size_t n, T scale,
                      std::size_t misalign = 0) {
  std::vector<T> room(n + misalign + 2, guard_value<T>());
  DtypeTraits<T>::kernels(kernels).fill(s, first, n, scale, room.data() + 1 + misalign);
  CHECK_EQ(room[misalign], guard_value<T>());
  CHECK_EQ(room.back(), guard_value<T>());
  return {room.begin() + 1 + static_cast<std::ptrdiff_t>(misalign), room.end() - 1};
}

// docs/guarantees/stream.md, one coordinate at a time.
float coordinate(const NodeStream& s, std::uint64_t c, float scale) {
  const auto block = static_cast<std::uint32_t>(c / 256 * 16 + c % 16);
  const std::size_t row = c % 256 / 16 % 8;
  std::uint32_t words[16], extension[16];
  chacha_block(s.key.words, make_counter(s, Kind::normal_f32, block).words, s.rounds, words);
  chacha_block(s.key.words, make_counter(s, Kind::normal_f32_extension, block).words, s.rounds, extension);
  const std::uint64_t low = words[row] < (1u << 18) ? extension[row] : 0;
  const Pair32 z = normal_pair_f32((std::uint64_t{words[row]} << 32) | low, words[row + 8]);
  return (c % 256 < 128 ? z.first : z.second) * scale;
}

double coordinate(const NodeStream& s, std::uint64_t c, double scale, bool extended = true) {
  const auto block = static_cast<std::uint32_t>(c / 128 * 16 + c % 8 * 2);
  const std::size_t row = c % 128 / 8 % 8;
  std::uint32_t low[16], high[16];
  chacha_block(s.key.words, make_counter(s, Kind::normal_f64, block).words, s.rounds, low);
  chacha_block(s.key.words, make_counter(s, Kind::normal_f64, block + 1).words, s.rounds, high);
  const auto joined = [&](std::size_t j) { return (std::uint64_t{high[j]} << 32) | low[j]; };
  const std::uint64_t radius = joined(row), angle = joined(row + 8);
  constexpr Kind more = Kind::normal_f64_extension;
  chacha_block(s.key.words, make_counter(s, more, block).words, s.rounds, low);
  chacha_block(s.key.words, make_counter(s, more, block + 1).words, s.rounds, high);
  const Pair64 z = normal_pair_f64(radius, angle, extended ? joined(row) : 0);
  return (c % 128 < 64 ? z.first : z.second) * scale;
}

// Whether a radius word (float64: its high half) takes more bits from the extension.
template <class T>
bool is_rare_word(std::uint32_t word) {
  return word < 1u << 18 || (sizeof(T) == 8 && word >= 0xfffc0000u);
}

template <class T>
void scalar_follows_the_specification() {
  for (const int rounds : kRounds) {
    const NodeStream s = stream_of(rounds);
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, DtypeTraits<T>::max_coordinates - 700}) {
      const std::vector<T> got = filled<T>(kScalarKernels, s, first, 700, T(1.7));
      std::vector<T> expected;
      for (std::uint64_t i = 0; i < 700; ++i) expected.push_back(coordinate(s, first + i, T(1.7)));
      CHECK_SAME_BITS(got.data(), expected.data(), got.size());
    }
  }
}

template <class T>
void sizes_and_offsets(const NoiseKernels& kernels) {
  for (const int rounds : kRounds) {
    const NodeStream s = stream_of(rounds, 0x3ffffffffff, 0xfedcba98);
    const std::vector<T> all = filled<T>(kScalarKernels, s, 0, 2048, T(0.3));
    for (const std::size_t n : kSizes) {
      for (const std::uint64_t first : kOffsets) {
        const std::vector<T> got = filled<T>(kernels, s, first, n, T(0.3), n % 5);
        CHECK_SAME_BITS(got.data(), all.data() + first, n);
      }
    }
    // The last coordinates that there are, whose block numbers are the largest.
    const std::uint64_t first = DtypeTraits<T>::max_coordinates - 515;
    const std::vector<T> end = filled<T>(kernels, s, first, 515, T(1));
    const std::vector<T> expected = filled<T>(kScalarKernels, s, first, 515, T(1));
    CHECK_SAME_BITS(end.data(), expected.data(), end.size());
  }
}

// A few coordinates of many nodes, anywhere about a superblock with rare words of one of them, which comes at every
// place of a group.
template <class T>
void nodes_together(const NoiseKernels& kernels) {
  constexpr std::uint64_t size = DtypeTraits<T>::superblock, begin = kSelfCheckSuperblock * size - 9;
  constexpr std::size_t length = size + 80;
  for (const int rounds : kRounds) {
    const NodeStream s = self_check_stream(rounds);
    std::vector<std::uint64_t> nodes;
    for (std::uint64_t i = 0; i < 19; ++i) nodes.push_back(i % 3 == 2 ? s.node : (s.node + 977 * i) ^ (i << 43));
    std::vector<std::vector<T>> alone;
    for (const std::uint64_t node : nodes) {
      NodeStream other = s;
      other.node = node;
      alone.push_back(filled<T>(kScalarKernels, other, begin, length, T(1.7)));
    }
    NodeStream any = s;
    any.node = 12345;  // is not read
    for (const std::size_t n : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 70u}) {
      for (const std::size_t count : {1u, 2u, 5u, 16u, 19u}) {
        for (std::size_t at = 0; at + n <= length; at += n) {
          std::vector<T> got(count * n + 1, guard_value<T>());
          DtypeTraits<T>::kernels(kernels).fill_nodes(any, nodes.data(), count, begin + at, n, T(1.7), got.data());
          CHECK_EQ(got.back(), guard_value<T>());
          for (std::size_t k = 0; k < count; ++k) CHECK_SAME_BITS(&got[k * n], &alone[k][at], n);
        }
      }
    }
  }
}

// Many words: among 2^20 radii all leading-zero counts up to the rare ones, thousands of int64 -> double conversions
// that are ties, and dozens of rare words.
template <class T>
void many_words(const NoiseKernels& kernels) {
  const std::size_t n = std::size_t{1} << 21;
  const NodeStream s = stream_of(8, 5);
  const std::vector<T> got = filled<T>(kernels, s, 0, n, T(1)), expected = filled<T>(kScalarKernels, s, 0, n, T(1));
  CHECK_SAME_BITS(got.data(), expected.data(), n);
}

// f = double(int64(N)) * 2^-64 rounds 64 bits to 53. Are the ties of which many_words speaks there?
void ties_occur() {
  const NodeStream s = stream_of(8, 5);
  int ties = 0, to_even_down = 0;
  for (std::uint32_t block = 0; block < 1u << 15; block += 2) {
    std::uint32_t low[16], high[16];
    chacha_block(s.key.words, make_counter(s, Kind::normal_f64, block).words, 8, low);
    chacha_block(s.key.words, make_counter(s, Kind::normal_f64, block + 1).words, 8, high);
    for (std::size_t row = 0; row < 8; ++row) {
      const std::uint64_t word = detail::normalise((std::uint64_t{high[row]} << 32) | low[row]).word;
      const std::uint64_t magnitude = 0 - word;  // int64(N) is negative
      const int bits = 64 - detail::normalise(magnitude).leading_zeros;
      if (bits < 55) continue;
      const std::uint64_t unit = std::uint64_t{1} << (bits - 53);
      if (magnitude % unit != unit / 2) continue;
      ++ties;
      if ((magnitude / unit) % 2 == 0) ++to_even_down;
    }
  }
  CHECK(ties > 50);
  CHECK(to_even_down > 20);
  CHECK(ties - to_even_down > 20);
}

// Coordinates that need the scalar path: its place in the superblock (lane, row), alone and at the edge of a range.
template <class T>
void rare_words(const NoiseKernels& kernels) {
  constexpr std::uint64_t superblock = DtypeTraits<T>::superblock;
  constexpr bool is_f32 = sizeof(T) == 4;
  int found = 0, large_words = 0;
  std::vector<bool> lanes(16);
  for (std::uint64_t index = 0; found < (is_f32 ? 60 : 120); ++index) {
    const NodeStream s = stream_of(8, index);
    for (std::uint32_t block = is_f32 ? 0 : 1; block < 32; block += is_f32 ? 1 : 2) {
      std::uint32_t words[16];
      chacha_block(s.key.words, make_counter(s, is_f32 ? Kind::normal_f32 : Kind::normal_f64, block).words, 8, words);
      for (std::uint32_t row = 0; row < 8; ++row) {
        if (!is_rare_word<T>(words[row])) continue;
        ++found;
        if (words[row] >> 31 != 0) ++large_words;
        lanes[block % 16] = true;
        const std::uint64_t lower =
            block / 16 * superblock + (is_f32 ? row * 16 + block % 16 : row * 8 + block % 16 / 2);
        for (const std::uint64_t c : {lower, lower + superblock / 2}) {
          const std::vector<T> got = filled<T>(kernels, s, c, 1, T(1.7));
          CHECK_EQ(got[0], coordinate(s, c, T(1.7)));
        }
        const std::vector<T> got = filled<T>(kernels, s, 0, 2 * superblock, T(1.7));
        const std::vector<T> expected = filled<T>(kScalarKernels, s, 0, 2 * superblock, T(1.7));
        CHECK_SAME_BITS(got.data(), expected.data(), got.size());
      }
    }
  }
  CHECK(std::count(lanes.begin(), lanes.end(), true) >= (is_f32 ? 13 : 7));
  CHECK(is_f32 ? large_words == 0 : (large_words > 40 && large_words < found - 40));
}

// The largest radius word that is rare, and the next, at coordinates found by search: one word in 2^32 is such a one.
void edge_of_rare_words(const NoiseKernels& kernels) {
  struct Edge {
    std::uint64_t index;
    std::uint32_t block, row, word;
  };
  for (const Edge& edge : {Edge{736, 343312, 6, kRareRadius - 1}, Edge{232, 775169, 5, kRareRadius}}) {
    const NodeStream s = stream_of(8, edge.index);
    std::uint32_t words[16];
    chacha_block(s.key.words, make_counter(s, Kind::normal_f32, edge.block).words, 8, words);
    CHECK_EQ(words[edge.row], edge.word);
    const std::uint64_t first = edge.block / 16 * std::uint64_t{256}, c = first + edge.row * 16 + edge.block % 16;
    const std::vector<float> got = filled<float>(kernels, s, first, 256, 1.7f);
    CHECK_EQ(got[c - first], coordinate(s, c, 1.7f));
    CHECK_EQ(got[c - first + 128], coordinate(s, c + 128, 1.7f));
    const std::uint64_t radius = std::uint64_t{edge.word} << 32;
    const float without = normal_pair_f32(radius, words[edge.row + 8]).first * 1.7f;
    CHECK_EQ(without == got[c - first], edge.word == kRareRadius);
  }
}

// The same for float64, where both ends are rare: the high half of the radius word, at an even block.
void edges_of_rare_words_f64(const NoiseKernels& kernels) {
  struct Edge {
    std::uint64_t index;
    std::uint32_t block, row, word;
  };
  for (const Edge& edge : {Edge{3006, 852614, 4, 0x0003ffff}, Edge{140, 26672, 2, 0x00040000},
                           Edge{2201, 682500, 3, 0xfffbffff}, Edge{773, 678746, 2, 0xfffc0000}}) {
    const NodeStream s = stream_of(8, edge.index);
    std::uint32_t low[16], high[16];
    chacha_block(s.key.words, make_counter(s, Kind::normal_f64, edge.block).words, 8, low);
    chacha_block(s.key.words, make_counter(s, Kind::normal_f64, edge.block + 1).words, 8, high);
    CHECK_EQ(high[edge.row], edge.word);
    const std::uint64_t first = edge.block / 16 * std::uint64_t{128}, c = first + edge.row * 8 + edge.block % 16 / 2;
    const std::vector<double> got = filled<double>(kernels, s, first, 128, 1.7);
    CHECK_EQ(got[c - first], coordinate(s, c, 1.7));
    CHECK_EQ(got[c - first + 64], coordinate(s, c + 64, 1.7));
    const auto joined = [&](std::size_t j) { return (std::uint64_t{high[j]} << 32) | low[j]; };
    const double without = normal_pair_f64(joined(edge.row), joined(edge.row + 8), 0).first * 1.7;
    CHECK_EQ(without == got[c - first], !is_rare_word<double>(edge.word));
  }
}

template <class T>
void arithmetic(const NoiseKernels& kernels) {
  const TileKernels<T>&k = DtypeTraits<T>::kernels(kernels), &scalar = DtypeTraits<T>::kernels(kScalarKernels);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (const std::size_t n : kSizes) {
    std::vector<T> a(n), b(n), c(n);
    for (std::size_t i = 0; i < n; ++i) {
      a[i] = static_cast<T>(normal(random)), b[i] = static_cast<T>(normal(random)),
      c[i] = static_cast<T>(normal(random));
    }
    const T w = T(0.6531);
    std::vector<T> got(n), expected(n), plain(n);
    const auto same = [&] {
      CHECK_SAME_BITS(got.data(), expected.data(), n);
      CHECK_SAME_BITS(got.data(), plain.data(), n);
    };
    const auto by_hand = [&](auto&& f) {
      for (std::size_t i = 0; i < n; ++i) {
        volatile T rounded = f(i);  // volatile: one rounding a line
        plain[i] = rounded;
      }
    };
    k.add(n, a.data(), b.data(), got.data()), scalar.add(n, a.data(), b.data(), expected.data());
    by_hand([&](std::size_t i) { return a[i] + b[i]; }), same();
    k.subtract(n, a.data(), b.data(), got.data()), scalar.subtract(n, a.data(), b.data(), expected.data());
    by_hand([&](std::size_t i) { return a[i] - b[i]; }), same();
    const T* const terms[3] = {b.data(), c.data(), a.data()};
    const T weights[3] = {w, static_cast<T>(0.3), static_cast<T>(-0.7)};
    for (const std::size_t count : {1u, 2u, 3u}) {
      for (const T* base : {static_cast<const T*>(nullptr), static_cast<const T*>(a.data())}) {
        k.weighted_sum(n, base, count, terms, weights, got.data());
        scalar.weighted_sum(n, base, count, terms, weights, expected.data());
        by_hand([&](std::size_t i) {
          volatile T sum = base != nullptr ? base[i] : T(0);
          for (std::size_t j = 0; j < count; ++j) {
            volatile T product = terms[j][i] * weights[j];
            if (j == 0 && base == nullptr) {
              sum = product;
            } else {
              sum = sum + product;
            }
          }
          return T(sum);
        });
        same();
      }
    }
    k.add_average(n, a.data(), b.data(), c.data(), got.data());
    scalar.add_average(n, a.data(), b.data(), c.data(), expected.data());
    by_hand([&](std::size_t i) {
      volatile T sum = b[i] + c[i];
      volatile T half = sum * T(0.5);
      return a[i] + half;
    });
    same();
    // In place, as the tree calls them.
    got = a, k.add(n, got.data(), b.data(), got.data()), by_hand([&](std::size_t i) { return a[i] + b[i]; });
    CHECK_SAME_BITS(got.data(), plain.data(), n);
    got = b, k.add_average(n, a.data(), c.data(), got.data(), got.data());
    by_hand([&](std::size_t i) {
      volatile T sum = c[i] + b[i];
      volatile T half = sum * T(0.5);
      return a[i] + half;
    });
    CHECK_SAME_BITS(got.data(), plain.data(), n);
  }
}

template <class T, class G>
void release(const NoiseKernels& kernels) {
  const TileKernels<T>&k = DtypeTraits<T>::kernels(kernels), &scalar = DtypeTraits<T>::kernels(kScalarKernels);
  const auto call = [](const TileKernels<T>& with, std::size_t n, const T* noise, G divisor, T* r, G* g) {
    if constexpr (sizeof(G) == 4) {
      with.release_f32(n, noise, T(0.25), divisor, r, g);
    } else {
      with.release_f64(n, noise, T(0.25), divisor, r, g);
    }
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double unusual[] = {0.0, -0.0, 0.125, -0.125, 0.375, 1e30, -1e30, 3e38, infinity, -infinity, 1e-44};
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal;
  for (const std::size_t n : kSizes) {
    for (const G divisor : {G(1), G(3), G(256)}) {
      std::vector<T> noise(n), r(n), plain_r(n);
      std::vector<G> g(n), plain_g(n);
      for (std::size_t i = 0; i < n; ++i) {
        noise[i] = static_cast<T>(3 * normal(random)), r[i] = static_cast<T>(normal(random) / 8);
        g[i] = static_cast<G>(i % 5 == 3 ? unusual[random() % std::size(unusual)] : 40 * normal(random));
      }
      std::vector<T> scalar_r = r;
      std::vector<G> scalar_g = g;
      for (std::size_t i = 0; i < n; ++i) {
        volatile double wide_sum = static_cast<double>(noise[i]) + static_cast<double>(g[i]);
        volatile T narrow_sum = noise[i] + static_cast<T>(g[i]);
        const T noisy = sizeof(G) > sizeof(T) ? static_cast<T>(wide_sum) : T(narrow_sum);
        volatile T x = r[i] + noisy;
        volatile T cell = x / T(0.25);
        cell = cell + T(0.5);
        volatile T w = std::floor(T(cell)) * T(0.25);
        volatile T rest = x - w;
        volatile G out = static_cast<G>(w);
        out = out / divisor;
        plain_r[i] = rest, plain_g[i] = out;
      }
      call(k, n, noise.data(), divisor, r.data(), g.data());
      call(scalar, n, noise.data(), divisor, scalar_r.data(), scalar_g.data());
      for (std::size_t i = 0; i < n; ++i) {  // infinity less infinity: which NaN is for the processor
        CHECK(std::isnan(r[i]) == std::isnan(plain_r[i]) && std::isnan(r[i]) == std::isnan(scalar_r[i]));
        if (std::isnan(r[i])) r[i] = scalar_r[i] = plain_r[i] = 0;
      }
      CHECK_SAME_BITS(r.data(), plain_r.data(), n);
      CHECK_SAME_BITS(g.data(), plain_g.data(), n);
      CHECK_SAME_BITS(scalar_r.data(), plain_r.data(), n);
      CHECK_SAME_BITS(scalar_g.data(), plain_g.data(), n);
    }
  }
}

// --- the choice of a target ---

// The radius word of a coordinate (float64: its high half).
template <class T>
std::uint32_t radius_word(const NodeStream& s, std::uint64_t c) {
  constexpr bool is_f32 = sizeof(T) == 4;
  const auto block = static_cast<std::uint32_t>(is_f32 ? c / 256 * 16 + c % 16 : c / 128 * 16 + c % 8 * 2 + 1);
  const std::size_t row = is_f32 ? c % 256 / 16 % 8 : c % 128 / 8 % 8;
  std::uint32_t words[16];
  chacha_block(s.key.words, make_counter(s, is_f32 ? Kind::normal_f32 : Kind::normal_f64, block).words, s.rounds,
               words);
  return words[row];
}

enum class End { smallest, largest };

// Whether a word is rare, at one end of the range.
template <class T, End end>
bool is_rare_at(std::uint32_t word) {
  return is_rare_word<T>(word) && (word >> 31 != 0) == (end == End::largest);
}

// Wrong where the radius word is rare at one end, right elsewhere.
template <class T, End end>
void fill_without_rare_words(const NodeStream& s, std::uint64_t first, std::size_t n, T scale, T* out) {
  DtypeTraits<T>::kernels(kScalarKernels).fill(s, first, n, scale, out);
  for (std::size_t i = 0; i < n; ++i) {
    if (is_rare_at<T, end>(radius_word<T>(s, first + i))) out[i] = scale;
  }
}

template <class T>
void fill_nodes_without_rare_words(const NodeStream& s, const std::uint64_t* nodes, std::size_t count,
                                   std::uint64_t first, std::size_t n, T scale, T* out) {
  NodeStream each = s;
  for (std::size_t k = 0; k < count; ++k) {
    each.node = nodes[k];
    fill_without_rare_words<T, End::smallest>(each, first, n, scale, out + k * n);
  }
}

// As if the words of the extension were zeros, at one end.
template <End end>
void fill_without_extension(const NodeStream& s, std::uint64_t first, std::size_t n, double scale, double* out) {
  kScalarKernels.f64.fill(s, first, n, scale, out);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t c = first + i;
    if (is_rare_at<double, end>(radius_word<double>(s, c))) out[i] = coordinate(s, c, scale, false);
  }
}

template <class T, End end>
bool self_check_has_rare_word(int rounds) {
  const NodeStream s = self_check_stream(rounds);
  constexpr std::uint64_t size = DtypeTraits<T>::superblock;
  for (std::uint64_t c = kSelfCheckSuperblock * size; c < (kSelfCheckSuperblock + 1) * size; ++c) {
    if (is_rare_at<T, end>(radius_word<T>(s, c))) return true;
  }
  return false;
}

void self_check() {
  const TargetList targets = available_targets();
  for (std::size_t i = 0; i < targets.count; ++i) CHECK(agrees_with_scalar(*targets.items[i]));
  CHECK_EQ(std::string(targets.items[0]->name), "scalar");
  CHECK_EQ(std::string(active_kernels().name), targets.items[targets.count - 1]->name);
  CHECK(rejected_target() == nullptr);
  CHECK(find_target("scalar") == &kScalarKernels);
  CHECK(find_target("sse9") == nullptr);

  for (const int rounds : kRounds) {
    CHECK((self_check_has_rare_word<float, End::smallest>(rounds)));
    CHECK((self_check_has_rare_word<double, End::smallest>(rounds)));
    CHECK((self_check_has_rare_word<double, End::largest>(rounds)));
    CHECK(self_check_stream(rounds).node < std::uint64_t{1} << 48);
  }

  // It notices each way to be wrong.
  const auto rejects = [](const char* what, void (*spoil)(NoiseKernels&)) {
    NoiseKernels bad = kScalarKernels;
    spoil(bad);
    check::record(!agrees_with_scalar(bad), __FILE__, __LINE__, std::string("accepted: ") + what);
  };
  rejects("no rare words, float32",
          [](NoiseKernels& k) { k.f32.fill = fill_without_rare_words<float, End::smallest>; });
  rejects("no rare words, float64, smallest",
          [](NoiseKernels& k) { k.f64.fill = fill_without_rare_words<double, End::smallest>; });
  rejects("no rare words, float64, largest",
          [](NoiseKernels& k) { k.f64.fill = fill_without_rare_words<double, End::largest>; });
  rejects("no extension, float64, smallest",
          [](NoiseKernels& k) { k.f64.fill = fill_without_extension<End::smallest>; });
  rejects("no extension, float64, largest", [](NoiseKernels& k) { k.f64.fill = fill_without_extension<End::largest>; });
  rejects("no rare words of many nodes, float32",
          [](NoiseKernels& k) { k.f32.fill_nodes = fill_nodes_without_rare_words<float>; });
  rejects("no rare words of many nodes, float64",
          [](NoiseKernels& k) { k.f64.fill_nodes = fill_nodes_without_rare_words<double>; });
  rejects("no remainder, float32", [](NoiseKernels& k) {
    k.f32.release_f32 = [](std::size_t n, const float* noise, float grid, float divisor, float*, float* sums) {
      std::vector<float> none(n);
      kScalarKernels.f32.release_f32(n, noise, grid, divisor, none.data(), sums);
    };
  });
  rejects("no division, float64 sums", [](NoiseKernels& k) {
    k.f64.release_f64 = [](std::size_t n, const double* noise, double grid, double, double* remainder, double* sums) {
      kScalarKernels.f64.release_f64(n, noise, grid, 1.0, remainder, sums);
    };
  });
  rejects("12 rounds only", [](NoiseKernels& k) {
    k.f32.fill = [](const NodeStream& s, std::uint64_t first, std::size_t n, float scale, float* out) {
      NodeStream other = s;
      other.rounds = 12;
      kScalarKernels.f32.fill(other, first, n, scale, out);
    };
  });
  rejects("fused", [](NoiseKernels& k) {
    k.f32.weighted_sum = [](std::size_t n, const float* base, std::size_t count, const float* const* x, const float* w,
                            float* out) {
      for (std::size_t i = 0; i < n; ++i) {
        float sum = base != nullptr ? std::fma(x[0][i], w[0], base[i]) : x[0][i] * w[0];
        for (std::size_t j = 1; j < count; ++j) sum = std::fma(x[j][i], w[j], sum);
        out[i] = sum;
      }
    };
  });
  rejects("add", [](NoiseKernels& k) { k.f64.add = k.f64.subtract; });
  rejects("subtract", [](NoiseKernels& k) { k.f32.subtract = k.f32.add; });
  rejects("last term left out", [](NoiseKernels& k) {
    k.f64.weighted_sum = [](std::size_t n, const double* base, std::size_t count, const double* const* x,
                            const double* w, double* out) {
      kScalarKernels.f64.weighted_sum(n, base, count > 1 ? count - 1 : 1, x, w, out);
    };
  });
  rejects("average", [](NoiseKernels& k) {
    k.f32.add_average = [](std::size_t n, const float* z, const float* l, const float* r, float* out) {
      for (std::size_t i = 0; i < n; ++i) out[i] = z[i] + l[i] * 0.5f + r[i] * 0.5f;
    };
  });
  rejects("keystream", [](NoiseKernels& k) {
    k.keystream16 = [](const Key& key, const Counter& c, int rounds, std::uint32_t* out) {
      kScalarKernels.keystream16(key, c, rounds, out);
      if (c.words[0] > 0xfffffff0u) ++out[255];
    };
  });
}

}  // namespace

int main() {
  const FloatEnvironment guard;
  scalar_follows_the_specification<float>();
  scalar_follows_the_specification<double>();
  ties_occur();
  const TargetList targets = available_targets();
  for (std::size_t i = 0; i < targets.count; ++i) {
    const NoiseKernels& kernels = *targets.items[i];
    sizes_and_offsets<float>(kernels);
    sizes_and_offsets<double>(kernels);
    nodes_together<float>(kernels);
    nodes_together<double>(kernels);
    many_words<float>(kernels);
    many_words<double>(kernels);
    rare_words<float>(kernels);
    rare_words<double>(kernels);
    edge_of_rare_words(kernels);
    edges_of_rare_words_f64(kernels);
    arithmetic<float>(kernels);
    arithmetic<double>(kernels);
    release<float, float>(kernels);
    release<float, double>(kernels);
    release<double, float>(kernels);
    release<double, double>(kernels);
  }
  self_check();
  return check::report();
}
