# SPDX-License-Identifier: Apache-2.0
"""Sums of the coefficients of buffers over any number of steps, in closed form and rounded up.

c_0 = 1 and c_j = sum over i of scale_i decay_i^(j-1), so that over n steps

    sum of c_j   = 1 + sum over i of scale_i g(decay_i),
    sum of c_j^2 = 1 + sum over i, k of scale_i scale_k g(decay_i decay_k),

with the geometric series g(x) = 1 + x + .. + x^(n-2) = (1 - x^(n-1))/(1 - x), or n - 1 for x = 1.
Scales and decays are floats, and so fractions: 1 - x is computed without an error. The power is
rounded down, in multiples of 2^-320: what is subtracted is never too much. Every other operation is
exact, but for the last rounding, to a float that is not below. docs/plan/accounting.md has the
proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dpftrl_fast.accounting.curve.rounding import float_up
from dpftrl_fast.mechanisms import ToeplitzMechanism

_BITS = 320
# As for columns: the largest coefficient of c, at least that of c_0 = 1.
_MOST = 1e100


def has_series(mechanism: ToeplitzMechanism) -> bool:
    """Return whether the sums of this mechanism's coefficients have a closed form here.

    For scales beyond 1e100 in sum the column of coefficients refuses the mechanism.
    """
    kind, _, scale = mechanism.engine
    return kind == "buffers" and sum(map(Fraction, scale)) <= _MOST


def largest_coefficient(scale: Sequence[float]) -> float:
    """Return the largest of c_0 = 1 and c_1, c_2, .., which fall, rounded up.

    Examples
    --------
    >>> largest_coefficient([0.5, 0.25]), largest_coefficient([1.5, 0.25])
    (1.0, 1.75)
    """
    return max(1.0, float_up(sum(map(Fraction, scale), Fraction(0))))


def series_sum(decay: Sequence[float], scale: Sequence[float], steps: int) -> float:
    """Return the sum of c_0 .. c_(steps-1), rounded up.

    Examples
    --------
    >>> series_sum([0.5], [0.25], 4)
    1.4375
    """
    total = Fraction(1)
    for rate, weight in _given(decay, scale):
        total += weight * geometric(rate, steps - 1)
    return float_up(total)


def series_norm(decay: Sequence[float], scale: Sequence[float], steps: int) -> float:
    """Return the sum of c_j^2 over j < steps, rounded up.

    Examples
    --------
    >>> series_norm([0.5], [0.25], 4)
    1.08203125
    """
    given = _given(decay, scale)
    total = Fraction(1)
    for i, (rate, weight) in enumerate(given):
        total += weight * weight * geometric(rate * rate, steps - 1)
        for other, also in given[:i]:
            total += 2 * weight * also * geometric(rate * other, steps - 1)
    return float_up(total)


def geometric(x: Fraction, terms: int) -> Fraction:
    """Return 1 + x + .. + x^(terms - 1) for 0 < x <= 1, or a little more.

    Examples
    --------
    >>> geometric(Fraction(1, 2), 3)
    Fraction(7, 4)
    """
    if x == 1:
        return Fraction(terms)
    power = Fraction(_power_down(x, terms), 1 << _BITS)
    return _up((1 - power) / (1 - x))


def _given(decay: Sequence[float], scale: Sequence[float]) -> list[tuple[Fraction, Fraction]]:
    pairs = zip(decay, scale, strict=True)
    return [(Fraction(rate), Fraction(weight)) for rate, weight in pairs if weight > 0.0]


def _power_down(x: Fraction, exponent: int) -> int:
    """Return x^exponent in multiples of 2^-320, rounded down, for 0 < x <= 1."""
    base = (x.numerator << _BITS) // x.denominator
    found = 1 << _BITS
    for bit in f"{exponent:b}":
        found = found * found >> _BITS
        if bit == "1":
            found = found * base >> _BITS
    return found


def _up(x: Fraction) -> Fraction:
    """Return x rounded up to a multiple of 2^-320: short numerators keep sums fast."""
    return Fraction(-((-x.numerator << _BITS) // x.denominator), 1 << _BITS)
