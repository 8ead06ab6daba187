# SPDX-License-Identifier: Apache-2.0
"""The sensitivity of Toeplitz mechanisms from its definition: every pattern, every sign.

A strategy is a dense matrix, whose entries come from exact fractions. What a set of uses S is worth
lies between the largest squared norm of a sum of its columns with signs, which scalar contributions
attain, and the sum of the absolute inner products, which no vectors of norm 1 exceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from participation_oracle import all_patterns

from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz, Identity

Matrix = NDArray[np.float64]

# c >= 0, falling or not, and c of both signs.
POSITIVE = {
    "identity": Identity(),
    "square root": BandedInverse.square_root(4),
    "anticorrelated": BandedInverse.anticorrelated(0.9),
    "prefix": BandedInverse.anticorrelated(1.0),
    "ripples": BandedInverse([1.0, -0.1, -0.6, 0.0, -0.1]),
    "buffers": BufferedToeplitz([0.9, 0.3], [0.3, 0.9]),
    "constant buffer": BufferedToeplitz([1.0], [0.5]),
    "rising buffer": BufferedToeplitz([0.99], [2.0]),
    "no buffer": BufferedToeplitz([0.5], [0.0]),
    "bands": BandedToeplitz([1.0, 0.5, 0.75]),
    "one band": BandedToeplitz([0.25]),
}
SIGNED = {
    "both signs": BandedInverse([1.0, 0.4, -0.5, 0.2]),
    "alternating": BandedInverse([1.0, 0.7]),
    "signed bands": BandedToeplitz([1.0, -0.5, 0.3, -0.2, 0.1]),
    "negative bands": BandedToeplitz([0.5, -1.0, -0.25]),
    "zero bands": BandedToeplitz([1.0, 0.0, -0.5, 0.0]),
}
ALL = {**POSITIVE, **SIGNED}

# ---- The strategy ----


def exact_column(mechanism: Any, steps: int) -> list[Fraction]:
    """c_0 .. c_(steps-1) from the definition of each mechanism, without rounding."""
    engine = mechanism.engine
    if engine.kind == "bands":
        held = [Fraction(x) for x in engine.first[:steps]]
        return held + [Fraction(0)] * (steps - len(held))
    if engine.kind == "buffers":
        pairs = [(Fraction(q), Fraction(s)) for q, s in zip(*engine[1:], strict=True)]
        return [Fraction(1)] + [
            sum((s * q ** (j - 1) for q, s in pairs), Fraction(0)) for j in range(1, steps)
        ]
    column: list[Fraction] = []
    taps = [Fraction(x) for x in engine.first]
    for t in range(steps):
        before = sum(
            (taps[j] * column[t - j] for j in range(1, min(len(taps), t + 1))), Fraction(0)
        )
        column.append((1 if t == 0 else 0) - before)
    return column


def exact_norm(column: list[Fraction], uses: list[int]) -> Fraction:
    """The squared norm of the sum of the columns of these uses."""
    total = Fraction(0)
    for t in range(len(column)):
        total += sum((column[t - u] for u in uses if u <= t), Fraction(0)) ** 2
    return total


def strategy(mechanism: Any, lengths: list[int]) -> Matrix:
    """The block-diagonal strategy of blocks of these lengths."""
    found = np.zeros((sum(lengths), sum(lengths)))
    start = 0
    for length in lengths:
        column = [float(x) for x in exact_column(mechanism, length)]
        for t in range(length):
            for u in range(t + 1):
                found[start + t, start + u] = column[t - u]
        start += length
    return found


# ---- Patterns ----


def block_lengths(steps: int, every: int | None) -> list[int]:
    """The lengths of the blocks of a run."""
    every = every or steps
    return [min(every, steps - start) for start in range(0, steps, every)]


def use_sets(pattern: Any) -> Iterator[tuple[int, ...]]:
    """All sets of uses of one id that a pattern allows."""
    if isinstance(pattern, acc.SinglePass):
        yield from ((step,) for step in range(pattern.steps))
    elif isinstance(pattern, acc.MinSeparation):
        yield from all_patterns(pattern.steps, pattern.max_participations, pattern.min_separation)
    else:
        for place in range(pattern.steps_per_epoch):
            yield tuple(range(place, pattern.steps, pattern.steps_per_epoch))


@cache
def _signs(size: int) -> NDArray[np.float64]:
    """All vectors of signs whose first entry is +."""
    return np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=size - 1)])


def worth(gram: Matrix, uses: tuple[int, ...]) -> tuple[float, float]:
    """The bounds of what a set of uses is worth."""
    part = gram[np.ix_(uses, uses)]
    signs = _signs(len(uses))
    attained = float(((signs @ part) * signs).sum(axis=1).max())
    return attained, float(np.abs(part).sum())


def largest(mechanism: Any, pattern: Any, every: int | None) -> tuple[float, float]:
    """The largest worth over all patterns: what is attained, and what is not exceeded."""
    lengths = block_lengths(pattern.steps, every)
    c = strategy(mechanism, lengths)
    gram = c.T @ c
    if isinstance(pattern, acc.FixedEpochs) and pattern.reshuffle:
        # A new order in each block: any place in each, and the blocks share no noise.
        starts = np.cumsum([0, *lengths]).tolist()
        best = [
            _best(
                gram,
                [
                    tuple(range(place, stop, pattern.steps_per_epoch))
                    for place in range(start, min(stop, start + pattern.steps_per_epoch))
                ],
            )
            for start, stop in pairwise(starts)
        ]
        return sum(a for a, _ in best), sum(b for _, b in best)
    return _best(gram, use_sets(pattern))


def _best(gram: Matrix, sets: Iterable[tuple[int, ...]]) -> tuple[float, float]:
    found = [worth(gram, uses) for uses in sets if uses]
    return max(a for a, _ in found), max(b for _, b in found)
