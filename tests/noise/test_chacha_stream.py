# SPDX-License-Identifier: Apache-2.0
"""The words of `ChaCha`: RFC 8439, the written layout, uniformity and independence."""

from __future__ import annotations

import numpy as np
import pytest
from chacha_oracle import (
    END,
    JUMP,
    MASK32,
    ROUNDS,
    as_words,
    at,
    position_of,
    python_block,
    python_draws64,
    python_words,
    seed_key,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator
from scipy import stats

from dpftrl_fast._chacha import ChaCha, _keystream

# ----------------------------------------------------------------------------------------- RFC 8439

COUNTING_KEY = bytes(range(32))
# (key, block counter, nonce, keystream), sections 2.3.2 and A.1 (vectors 1 to 5).
RFC_BLOCKS = [
    (
        COUNTING_KEY,
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32),
        0,
        "000000000000000000000000",
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        "000000000000000000000000",
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\x01",
        1,
        "000000000000000000000000",
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        "000000000000000000000000",
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32),
        0,
        "000000000000000000000002",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]
SUNSCREEN = (
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
    b"sunscreen would be it."
)
SUNSCREEN_CIPHERTEXT = bytes.fromhex(
    "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b"
    "f91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8"
    "07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736"
    "5af90bbf74a35be6b40b8eedf2785e42874d"
)


def rfc_tail(counter: int, nonce: str) -> bytes:
    return counter.to_bytes(4, "little") + bytes.fromhex(nonce)


@pytest.mark.parametrize(("key", "counter", "nonce", "expected"), RFC_BLOCKS)
def test_rfc_blocks(key: bytes, counter: int, nonce: str, expected: str) -> None:
    tail = rfc_tail(counter, nonce)
    block = _keystream(key, as_words(tail), 20, 1)
    assert block.astype("<u4").tobytes().hex() == expected
    assert python_block(key, tail, 20) == as_words(bytes.fromhex(expected))


def test_rfc_encryption() -> None:
    tail = rfc_tail(1, "000000000000004a00000000")
    stream = _keystream(COUNTING_KEY, as_words(tail), 20, 2).astype("<u4").tobytes()
    assert bytes(p ^ s for p, s in zip(SUNSCREEN, stream, strict=False)) == SUNSCREEN_CIPHERTEXT


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("n_blocks", [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33])
def test_keystream_of_any_length(rounds: int, n_blocks: int) -> None:
    first = 2**32 - 5  # the block counter wraps without a carry into the next word
    blocks = _keystream(COUNTING_KEY, [first, 1, 2, MASK32], rounds, n_blocks)
    expected = [
        python_block(COUNTING_KEY, np.array([i % 2**32, 1, 2, MASK32], "<u4").tobytes(), rounds)
        for i in range(first, first + n_blocks)
    ]
    assert blocks.tolist() == expected


# --------------------------------------------------------------------------------------- the stream


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(
    "position",
    [
        *(0, 1, 15, 16, 511, 512, 513),
        *(2**36 - 40, 2**36 - 3),  # block index, 32 bits
        *(2**68 - 40, 2**68 - 3),  # low 64 bits of the block number
        *(JUMP - 40, JUMP - 3),  # node, 48 bits
        *(2**100 - 40, 3 * JUMP + 2**50 + 7),  # low half of the tree
        END - 40,  # after the last word comes word 0
        END - 3,
    ],
)
def test_words_of_the_stream(rounds: int, position: int) -> None:
    generator = at(7, position, rounds)
    expected = python_draws64(seed_key(b"i\x07"), rounds, position, 40)
    assert generator.random_raw(40).tolist() == expected
    assert position_of(generator) == (position + 80) % END


def test_a_long_stretch() -> None:
    assert ChaCha(3).random_raw(3000).tolist() == python_draws64(seed_key(b"i\x03"), 12, 0, 3000)


STRETCH = python_words(seed_key(b"i\x0b"), 12, 0, 1400)


@given(start=st.integers(0, 1100), draws=st.lists(st.sampled_from(["u32", "u64", "double", "raw"])))
def test_every_draw_takes_the_next_words(start: int, draws: list[str]) -> None:
    generator = at(11, start)
    words = iter(STRETCH[start:])
    interface = generator.ctypes
    for kind in draws:
        if kind == "u32":
            assert interface.next_uint32(interface.state) == next(words)
            continue
        expected = next(words) | next(words) << 32
        if kind == "u64":
            assert interface.next_uint64(interface.state) == expected
        elif kind == "raw":
            assert generator.random_raw() == expected
        else:
            assert interface.next_double(interface.state) == (expected >> 11) / 2**53
    assert position_of(generator) == start + sum(1 if kind == "u32" else 2 for kind in draws)


# --------------------------------------------------------------------------------------- statistics


def byte_p_value(octets: np.ndarray) -> float:
    return float(stats.chisquare(np.bincount(octets, minlength=256)).pvalue)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_bytes_are_uniform(rounds: int) -> None:
    octets = ChaCha(123, rounds=rounds).random_raw(2**18).view(np.uint8)
    assert 1e-3 < byte_p_value(octets) < 1 - 1e-3
    # Control: one byte in 100 has its lowest bit cleared.
    spoiled = octets.copy()
    spoiled[::100] &= 0xFE
    assert byte_p_value(spoiled) < 1e-3


def largest_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Largest |correlation| over all cyclic lags, in standard deviations."""
    n = len(x)
    product = np.fft.irfft(np.fft.rfft(x - 0.5) * np.conj(np.fft.rfft(y - 0.5)), n)
    return float(np.abs(product).max() * 12 / np.sqrt(n))


def test_streams_are_unrelated_at_every_lag() -> None:
    n = 2**17
    root = ChaCha(0)
    generators = [root, ChaCha(1), ChaCha(2), root.jumped(), *root.spawn(2), ChaCha(b"\x00")]
    streams = [Generator(generator).random(n) for generator in generators]
    bound = 6.5  # 21 pairs and 2^17 lags: 1e-4 in all
    worst = [largest_correlation(x, y) for i, x in enumerate(streams) for y in streams[:i]]
    assert len(worst) == 21
    assert max(worst) < bound
    # Control: a tenth of the stream again, 12345 draws late.
    echo = streams[1].copy()
    echo[12345 : 12345 + n // 10] = streams[0][: n // 10]
    assert largest_correlation(streams[0], echo) > bound
