# SPDX-License-Identifier: Apache-2.0
"""Epsilon through Renyi differential privacy (RDP), to reproduce figures published that way.

The Gaussian mechanism has RDP(alpha) = alpha rho with rho = zeta/(2 sigma^2), for every order
alpha > 1. From there to epsilon(delta), at each order,

    "cks"      alpha rho + ln((alpha - 1)/alpha) - (ln delta + ln alpha)/(alpha - 1)
    "mironov"  alpha rho + ln(1/delta)/(alpha - 1)

(Canonne, Kamath and Steinke 2020, Proposition 12; Mironov 2017, Proposition 3). Every order gives a
valid epsilon, so a grid of orders gives one that is at least that of the best real order, which is
where

    "cks"      rho (alpha - 1)^2 + ln(alpha) = ln(1/delta)
    "mironov"  rho (alpha - 1)^2 = ln(1/delta),  epsilon = rho + 2 sqrt(rho ln(1/delta))

(the second is also the conversion of zero-concentrated DP, Bun and Steinke 2016). A negative value
means that epsilon 0 holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Literal

from dpftrl_fast._validate import choice, real
from dpftrl_fast.accounting.curve.rounding import float_up, precision

Conversion = Literal["cks", "mironov"]

# The terms below have relative errors far below this; sums are widened by it before rounding up.
_WIDEN = Decimal("1e-36")


def rdp_epsilon(
    sigma: float,
    zeta: int | float,
    delta: float,
    *,
    orders: Iterable[float] | None,
    conversion: Conversion,
) -> float:
    """Return epsilon at ``delta`` through RDP, rounded up; see ``accounting.epsilon``."""
    check_conversion(conversion)
    grid = None if orders is None else check_orders(orders)
    if sigma in (0.0, math.inf):
        return 0.0 if sigma else math.inf
    with precision(60):
        rho = Decimal(zeta) / (2 * Decimal(sigma) ** 2)
        log_inverse = -Decimal(delta).ln()
    if grid is None:
        excess = [best_excess(rho, log_inverse, conversion)]
    else:
        with precision(1100):  # exact for every double
            excess = [Decimal(order) - 1 for order in grid]
    return max(0.0, float_up(min(_at_order(t, rho, log_inverse, conversion) for t in excess)))


def check_conversion(conversion: Conversion) -> None:
    """Raise ValueError unless ``conversion`` is "cks" or "mironov"."""
    choice("conversion", conversion, ("cks", "mironov"))


def check_orders(orders: Iterable[float]) -> list[float]:
    """Return the orders as a list of numbers > 1, at least one of them."""
    try:
        grid = list(orders)
    except TypeError:
        expected = "an iterable of numbers > 1"
        raise TypeError(f"orders must be {expected}, got {type(orders).__name__}") from None
    if not grid:
        raise ValueError("orders must hold at least one number > 1, got none")
    return [real("each of orders", order, above=1.0) for order in grid]


def _at_order(t: Decimal, rho: Decimal, log_inverse: Decimal, conversion: Conversion) -> Decimal:
    """Return epsilon at the order alpha = 1 + t."""
    with precision(60 + 2 * abs(t.adjusted())):
        alpha = 1 + t
        terms = [alpha * rho, log_inverse / t]
        if conversion == "cks":
            log_alpha = alpha.ln()
            terms += [t.ln() - log_alpha, -log_alpha / t]
        return sum(terms, Decimal(0)) + _WIDEN * sum(map(abs, terms), Decimal(0))


def best_excess(rho: Decimal, log_inverse: Decimal, conversion: Conversion) -> Decimal:
    """Return alpha - 1 for the best real order alpha."""
    with precision(60):
        t = (log_inverse / rho).sqrt()
    if conversion == "mironov":
        return t
    # f(t) = rho t^2 + ln(1 + t) - ln(1/delta) rises, and its root lies below the two points where
    # one term alone reaches ln(1/delta): Newton's iteration in a bracket.
    with precision(60):
        high = min(t, log_inverse.exp() - 1)
        low = Decimal(0)
        t = high
        for _ in range(200):
            f = rho * t * t + (1 + t).ln() - log_inverse
            low, high = (low, t) if f > 0 else (t, high)
            new = t - f / (2 * rho * t + 1 / (1 + t))
            if not low < new < high:
                new = (low + high) / 2
            if abs(new - t) <= t * Decimal("1e-30"):
                return new
            t = new
        return t
