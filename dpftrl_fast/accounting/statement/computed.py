# SPDX-License-Identifier: Apache-2.0
"""Epsilon of noise as it is computed, from that of real normals and their distance."""

from __future__ import annotations

import math

from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.accounting.sensitivity.noise_distance import computed_distance
from dpftrl_fast.mechanisms import Layout

# Of delta, for the events that beta_2 leaves out.
_SHARE = 2.0**-12


def computed_epsilon(
    noise_multiplier: float,
    sensitivity_squared: float,
    delta: float,
    layout: Layout,
    grid: float,
    dimension: int,
) -> float:
    """Return epsilon at `delta` for computed float64 noise, rounded to `grid` with its sum.

    If real noise gives (epsilon, delta_0), computed noise at (tau, beta) from it gives

        (epsilon + 2 tau, e^tau delta_0 + (1 + e^(epsilon + tau)) beta).

    Parameters
    ----------
    noise_multiplier, sensitivity_squared : float
        Of one Gaussian mechanism, as for :func:`dpftrl_fast.accounting.epsilon`.
    delta : float
        0 < delta < 1.
    layout : Layout
        Steps and mechanism of the run.
    grid : float
        Of the released sums, in standard deviations of a node's noise.
    dimension : int
        Coordinates of the sums.

    Raises
    ------
    ValueError
        If no more than half of `delta` would be left.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> args = 2.33, 11, 1e-6
    >>> found = computed_epsilon(*args, Tree().layout(1600), 2.0**-8, 100)
    >>> 0 < found - gaussian.epsilon(*args) < 1e-3
    True
    """
    most = gaussian.epsilon(noise_multiplier, sensitivity_squared, delta / 2)
    chance = delta * _SHARE * math.exp(-most)
    tau, beta = math.inf, 1.0
    if chance > 0:
        tau, beta = computed_distance(layout, grid, dimension, chance)
    left = 0.0
    if tau < 1:
        left = (delta - (1 + math.exp(most + tau)) * beta) * math.exp(-tau) * (1 - 2.0**-40)
    if not left >= delta / 2:
        raise ValueError(
            "no useful epsilon can be stated for the noise as computed: dimension and steps must "
            f"be so few, and delta so large, that it moves delta by less than half, got dimension "
            f"{dimension}, {layout.steps} steps and delta {delta!r} (tau {text_up(tau)}, beta "
            f"{text_up(beta)}): use fewer coordinates or steps"
        )
    exact = gaussian.epsilon(noise_multiplier, sensitivity_squared, left)
    return math.nextafter(exact + 2 * tau, math.inf)
