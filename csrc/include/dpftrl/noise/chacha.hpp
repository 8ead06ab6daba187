// SPDX-License-Identifier: Apache-2.0
#pragma once

// ChaCha (Bernstein 2008; RFC 8439) as a pure function of key and counter. The scalar block is the
// specification that every vector kernel is compared with.

#include <cstddef>
#include <cstdint>

namespace dpftrl {

inline constexpr std::uint32_t kChaChaConstants[4] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};

constexpr bool valid_rounds(int rounds) noexcept { return rounds == 8 || rounds == 12 || rounds == 20; }

namespace detail {

constexpr std::uint32_t rotl(std::uint32_t x, int n) noexcept { return (x << n) | (x >> (32 - n)); }

inline void quarter_round(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d) noexcept {
  a += b, d = rotl(d ^ a, 16);
  c += d, b = rotl(b ^ c, 12);
  a += b, d = rotl(d ^ a, 8);
  c += d, b = rotl(b ^ c, 7);
}

}  // namespace detail

// out[0..15] = the block of `rounds` rounds for this key and these four counter words (state words 12..15).
inline void chacha_block(const std::uint32_t key[8], const std::uint32_t counter[4], int rounds,
                         std::uint32_t out[16]) noexcept {
  std::uint32_t input[16];
  for (int i = 0; i < 4; ++i) input[i] = kChaChaConstants[i];
  for (int i = 0; i < 8; ++i) input[4 + i] = key[i];
  for (int i = 0; i < 4; ++i) input[12 + i] = counter[i];
  std::uint32_t x[16];
  for (int i = 0; i < 16; ++i) x[i] = input[i];
  for (int r = 0; r < rounds; r += 2) {
    detail::quarter_round(x[0], x[4], x[8], x[12]);
    detail::quarter_round(x[1], x[5], x[9], x[13]);
    detail::quarter_round(x[2], x[6], x[10], x[14]);
    detail::quarter_round(x[3], x[7], x[11], x[15]);
    detail::quarter_round(x[0], x[5], x[10], x[15]);
    detail::quarter_round(x[1], x[6], x[11], x[12]);
    detail::quarter_round(x[2], x[7], x[8], x[13]);
    detail::quarter_round(x[3], x[4], x[9], x[14]);
  }
  for (int i = 0; i < 16; ++i) out[i] = x[i] + input[i];
}

// n_blocks consecutive blocks in the natural order; counter word 0 goes up by one a block, modulo 2^32.
// Runs on the active target (dispatch.cpp).
void chacha_keystream(const std::uint32_t key[8], const std::uint32_t counter[4], int rounds, std::size_t n_blocks,
                      std::uint32_t* out) noexcept;

}  // namespace dpftrl
