# SPDX-License-Identifier: Apache-2.0
"""Epsilon of each of several further fits that together use up a budget.

Gaussian mechanisms with mu_1, mu_2, ... are together one with mu^2 = sum of mu_i^2, whatever their
plans. Only the floor of delta depends on the plans, which are not known yet: a part of delta is
kept for it.
"""

from __future__ import annotations

import math

from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.sensitivity.delta_floor import untruncated_delta
from dpftrl_fast.accounting.statement.statement import Guarantee, Neighbours

# Part of delta for the noise outside its disc, and delta for each unit of mu: R sqrt(m N) 2^-64 of
# `accounting.sensitivity.delta_floor` with N = 2^11 nodes that a record shifts.
_OUTSIDE, _FLOOR = 2.0**-10, 2.0**-37
# Relative, for the roundings of the few operations on mu^2.
_ROUNDING = 2.0**-40


def kept_for_floors(fits: int, delta: float, mu: float) -> float:
    """Return the part of `delta` that is kept for the floors of so many fits with mu together.

    It is enough for the plans of a record that shifts up to 2^11 nodes, each by less than two
    standard deviations; a fit with a larger floor may be refused for it.
    """
    return _OUTSIDE * delta + _FLOOR * math.sqrt(fits) * mu


def share(
    spent: Guarantee | None,
    fits: int,
    *,
    epsilon: float,
    delta: float,
    neighbours: Neighbours = "zero-out",
) -> float:
    """Return the epsilon, for zero-out neighbours at `delta`, of each of `fits` further fits.

    Parameters
    ----------
    spent : Guarantee, optional
        Of the fits so far.
    fits : int
        At least 1.
    epsilon, delta, neighbours
        Terms of the budget.

    Returns
    -------
    float
        0 if nothing is left. A single fit in an unused budget for zero-out neighbours gets it all.

    Examples
    --------
    >>> round(share(None, 4, epsilon=1.0, delta=1e-6), 4)
    0.4752
    """
    shift = 2 if neighbours == "replace-one" else 1
    if spent is None and fits * shift == 1:
        return epsilon
    exact, used = delta, 0.0
    if spent is not None:
        floor = spent.floor(neighbours=neighbours)
        exact, used = untruncated_delta(delta, spent.touched, floor), spent.mu_squared
    exact -= kept_for_floors(fits, delta, 1.0 / gaussian.noise_multiplier(epsilon, delta, 1))
    if not exact > 0:
        return 0.0
    # mu of one run with zero-out neighbours whose epsilon for the budget's neighbours is `epsilon`.
    most = 1.0 / (shift * gaussian.noise_multiplier(epsilon, exact, 1))
    left = (most * most * (1.0 - _ROUNDING) - used) / fits * (1.0 - _ROUNDING)
    if not left > 0:
        return 0.0
    sigma = 1.0 / math.sqrt(left) * (1.0 + _ROUNDING)
    # A plan that is calibrated to less than the true epsilon of this mu has at most this mu.
    return min(epsilon, max(0.0, math.nextafter(gaussian.epsilon(sigma, 1, delta), 0.0)))
