# SPDX-License-Identifier: Apache-2.0
"""The exact Gaussian curve and its inverses in decimal arithmetic: slow, and never undecided.

Oracle and fallback of the compiled searches. Every result is the smallest
double that is not below the true value.
"""

from __future__ import annotations

import math
from decimal import Decimal

from dpftrl_fast.accounting.curve.hockey_stick import hockey_stick
from dpftrl_fast.accounting.curve.rounding import float_up, precision, smallest_double

_NEWTON_STEPS = 40
_SQRT_TWO_PI = Decimal("2.5066282746")


def decimal_mean_shift(sigma: float, zeta: int | float) -> Decimal:
    """Return mu = sqrt(zeta)/sigma to more digits than any bound needs.

    Examples
    --------
    >>> float(decimal_mean_shift(1.5, 9))
    2.0
    """
    return _mu(Decimal(sigma), Decimal(zeta))


def _mu(sigma: Decimal, zeta: Decimal) -> Decimal:
    # As many digits as the kernel works with, which grow with the size of mu.
    with precision(30):
        size = abs((zeta.sqrt() / sigma).adjusted())
    with precision(80 + size):
        return zeta.sqrt() / sigma


def decimal_delta(sigma: float, zeta: int | float, eps: float) -> float:
    """Return delta(eps) rounded up; 0 < sigma < inf, zeta > 0, eps >= 0.

    Examples
    --------
    >>> round(decimal_delta(1.0, 1, 1.0), 6)
    0.126937
    """
    return float_up(hockey_stick(decimal_mean_shift(sigma, zeta), Decimal(eps)).delta)


def decimal_epsilon(
    sigma: float, zeta: int | float, delta: float, guess: float = math.nan
) -> float:
    """Return epsilon(delta) rounded up; a good ``guess`` saves time.

    Examples
    --------
    >>> round(decimal_epsilon(1.13, 11, 1e-6), 3)
    17.667
    """
    mu, target = decimal_mean_shift(sigma, zeta), Decimal(delta)
    if hockey_stick(mu, Decimal(0)).delta <= target:
        return 0.0
    if not 0 < guess < math.inf:
        guess = _newton_epsilon(mu, target)
    return smallest_double(lambda eps: hockey_stick(mu, Decimal(eps)).delta <= target, guess)


def _newton_epsilon(mu: Decimal, target: Decimal) -> float:
    # ln delta is concave in eps, and the zCDP bound mu^2/2 + mu sqrt(2 ln(1/delta)) lies right of
    # the root: Newton's steps come down to it from the right.
    with precision(60):
        log_target = target.ln()
        eps = mu * mu / 2 + mu * (-2 * log_target).sqrt()
        for _ in range(_NEWTON_STEPS):
            at = hockey_stick(mu, eps)
            if not (at.density and at.mills):
                break
            step = (at.delta.ln() - log_target) * at.delta / (at.density * at.mills)
            eps = max(eps + step, Decimal(0))
            if abs(step) <= eps * Decimal("1e-20"):
                break
        return float(eps)


def decimal_noise_multiplier(
    eps: float, delta: float, zeta: int | float, guess: float = math.nan
) -> float:
    """Return the noise multiplier for (eps, delta) rounded up; a good ``guess`` saves time.

    Examples
    --------
    >>> decimal_noise_multiplier(1.0, 1e-6, 11)
    14.0116747356325
    """
    exact, target, square = Decimal(eps), Decimal(delta), Decimal(zeta)
    if not 0 < guess < math.inf:
        with precision(60):
            guess = float(square.sqrt() / _newton_mu(exact, target))
    return smallest_double(
        lambda sigma: hockey_stick(_mu(Decimal(sigma), square), exact).delta <= target, guess
    )


def _newton_mu(eps: Decimal, target: Decimal) -> Decimal:
    # Start left of the root, at the larger of two lower bounds: the zCDP bound turned round, and
    # the one from delta(mu, eps) <= delta(mu, 0) <= mu/sqrt(2 pi). Newton's steps come up from it.
    with precision(60):
        log_target = target.ln()
        mu = max(
            Decimal(2).sqrt() * eps / ((eps - log_target).sqrt() + (-log_target).sqrt()),
            target * _SQRT_TWO_PI,
        )
        for _ in range(_NEWTON_STEPS):
            at = hockey_stick(mu, eps)
            if not at.density:
                break
            step = (log_target - at.delta.ln()) * at.delta / at.density
            mu += max(step, -mu / 2)
            if abs(step) <= mu * Decimal("1e-20"):
                break
        return mu
