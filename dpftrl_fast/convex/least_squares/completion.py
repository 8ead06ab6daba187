# SPDX-License-Identifier: Apache-2.0
"""Completion of the tree after the last step: when it reduces the noise, and the noise then."""

from __future__ import annotations

import math
from typing import Any, Literal

from numpy.typing import NDArray

from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.sensitivity.tree import sensitivity_squared
from dpftrl_fast.mechanisms.choices import PlanBound, Variant
from dpftrl_fast.plan.planned_noise import PlannedNoise


def best_completion(
    participation: Participation, variant: Variant = "honaker", bound: PlanBound = "released"
) -> Literal[False, "all"]:
    """Return "all" if completing the tree reduces the noise of the last prefix at the same epsilon.

    At the same epsilon the noise multiplier goes with sqrt(zeta), so sqrt(zeta v) is compared.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> best_completion(accounting.SinglePass(1045)), best_completion(accounting.SinglePass(1024))
    ('all', False)
    """
    steps = participation.steps
    end = 1 << (steps - 1).bit_length()
    if end == steps:
        return False
    plain = sensitivity_squared(participation, bound=bound, variant=variant)
    completed = sensitivity_squared(participation, complete="all", bound=bound, variant=variant)
    if completed * variance_at(end, variant) < plain * variance_at(steps, variant):
        return "all"
    return False


def variance_at(t: int, variant: Variant) -> float:
    """Return the variance of the noise of the prefix at step t, for unit nodes.

    Examples
    --------
    >>> variance_at(7, "vanilla"), variance_at(8, "vanilla"), round(variance_at(2, "honaker"), 3)
    (3.0, 1.0, 0.667)
    """
    levels = [level for level in range(t.bit_length()) if t >> level & 1]
    if variant == "vanilla":
        return float(len(levels))
    return math.fsum(1.0 / (2.0 - 2.0**-level) for level in levels)


def noise_at(noise: PlannedNoise, t: int, last_leaf: int, out: NDArray[Any]) -> None:
    """Write the noise of the sum at the present step t.

    After the last step of a completed tree it is the noise of the tree's last leaf.
    """
    if t == noise.steps and last_leaf > t:
        noise.advance_to(t)
        noise.prefix(last_leaf, out)
    elif noise.t < t:
        noise.advance_to(t - 1)
        noise.step(out)
    else:  # an interrupted call made it before, for the same sum
        noise.prefix(t, out)
