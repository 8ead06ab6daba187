# SPDX-License-Identifier: Apache-2.0
"""Error of windows under the tree mechanism.

Let h be the highest binary digit in which u < v differ. The nodes of the digits above are the same
in both prefixes and cancel. What is left of v is the node of level h, beside nodes that u has no
part in; all that is left of u lies below that node, its rest being u mod 2^h. With w_l the variance
of an estimate of level l (1 for vanilla nodes, else 1/(2 - 2^-l)), the covariance of Honaker's
estimate of level h with one of level l below it is w_h 2^(l - h), and vanilla nodes have none. So

    Var(b_v - b_u) = sum of w_l over the digits l <= h of v and those l < h of u
                     - [Honaker] 2 w_h (u mod 2^h) / 2^h.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from dpftrl_fast.mechanisms.tree_error import prefix_variance
from dpftrl_fast.mechanisms.tree_layout import TreeLayout, Variant
from dpftrl_fast.mechanisms.window_error import (
    Floats,
    Steps,
    pair_variance,
    sliding_variances,
    window_variance,
    window_variances,
)

_DIGITS = 14  # of one table; two cover all steps of a run with errors, completed


@window_variance.register
def _(layout: TreeLayout, since: int, until: int) -> float:
    def within(u: int, v: int) -> float:
        return _between(u, v, layout.variant)

    return pair_variance(layout, since, until, within)


def _between(u: int, v: int, variant: Variant) -> float:
    """Return the variance of b_v - b_u in one tree, u <= v."""
    if u == v:
        return 0.0
    level = (u ^ v).bit_length() - 1
    rest = u % (1 << level)
    found = prefix_variance(v % (2 << level), variant) + prefix_variance(rest, variant)
    if variant == "honaker":
        found -= 2.0 / (2.0 - 2.0**-level) * math.ldexp(rest, -level)
    return found


@window_variances.register
def _(layout: TreeLayout, width: int) -> Floats:
    return sliding_variances(layout, width, _TreeWindows(layout))


class _TreeWindows:
    def __init__(self, layout: TreeLayout) -> None:
        self._ends = np.array([run.end for run in layout.runs], np.int64)
        self._variant = layout.variant
        levels = np.arange(2 * _DIGITS)
        self._weights = 1.0 / (2.0 - 0.5**levels)

    def within(self, since: Steps, until: Steps) -> Floats:
        # frexp gives the number of digits, and 0 for equal steps.
        level = np.frexp((since ^ until).astype(np.float64))[1].astype(np.int64) - 1
        up_to = np.left_shift(1, level + 1)  # 1 for equal steps: nothing is left of them
        rest = since & (up_to // 2 - 1 + (level < 0))
        found = self._prefix(until & (up_to - 1)) + self._prefix(rest)
        if self._variant == "honaker":
            found -= self._weights[level] * (rest / up_to * 4.0)
        return found

    def to_end(self, run: Steps, since: Steps) -> Floats:
        return self.within(since, self._ends[run])

    def _prefix(self, steps: Steps) -> Floats:
        low, high = _tables(self._variant)
        return np.asarray(low[steps & ((1 << _DIGITS) - 1)] + high[steps >> _DIGITS])


@cache
def _tables(variant: Variant) -> tuple[Floats, Floats]:
    """Return the variance of prefixes k and k * 2^_DIGITS, for k below 2^_DIGITS."""
    tables = np.zeros((2, 1 << _DIGITS))
    for first, table in zip((0, _DIGITS), tables, strict=True):
        for level in range(_DIGITS):
            weight = prefix_variance(1 << (first + level), variant)
            table[1 << level : 2 << level] = table[: 1 << level] + weight
    return tables[0], tables[1]
