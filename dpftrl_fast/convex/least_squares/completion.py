# SPDX-License-Identifier: Apache-2.0
"""Completion of the tree after the last step: when it reduces the noise, and the noise then."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import NDArray

from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, sensitivity_squared
from dpftrl_fast.mechanisms import Tree, Variant
from dpftrl_fast.mechanisms.tree_error import prefix_variance
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
    plain = sensitivity_squared(participation, Tree(variant), bound=bound)
    completed = sensitivity_squared(participation, Tree(variant, complete="all"), bound=bound)
    if completed * prefix_variance(end, variant) < plain * prefix_variance(steps, variant):
        return "all"
    return False


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
