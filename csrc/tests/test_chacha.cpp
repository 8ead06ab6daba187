// SPDX-License-Identifier: Apache-2.0

// The cipher against published vectors, the keystream of every target against the block function, and the
// counter words against their written layout.

#include <cstdint>
#include <string>
#include <vector>

#include "check.hpp"
#include "dpftrl/noise/chacha.hpp"
#include "dpftrl/noise/noise_kernel.hpp"
#include "dpftrl/noise/stream.hpp"

using namespace dpftrl;

namespace {

constexpr int kRounds[] = {8, 12, 20};

std::vector<std::uint32_t> words_from_hex(const std::string& hex) {
  std::vector<std::uint32_t> words(hex.size() / 8);
  for (std::size_t i = 0; i < hex.size() / 2; ++i) {
    const auto byte = static_cast<std::uint32_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
    words[i / 4] |= byte << (8 * (i % 4));
  }
  return words;
}

struct Vector {
  int rounds;
  std::string key;
  std::uint32_t counter[4];
  std::string block;
};

const std::string kZeroKey(64, '0');
const std::string kCountingKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

// RFC 8439 sections 2.3.2 and A.1; for 8 and 12 rounds the eSTREAM vectors (draft-strombergson-chacha-test-vectors,
// TC1, whose 64-bit counter and nonce are zero).
const Vector kVectors[] = {
    {20,
     kCountingKey,
     {1, 0x09000000, 0x4a000000, 0},
     "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
     "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"},
    {20,
     kZeroKey,
     {0, 0, 0, 0},
     "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
     "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"},
    {20,
     kZeroKey,
     {1, 0, 0, 0},
     "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
     "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"},
    {20,
     std::string(62, '0') + "01",
     {1, 0, 0, 0},
     "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
     "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"},
    {20,
     "00ff" + std::string(60, '0'),
     {2, 0, 0, 0},
     "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
     "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"},
    {20,
     kZeroKey,
     {0, 0, 0, 0x02000000},
     "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
     "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"},
    {8,
     kZeroKey,
     {0, 0, 0, 0},
     "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
     "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"},
    {12,
     kZeroKey,
     {0, 0, 0, 0},
     "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f"
     "0564f879d27ae3c02ce82834acfa8c793a629f2ca0de6919610be82f411326be"},
};

void published_vectors() {
  for (const Vector& v : kVectors) {
    const auto key = words_from_hex(v.key), expected = words_from_hex(v.block);
    std::uint32_t block[16];
    chacha_block(key.data(), v.counter, v.rounds, block);
    CHECK_SAME_BITS(block, expected.data(), 16);
  }
}

constexpr Key kKey{{0x03020100, 0x07060504, 0x0b0a0908, 0x0f0e0d0c, 0x80000000, 0xffffffff, 0x7fffffff, 1}};

void keystreams() {
  const TargetList targets = available_targets();
  for (std::size_t i = 0; i < targets.count; ++i) {
    for (const int rounds : kRounds) {
      // The block number wraps on the way at every lane of the widest vector, and nothing carries into word 1.
      for (std::uint32_t start = 0u - 17; start != 2; ++start) {
        const Counter counter{{start, 0xffffffff, 5, 0xabcd0123}};
        std::uint32_t expected[kWordsPerSuperblock], got[kWordsPerSuperblock];
        for (std::uint32_t block = 0; block < 16; ++block) {
          const std::uint32_t c[4] = {start + block, 0xffffffff, 5, 0xabcd0123};
          chacha_block(kKey.words, c, rounds, expected + 16 * block);
        }
        targets.items[i]->keystream16(kKey, counter, rounds, got);
        CHECK_SAME_BITS(got, expected, kWordsPerSuperblock);
      }
    }
  }
  for (const std::size_t blocks : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 100u}) {
    const std::uint32_t counter[4] = {0u - 20, 1, 2, 3};
    std::vector<std::uint32_t> expected(16 * blocks), got(16 * blocks + 1, 0x5eed);
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::uint32_t c[4] = {counter[0] + static_cast<std::uint32_t>(b), 1, 2, 3};
      chacha_block(kKey.words, c, 12, expected.data() + 16 * b);
    }
    chacha_keystream(kKey.words, counter, 12, blocks, got.data());
    CHECK_SAME_BITS(got.data(), expected.data(), expected.size());
    CHECK_EQ(got.back(), 0x5eedu);
  }
}

void counter_layout() {
  const NodeStream s{kKey, 12, Purpose::covariance_tree, 0x89abcdef, 0x123456789abc};
  const Counter c = make_counter(s, Kind::normal_f64, 0xfedcba98);
  const std::uint32_t expected[4] = {0xfedcba98, 0x56789abc, 0x89ab1234, 0x0103cdef};
  CHECK_SAME_BITS(c.words, expected, 4);

  // In-order numbers: a node's lies between those of its children, and below 2^48.
  for (int level = 1; level <= 5; ++level) {
    for (std::uint64_t index = 0; index < 40; ++index) {
      const std::uint64_t id = node_id(level, index), half = std::uint64_t{1} << (level - 1);
      CHECK_EQ(node_id(level - 1, 2 * index), id - half);
      CHECK_EQ(node_id(level - 1, 2 * index + 1), id + half);
    }
  }
  CHECK_EQ(node_id(0, 0), 1u);
  CHECK(node_id(0, kMaxSteps - 1) < std::uint64_t{1} << 48);
  CHECK(node_id(kMaxLevel, 0) < std::uint64_t{1} << 48);
}

}  // namespace

int main() {
  published_vectors();
  keystreams();
  counter_layout();
  return check::report();
}
