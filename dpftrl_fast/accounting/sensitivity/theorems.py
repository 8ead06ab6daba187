# SPDX-License-Identifier: Apache-2.0
"""Closed-form noise multipliers, to compare with: they never beat ``accounting.noise_multiplier``.

For a squared sensitivity zeta these are, with a factor f,

    sigma = sqrt(f zeta ln(1/delta)) / epsilon.

f = 4 is what Renyi DP proves for epsilon <= 2 ln(1/delta): at the order
alpha = 1 + 2 ln(1/delta)/epsilon Mironov's conversion asks for
alpha zeta/(2 sigma^2) + epsilon/2 <= epsilon, that is for
sigma^2 >= zeta (epsilon + 2 ln(1/delta))/epsilon^2, and 4 zeta ln(1/delta)/epsilon^2 is that much
as long as epsilon <= 2 ln(1/delta).

f = 2 is a shorter form in use. It follows from no conversion, and it is too small for a large
epsilon: against the exact curve it holds up to about epsilon = 6.98, 7.97, 8.34 and 9.42 for
delta = 1e-3, 1e-5, 1e-6 and 1e-10, and not from there to 2 ln(1/delta). Where it does not hold it
is refused.

The sensitivities are those of Kairouz, McMahan, Song, Thakkar, Thakurta and Xu 2021, "Practical and
Private (Deep) Learning Without Sampling or Shuffling" (arXiv 2103.00039): a single pass of n steps
has ceil(lg(n + 1)) nodes over each record (its privacy theorem for DP-FTRL); a tree restarted at
every epoch has that many for every epoch (its Appendix D); and the least-squares algorithm has two
trees that see the same records. The derivation above is ours: the constants of the paper's own
statements were not compared, and no theorem number is claimed here.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

from dpftrl_fast._validate import choice, positive, probability, step_count
from dpftrl_fast.accounting.curve.gaussian import noise_multiplier, sensitivity
from dpftrl_fast.accounting.curve.rounding import float_up, precision

Factor: TypeAlias = Literal[2, 4]


def closed_form_noise_multiplier(
    epsilon: float, delta: float, sensitivity_squared: float, *, factor: Factor = 4
) -> float:
    """Return sqrt(factor zeta ln(1/delta))/epsilon, an upper bound of the exact multiplier.

    Parameters
    ----------
    epsilon : float
        0 < epsilon <= 2 ln(1/delta).
    delta : float
        0 < delta < 1.
    sensitivity_squared : int or float
        zeta > 0, in units of the clip norm squared.
    factor : {4, 2}
        4 is proved on the whole range of epsilon. 2 is checked against the exact curve.

    Returns
    -------
    float
        A noise multiplier that gives (epsilon, delta)-differential privacy, rounded up, and at
        least ``accounting.noise_multiplier(epsilon, delta, sensitivity_squared)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or ``factor=2`` gives less
        noise than (epsilon, delta) needs.

    Examples
    --------
    >>> exact = noise_multiplier(1.0, 1e-6, 11)
    >>> round(exact, 2), round(closed_form_noise_multiplier(1.0, 1e-6, 11), 2)
    (14.01, 24.66)
    """
    eps = positive("epsilon", epsilon)
    target = probability("delta", delta)
    zeta = sensitivity(sensitivity_squared)
    choice("factor", factor, (4, 2))
    with precision(60):
        log_inverse = -Decimal(target).ln()
        if not Decimal(eps) <= 2 * log_inverse:
            limit = float(2 * log_inverse)
            raise ValueError(f"epsilon must be at most 2 ln(1/delta) = {limit:.6g}, got {eps!r}")
        root = (factor * Decimal(zeta) * log_inverse).sqrt()
        closed = float_up(root / Decimal(eps) * (1 + Decimal("1e-40")))
    if factor == 2 and closed < (exact := noise_multiplier(eps, target, zeta)):
        raise ValueError(
            f"factor 2 must give enough noise for epsilon {eps!r} and delta {target!r}: "
            f"expected at least {exact:.6g}, got {closed:.6g}"
        )
    return closed


def single_pass_noise_multiplier(
    epsilon: float, delta: float, steps: int, *, factor: Factor = 4
) -> float:
    """Return the closed form for one pass through one tree: zeta = ceil(lg(steps + 1)).

    Parameters
    ----------
    epsilon, delta, factor
        As in :func:`closed_form_noise_multiplier`.
    steps : int
        Number of steps n, 1 <= n <= 2^40.

    Examples
    --------
    >>> round(single_pass_noise_multiplier(1.0, 1e-6, 1600), 2)
    24.66
    """
    zeta = step_count("steps", steps).bit_length()
    return closed_form_noise_multiplier(epsilon, delta, zeta, factor=factor)


def restarts_noise_multiplier(
    epsilon: float, delta: float, steps_per_epoch: int, epochs: int, *, factor: Factor = 4
) -> float:
    """Return the closed form for a tree restarted every epoch: zeta = epochs ceil(lg(n + 1)).

    Parameters
    ----------
    epsilon, delta, factor
        As in :func:`closed_form_noise_multiplier`.
    steps_per_epoch : int
        Number of steps n of an epoch, 1 <= n <= 2^40.
    epochs : int
        Number of epochs, 1 <= epochs <= 2^40.

    Examples
    --------
    >>> round(restarts_noise_multiplier(8.0, 1e-5, 100, 100), 2)
    22.44
    """
    levels = step_count("steps_per_epoch", steps_per_epoch).bit_length()
    zeta = step_count("epochs", epochs) * levels
    return closed_form_noise_multiplier(epsilon, delta, zeta, factor=factor)


def least_squares_noise_multiplier(
    epsilon: float, delta: float, steps: int, *, factor: Factor = 4
) -> float:
    """Return the closed form for the two trees of private least squares, for one pass.

    Each tree's noise is this multiplier times its own sensitivity (L y_bound for the sums of y x,
    L^2 for those of x x^T), so that mu^2 = 2 ceil(lg(steps + 1))/sigma^2.

    Parameters
    ----------
    epsilon, delta, factor
        As in :func:`closed_form_noise_multiplier`.
    steps : int
        Number of steps n, 1 <= n <= 2^40.

    Examples
    --------
    >>> round(least_squares_noise_multiplier(1.0, 1e-6, 1600), 2)
    34.87
    """
    zeta = 2 * step_count("steps", steps).bit_length()
    return closed_form_noise_multiplier(epsilon, delta, zeta, factor=factor)
