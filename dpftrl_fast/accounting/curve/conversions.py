# SPDX-License-Identifier: Apache-2.0
"""Conversion of the Gaussian mechanism to zCDP, Gaussian DP and Renyi DP, rounded up.

With mu = sqrt(zeta)/sigma the mechanism is mu-GDP (Dong, Roth and Su 2022, Theorem 2.7), rho-zCDP
with rho = mu^2/2 (Bun and Steinke 2016, Proposition 1.6) and has RDP(alpha) = alpha mu^2/2 at every
order alpha > 1 (Mironov 2017, Corollary 3). Runs on the same data add their mu^2, rho and RDP. The
values are worked out in exact fractions and returned as the smallest double not below them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from dpftrl_fast._validate import non_negative, positive, probability
from dpftrl_fast.accounting.curve.gaussian import mean_shift, sensitivity
from dpftrl_fast.accounting.curve.renyi import (
    Conversion,
    best_excess,
    check_conversion,
    check_orders,
)
from dpftrl_fast.accounting.curve.rounding import float_up, precision, smallest_double


def _square(noise_multiplier: float, sensitivity_squared: float) -> Fraction | float:
    """Return mu^2: an exact fraction, or the float 0 or infinity for sigma infinity or 0."""
    sigma = non_negative("noise_multiplier", noise_multiplier, infinite=True)
    zeta = sensitivity(sensitivity_squared)
    if sigma in (0.0, math.inf):
        return 0.0 if sigma else math.inf
    return Fraction(zeta) / Fraction(sigma) ** 2


def zcdp_rho(noise_multiplier: float, sensitivity_squared: float) -> float:
    """Rho of zero-concentrated differential privacy, zeta/(2 sigma^2).

    Parameters
    ----------
    noise_multiplier, sensitivity_squared
        As for :func:`~dpftrl_fast.accounting.epsilon`.

    Returns
    -------
    float
        The smallest double that is not below rho.

    Examples
    --------
    >>> zcdp_rho(2.0, 11)
    1.375
    """
    square = _square(noise_multiplier, sensitivity_squared)
    return square if isinstance(square, float) else float_up(square / 2)


def gdp_mu(noise_multiplier: float, sensitivity_squared: float) -> float:
    """Mu of Gaussian differential privacy, sqrt(zeta)/sigma.

    Parameters
    ----------
    noise_multiplier, sensitivity_squared
        As for :func:`~dpftrl_fast.accounting.epsilon`.

    Returns
    -------
    float
        The smallest double that is not below mu.

    Examples
    --------
    >>> gdp_mu(1.5, 9)
    2.0
    """
    square = _square(noise_multiplier, sensitivity_squared)
    if isinstance(square, float):
        return square
    guess = float_up(mean_shift(noise_multiplier, sensitivity_squared))
    return smallest_double(lambda mu: Fraction(mu) ** 2 >= square, guess)


def rdp(
    noise_multiplier: float, sensitivity_squared: float, orders: Iterable[float]
) -> list[float]:
    """Renyi differential privacy at the given orders, alpha zeta/(2 sigma^2).

    Parameters
    ----------
    noise_multiplier, sensitivity_squared
        As for :func:`~dpftrl_fast.accounting.epsilon`.
    orders : iterable of float
        Renyi orders alpha, each finite and > 1.

    Returns
    -------
    list of float
        For each order the smallest double that is not below the mechanism's RDP.

    Examples
    --------
    >>> rdp(2.0, 11, [2, 8, 32.5])
    [2.75, 11.0, 44.6875]
    """
    square = _square(noise_multiplier, sensitivity_squared)
    grid = check_orders(orders)
    if isinstance(square, float):
        return [square for _ in grid]
    return [float_up(Fraction(order) * square / 2) for order in grid]


def best_order(
    noise_multiplier: float,
    sensitivity_squared: float,
    delta: float,
    *,
    conversion: Conversion = "cks",
) -> float:
    """Renyi order that gives the smallest epsilon at ``delta``.

    Parameters
    ----------
    noise_multiplier, sensitivity_squared, delta, conversion
        As for :func:`~dpftrl_fast.accounting.epsilon`; sigma is finite and > 0.

    Returns
    -------
    float
        The best real order, > 1, rounded up. ``accounting.epsilon(..., "rdp")`` uses it to more
        digits.

    Examples
    --------
    >>> round(best_order(2.33, 11, 1e-6), 3)
    4.486
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    zeta = sensitivity(sensitivity_squared)
    probability("delta", delta)
    check_conversion(conversion)
    with precision(60):
        rho = Decimal(zeta) / (2 * Decimal(sigma) ** 2)
        log_inverse = -Decimal(float(delta)).ln()
    excess = best_excess(rho, log_inverse, conversion)
    with precision(60 + 2 * abs(excess.adjusted())):
        return float_up(1 + excess)
