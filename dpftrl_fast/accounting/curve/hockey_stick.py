# SPDX-License-Identifier: Apache-2.0
"""The hockey-stick divergence of two normal laws mu apart, to more digits than a double needs.

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)

With a = eps/mu - mu/2, b = eps/mu + mu/2, phi the normal density and Mills' ratio
R(x) = (1 - Phi(x))/phi(x), the identity e^eps phi(b) = phi(a) turns this into one factor that may
be tiny times one that is not,

    delta = phi(a) (R(a) - R(b))           for a >= 0,
    delta = 1 - phi(a) (R(-a) + R(b))      for a < 0,

with the derivatives d delta / d eps = -phi(a) R(b) and d delta / d mu = phi(a). R(x) comes
from its Taylor series for small x and, for large x, from its continued fraction, whose convergents
enclose it. R(a) - R(b) loses about log10(40/mu) digits, so the number of digits follows mu.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from dpftrl_fast.accounting.curve.rounding import precision

# Relative error of the kernel is below 1e-40; every bound it is used for is widened by this much.
_WIDEN = Decimal("1." + 35 * "0" + "1")
# Beyond |a| = 60 delta is within 1e-780 of 0 or of 1: no double lies there.
_FAR = 60


class HockeyStick(NamedTuple):
    """delta (an upper bound within a relative 2e-36) and its two derivatives' factors.

    Where delta is above 1/2 the bound is that close to it relatively to 1 - delta, too.
    """

    delta: Decimal
    density: Decimal  # phi(a) = d delta / d mu
    mills: Decimal  # R(b); d delta / d eps = -density * mills


@lru_cache(maxsize=64)
def _sqrt_two_pi(digits: int) -> Decimal:
    # pi by Newton's arcsine series, 6 asin(1/2): 3 + 3/24 + 3*9/(24*80) + ...
    with precision(digits + 10):
        last, term, total = Decimal(0), Decimal(3), Decimal(3)
        n, n_step, d, d_step = 1, 0, 0, 24
        while total != last:
            last = total
            n, n_step = n + n_step, n_step + 8
            d, d_step = d + d_step, d_step + 32
            term = term * n / d
            total += term
        return (2 * total).sqrt()


def mills_ratio(x: Decimal, digits: int) -> Decimal:
    """Return R(x) = (1 - Phi(x))/phi(x) for x >= 0 with a relative error below 10^-digits."""
    if float(x) < 0.65 * math.sqrt(digits):
        return _mills_series(x, digits)
    return _mills_fraction(x, digits)


def _mills_series(x: Decimal, digits: int) -> Decimal:
    # R(x) = sqrt(pi/2) e^(x^2/2) - sum over n of x^(2n+1)/(2n+1)!!; the difference loses
    # log10(e^(x^2/2)) digits.
    digits += 10 + math.ceil(0.22 * float(x) ** 2)
    with precision(digits):
        square = x * x
        term = total = x
        n = 1
        smallest = Decimal(10) ** -digits
        while term > smallest * total or square > n:
            n += 2
            term = term * square / n
            total += term
        return _sqrt_two_pi(digits) / 2 * (square / 2).exp() - total


def _mills_fraction(x: Decimal, digits: int) -> Decimal:
    # R(x) = 1/(x + 1/(x + 2/(x + 3/(x + ...)))). With the convergents q_n/p_n, both p and q
    # following p_n = x p_(n-1) + n p_(n-2), two neighbours enclose R(x), n!/(p_n p_(n-1)) apart.
    with precision(digits + 10):
        tolerance = Decimal(10) ** -digits
        p_last, p = Decimal(1), x
        q_last, q = Decimal(0), Decimal(1)
        n, factorial = 0, Decimal(1)
        while factorial > tolerance * p * q_last:
            n += 1
            factorial *= n
            p_last, p = p, x * p + n * p_last
            q_last, q = q, x * q + n * q_last
        return q / p


def hockey_stick(mu: Decimal, eps: Decimal) -> HockeyStick:
    """Return delta(eps) for means ``mu`` > 0 apart, in units of the noise, and ``eps`` >= 0."""
    digits = working_digits(mu)
    with precision(digits):
        slope, half = eps / mu, mu / 2
        a, b = slope - half, slope + half
        if a > _FAR:
            return HockeyStick(Decimal("1e-700"), Decimal(0), Decimal(0))
        if a < -_FAR:
            return HockeyStick(Decimal(1), Decimal(0), Decimal(0))
        density = (-a * a / 2).exp() / _sqrt_two_pi(digits)
        mills = mills_ratio(b, digits)
        if a >= 0:
            delta = density * (mills_ratio(a, digits) - mills) * _WIDEN
        else:
            rest = density * (mills_ratio(-a, digits) + mills)
            delta = _one_minus(rest, digits) if rest < 0.5 else (1 - rest) * _WIDEN
        return HockeyStick(min(delta, Decimal(1)), density, mills)


def _one_minus(rest: Decimal, digits: int) -> Decimal:
    """Return an upper bound of 1 - ``rest`` that keeps the digits of a small ``rest``."""
    with precision(digits - rest.adjusted()):
        return 1 - rest / _WIDEN


def working_digits(mu: Decimal) -> int:
    """Return the digits that leave 40 right ones in delta; multiples of 16 reuse constants."""
    return 48 + 16 * math.ceil(abs(mu.adjusted()) / 16)
