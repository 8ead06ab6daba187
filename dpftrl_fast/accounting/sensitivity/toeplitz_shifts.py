# SPDX-License-Identifier: Apache-2.0
"""Noise vectors that one id shifts under a Toeplitz mechanism: its part of the floor of delta.

A use at step i of a block shifts the noise of step t >= i of the block by at most |c_(t-i)|, in
clip norms. So k uses in a block shift by at most k times the sum of |c| in total. With uses at most
once in any b steps in a row, those up to t lie in different ones of the stretches t-b+1 .. t,
t-2b+1 .. t-b, .., and shift it by at most the largest |c| of each, summed.

A mechanism whose coefficients are no float32 numbers has float64 noise alone. The tail of float64
normals is cut at a probability of 2^-128, not 2^-64, so that a shifted vector counts for 2^-64 of
one, and its shift for sqrt(2) 2^-64 of the sum (docs/plan/accounting.md).
"""

from __future__ import annotations

import math

import numpy as np

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    check_participation,
)
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched, touched
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound
from dpftrl_fast.accounting.sensitivity.strided import Column, rounded_up
from dpftrl_fast.accounting.sensitivity.toeplitz_column import strategy_column
from dpftrl_fast.accounting.sensitivity.toeplitz_order import uses_by_block
from dpftrl_fast.accounting.sensitivity.toeplitz_series import (
    has_series,
    largest_coefficient,
    series_sum,
)
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzLayout

# Probability that a float32 radius is cut, over that of a float64 radius.
_RARER = 2**64


@touched.register
def _(layout: ToeplitzLayout, participation: Participation, bound: PlanBound = "exact") -> Touched:
    """Bound the shifts of the noise vectors by one id: those of steps at and after its uses."""
    pattern = check_participation(participation)
    if layout.steps != pattern.steps:
        raise ValueError(
            f"layout must have the {pattern.steps} steps of the participation, got {layout.steps}"
        )
    check_plan_bound(bound)
    found = shifts(layout, pattern)
    if layout.mechanism.is_in("float32"):
        return found
    # Rounded up: sqrt(2) to 3/2, and each quotient.
    return Touched(
        nodes=-(-found.nodes // _RARER),
        total=-(-3 * found.total // (2 * _RARER)),
        largest=found.largest,
    )


def shifts(layout: ToeplitzLayout, pattern: Participation) -> Touched:
    """Bound the shifts of the noise vectors by one id, for noise of any dtype.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> from dpftrl_fast.mechanisms import BufferedToeplitz
    >>> shifts(BufferedToeplitz([0.5], [0.25]).layout(4), SinglePass(4))
    Touched(nodes=4, total=2, largest=1)
    """
    uses, in_a_block, separation = _uses(layout, pattern)
    if in_a_block == 1 and has_series(layout.mechanism):
        _, decay, scale = layout.mechanism.engine
        nodes = min(layout.steps, uses * layout.longest)
        total = _whole(uses * series_sum(decay, scale, layout.longest), 1)
        largest = math.ceil(largest_coefficient(scale))
    else:
        size = strategy_column(layout.mechanism, layout.longest).upper
        summed = sum(size.tolist()) if size.size < 64 else float(np.cumsum(size)[-1])
        nodes = min(layout.steps, uses * size.size)
        total = _whole(uses * summed, size.size)
        largest = _whole(_largest(size, in_a_block, separation), in_a_block)
    return Touched(nodes, total, largest)


def _whole(value: float, roundings: int) -> int:
    return max(1, math.ceil(rounded_up(value, roundings + 2)))


def _largest(size: Column, uses: int, separation: int) -> float:
    """Bound the shift of one step by uses in its block; separation 0: several in one step."""
    if separation == 0:
        return uses * float(size.max())
    stretches = np.maximum.reduceat(size, np.arange(0, size.size, separation))
    return float(np.cumsum(np.sort(stretches)[::-1][:uses])[-1])


def _uses(layout: ToeplitzLayout, pattern: Participation) -> tuple[int, int, int]:
    """Return the most uses of an id in the run and in one block, and their least distance there."""
    uses, longest = pattern.most_uses(), layout.longest
    if isinstance(pattern, FixedEpochs):
        period = pattern.steps_per_epoch
        if pattern.reshuffle:  # blocks that start inside of an epoch can bring an id once more
            uses = sum(run.count * -(-run.steps // period) for run in layout.runs)
        return uses, -(-longest // period), period
    if isinstance(pattern, MinSeparation):
        separation = pattern.min_separation
        return uses, min(uses, -(-longest // separation)), separation
    if isinstance(pattern, FixedOrder):
        _, _, starts, steps = uses_by_block(layout, pattern)
        gaps = np.diff(steps)
        within = np.ones(gaps.size, bool)
        within[starts[1:-1] - 1] = False
        return uses, int(np.diff(starts).max()), int(gaps[within].min(initial=longest))
    return uses, 1, longest
