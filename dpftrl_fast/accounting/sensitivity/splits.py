# SPDX-License-Identifier: Apache-2.0
"""The largest sum over blocks of a function of the uses in each, over the splits of all uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.sensitivity.strided import rounded_up
from dpftrl_fast.mechanisms.blocks import BlockRun

Values = NDArray[np.float64]
#: Number of blocks, the most uses of one, and the value of so many uses (0 of none, increasing).
Kind = tuple[int, int, Callable[[int], float]]

_MOST_VALUES = 256
_MOST_WORK = 50_000_000


def starts_alike(runs: Sequence[BlockRun], period: int) -> bool:
    """Return whether every block but the first starts a multiple of `period` after the first."""
    last = runs[-1]
    return all(run.steps % period == 0 for run in runs[:-1]) and (
        last.count == 1 or last.steps % period == 0
    )


def best_split(kinds: Sequence[Kind], uses: int) -> tuple[float, bool]:
    """Return an upper bound of the largest sum of values, and whether it is that sum.

    Examples
    --------
    >>> best_split([(3, 2, lambda k: float(k * k))], 3)[1]
    True
    >>> round(best_split([(3, 2, lambda k: float(k * k))], 3)[0], 6)
    5.0
    """
    uses = min(uses, sum(count * most for count, most, _ in kinds))
    tables = [(min(count, uses), *_table(min(most, uses), of)) for count, most, of in kinds]
    exact = all(every for _, _, every in tables)
    work = sum(count * table.size * uses for count, table, _ in tables)
    blocks = sum(count for count, _, _ in tables)
    if work <= _MOST_WORK:
        return rounded_up(_by_program([(n, t) for n, t, _ in tables], uses), 2 * blocks), exact
    value, attained = _by_envelope([(n, t) for n, t, _ in tables], uses)
    return rounded_up(value, 4 * (blocks + uses) + 4096), exact and attained


def _table(most: int, of: Callable[[int], float]) -> tuple[Values, bool]:
    """Return the values of 0 .. most uses, or, of many, of as many and a few more."""
    step = -(-most // _MOST_VALUES)
    at = [min(-(-k // step) * step, most) for k in range(most + 1)]
    known = {k: of(k) for k in sorted(set(at))}
    return np.array([known[k] for k in at]), step == 1


def _by_program(tables: Sequence[tuple[int, Values]], uses: int) -> float:
    best = np.zeros(uses + 1)  # by the most uses so far
    for count, table in tables:
        for _ in range(count):
            longer = best.copy()
            for k in range(1, table.size):
                np.maximum(longer[k:], best[: uses + 1 - k] + table[k], out=longer[k:])
            best = longer
    return float(best.max())


def _by_envelope(tables: Sequence[tuple[int, Values]], uses: int) -> tuple[float, bool]:
    """Replace each function by the least concave one above it: the steepest pieces come first."""
    pieces = [
        (height / width, width, height, count)
        for count, table in tables
        for width, height in _envelope(table)
    ]
    total, left = 0.0, uses
    for slope, width, height, count in sorted(pieces, reverse=True):
        taken = min(count, left // width)
        total, left = total + taken * height, left - taken * width
        if taken < count and left:
            return total + left * slope * (1.0 + 1e-15), False
    return total, True


def _envelope(table: Values) -> list[tuple[int, float]]:
    """Return (width, height) of the pieces of the least concave function above a table."""
    corners = [0]
    for k in range(1, table.size):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (table[b] - table[a]) * (k - b) > (table[k] - table[b]) * (b - a):
                break
            corners.pop()
        corners.append(k)
    return [(b - a, float(table[b] - table[a])) for a, b in pairwise(corners)]
