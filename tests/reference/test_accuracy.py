# SPDX-License-Identifier: Apache-2.0
"""How far a pair of float64 normals is from the exact Box-Muller pair of its words, by mpmath.

The C++ core has the bits of the reference (tests/noise), so what holds here holds for both.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dpftrl_fast.reference import box_muller

ANGLES = [0, 2**61 - 1, 2**64 - 1, 2**60, 2**61 - 2**9]


def extreme_words() -> list[tuple[int, int]]:
    """X and A: powers of two and their neighbours from both ends, edges of the rare words."""
    edges = [h << 96 for h in (2**18 - 1, 2**18, 2**32 - 2**18 - 1, 2**32 - 2**18)]
    inside = [0, 2**64 - 1, 2**96 - 2**64, 2**96 - 1]
    words = [edge + low for edge in edges for low in inside]
    words += [(2**i + k) % 2**128 for i in range(128) for k in (-1, 0, 1)]
    words += [-(2**i + k) % 2**128 for i in range(128) for k in (-1, 0, 1)]
    return [(x, ANGLES[n % len(ANGLES)]) for n, x in enumerate(words)] + [
        (x, a) for x in (0, 1, 2**128 - 1) for a in ANGLES
    ]


def random_words(seed: int, common: int, rare: int) -> list[tuple[int, int]]:
    """X and A: uniform ones, and ones with a random number of leading zeros or ones."""
    rng = np.random.default_rng(seed)

    def draw(size: int) -> int:
        return int.from_bytes(rng.bytes(size), "little")

    words = [draw(16) for _ in range(common)]
    for n in range(rare):
        x = draw(16) >> int(rng.integers(0, 128))
        words.append(x if n % 2 else 2**128 - 1 - x)
    return [(x, draw(8)) for x in words]


def errors(words: list[tuple[int, int]]) -> list[float]:
    """The larger of the two distances |z - exact z| of each pair, in units of 2^-53 r."""
    radius, extension, angle = (
        np.array(column, np.uint64)
        for column in zip(*((x >> 64, x % 2**64, a) for x, a in words), strict=True)
    )
    pairs = zip(*(z.tolist() for z in box_muller(radius, angle, "float64", extension)), strict=True)
    found = []
    with mpmath.workprec(220):
        quarter = mpmath.pi / 4
        for (x, a), (first, second) in zip(words, pairs, strict=True):
            rare = not 2**18 <= x >> 96 < 2**32 - 2**18
            uniform = mpmath.mpf((x or 0.5) if rare else x >> 64 << 64) / 2**128
            r = mpmath.sqrt(-2 * mpmath.log(uniform))
            turn = quarter * (a % 2**61 >> 9) / 2**52
            exact = [r * mpmath.cos(turn), r * mpmath.sin(turn)]
            if a >> 61 & 1:
                exact.reverse()
            c, d = exact[0] * (-1) ** (a >> 63), exact[1] * (-1) ** (a >> 62)
            found.append(float(max(abs(first - c), abs(second - d)) / r * 2**53))
    return found


def test_extreme_words() -> None:
    assert max(errors(extreme_words())) < 4


def test_random_words() -> None:
    assert max(errors(random_words(1, 1000, 2000))) < 4


@pytest.mark.slow
def test_many_words() -> None:
    found = max(max(errors(random_words(seed, 10_000, 10_000))) for seed in range(2, 8))
    assert 2 < found < 4


def test_small_radii_have_all_their_digits() -> None:
    """The exact value 2^-127 of 1 - X / 2^128 shows: a radius of 64 bits ends at 2^-31.5."""
    radius, extension = np.array([2**64 - 1] * 2, np.uint64), np.array([0, 2**64 - 1], np.uint64)
    first, _ = box_muller(radius, np.zeros(2, np.uint64), "float64", extension)
    assert first.tolist() == [2**-31.5, 2**-63.5]
