# SPDX-License-Identifier: Apache-2.0
"""Error of the tree mechanism, in O(T log T)."""

from __future__ import annotations

import math

import numpy as np

import dpftrl_fast._core as _core
from dpftrl_fast.mechanisms.run_error import NoiseStd, check_error_steps, std_of
from dpftrl_fast.mechanisms.tree_layout import TreeLayout, Variant


@std_of.register
def _(layout: TreeLayout, momentum: float) -> NoiseStd:
    steps = check_error_steps(layout.steps)
    prefix, smoothed = np.empty(steps), np.empty(steps)
    _core.prefix_error(layout.triples, layout.variant, momentum, prefix, smoothed)
    return NoiseStd(np.sqrt(prefix, out=prefix), np.sqrt(smoothed, out=smoothed))


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
