# SPDX-License-Identifier: Apache-2.0
"""Error of the tree mechanism, in O(T log T)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast.mechanisms.run_error import check_error_steps, per_step_std, std_at
from dpftrl_fast.mechanisms.tree_layout import TreeLayout, Variant
from dpftrl_fast.mechanisms.workload import Workload


@per_step_std.register
def _(layout: TreeLayout, workload: Workload) -> NDArray[np.float64]:
    steps = check_error_steps(layout.steps)
    momentum, decay, rates = workload.momentum, workload.decay, workload.relative_rates(steps)
    found = np.empty(steps)
    if rates is None and not decay:
        # Here no term is negative: nothing cancels.
        _core.prefix_error(layout.triples, layout.variant, momentum, np.empty(steps), found)
    else:
        _core.workload_error_trees(layout.triples, layout.variant, momentum, decay, rates, found)
    return np.sqrt(np.maximum(found, 0.0, out=found), out=found)


@std_at.register
def _(layout: TreeLayout, times: NDArray[np.int64]) -> NDArray[np.float64]:
    ends = [prefix_variance(run.end, layout.variant) for run in layout.runs]
    within, carry = layout.with_carry(times, ends)
    return np.sqrt(carry + [prefix_variance(t, layout.variant) for t in within.tolist()])


def mean_variance(steps: int, variant: Variant) -> float:
    """Return the mean of `prefix_variance` over the steps of one tree, in O(log T).

    Examples
    --------
    >>> mean_variance(3, "vanilla") == (1.0 + 1.0 + 2.0) / 3
    True
    """
    total = 0.0
    for level in range(steps.bit_length()):
        size = 1 << level
        whole, rest = divmod(steps + 1, 2 * size)
        times = whole * size + max(0, rest - size)  # numbers up to the last step with this bit
        total += times * prefix_variance(size, variant)
    return total / steps


def prefix_variance(t: int, variant: Variant) -> float:
    """Return the variance of the noise of the prefix at step t of a tree, for unit nodes.

    Examples
    --------
    >>> prefix_variance(7, "vanilla"), prefix_variance(8, "vanilla")
    (3.0, 1.0)
    >>> round(prefix_variance(2, "honaker"), 3)
    0.667
    """
    levels = [level for level in range(t.bit_length()) if t >> level & 1]
    if variant == "vanilla":
        return float(len(levels))
    return math.fsum(1.0 / (2.0 - 2.0**-level) for level in levels)
