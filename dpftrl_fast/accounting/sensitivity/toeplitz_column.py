# SPDX-License-Identifier: Apache-2.0
"""The first column of a Toeplitz strategy with a proven bound of its rounding errors.

Derived in docs/plan/accounting.md, section "Sensitivity of Toeplitz mechanisms".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpftrl_fast.accounting.sensitivity.strided import UNIT, Column
from dpftrl_fast.mechanisms.toeplitz.columns import banded_inverse, buffers_column, padded
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzMechanism

#: The most steps of a block whose coefficients are computed.
MAX_COLUMN = 2**24
_LEAST, _MOST = 1e-100, 1e100
# More than one operation can lose to a result below the range of normal doubles.
_TINY = 2.0**-1021


class StrategyColumn(NamedTuple):
    """c_0, c_1, .. of a strategy up to the last one that is not zero for good."""

    upper: Column
    """At least the absolute values, both of the exact coefficients and of the computed ones."""
    computed: Column
    """The coefficients with their rounding errors."""

    def first(self, steps: int) -> StrategyColumn:
        """Return the column of a shorter block."""
        return StrategyColumn(self.upper[:steps], self.computed[:steps])


def strategy_column(mechanism: ToeplitzMechanism, steps: int) -> StrategyColumn:
    """Return the column of a block of `steps` steps; ValueError if its errors have no bound.

    It is that of the coefficients which the noise runs with.
    """
    kind, first, second = mechanism.engine
    ends = kind == "bands" or (kind == "taps" and len(first) == 1)
    size = min(len(first), steps) if ends else steps
    if size > MAX_COLUMN:
        raise ValueError(
            f"a block of Toeplitz noise must have at most 2^24 = {MAX_COLUMN} steps, got {steps}: "
            "give the mechanism a smaller restart_every"
        )
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if kind == "bands":
            computed = padded(first, size)
            upper = np.abs(computed)
        elif kind == "buffers":
            computed = buffers_column(first, second, size)
            upper = _buffers_upper(np.abs(computed), len(first))
        elif kind == "taps":
            computed = banded_inverse(first, size)
            upper = _taps_upper(np.abs(computed), np.array(first))
        else:
            raise TypeError(f"no sensitivity is known for Toeplitz noise of the kind {kind!r}")
        largest = float(upper.max())
    if not (np.all(np.isfinite(upper)) and _LEAST <= largest <= _MOST):
        raise ValueError(
            "the largest strategy coefficient of the mechanism must be in "
            f"[{_LEAST:g}, {_MOST:g}] over {steps} steps, with its rounding errors, got {largest:g}"
        )
    return StrategyColumn(upper, computed)


def _buffers_upper(size: Column, buffers: int) -> Column:
    """c_t is a sum of k products of t factors >= 0: t + k roundings."""
    roundings = np.arange(size.size, dtype=np.float64) + (buffers + 3)
    return np.asarray(size * (1.0 + roundings * UNIT) + (size.size + 1) * buffers * _TINY)


def _taps_upper(size: Column, taps: Column) -> Column:
    length, steps = taps.size, np.arange(1.0, size.size + 1)
    weight = float(np.abs(taps).sum()) * 1.0001
    lost = 2.0 * length * weight * _TINY
    total = np.cumsum(size) * 1.0001
    if bool(np.all(taps[1:] <= 0.0)):
        # At most p - 1 roundings a step of a path from 0 to t, and no cancellation.
        return np.asarray(size * (1.0 + ((length - 1) * steps + 3) * UNIT) + 2.0 * lost * total)
    # The computed column solves the equations but for a residual below `residual`.
    residual = np.maximum.accumulate(size) * ((length + 2) * weight * UNIT) + lost
    left = 1.0 - steps * residual * 1.0001
    if not left[-1] > 0.5:
        raise ValueError(
            "taps must have a strategy whose rounding errors can be bounded, got taps of both "
            f"signs for which they cannot over {size.size} steps: use taps[1:] <= 0, or "
            "restart_every"
        )
    return np.asarray((size + total * residual / left) * (1.0 + 3 * UNIT))
