# SPDX-License-Identifier: Apache-2.0
"""What the finite tail of a noise stream adds to delta: the floor.

A normal number made from random bits has a largest value, and beyond it a neighbour's output can
be told apart for certain. The streams accounted for here make a node's coordinates in pairs, as a
point of the plane whose radius comes from a uniform word of 64 bits, and every radius up to
R = sqrt(128 ln 2) = 9.419 occurs. So the noise is read as this law: each pair is a standard normal
point of the plane, given that it lies in the disc of radius R.

If a record touches ``nodes`` nodes of at most m = 2^35 pairs and shifts each by at most S < 9 (L2,
in units of the noise), and delta(eps) is the exact value for untruncated normals, then

    truncated delta(eps) <= delta(eps)/(1 - Q) + floor,    Q = nodes m 2^-64,
    floor = nodes/(1 - Q) 2^-64 (R sqrt(m) S + e^(R S - S^2/2) - 1 - R S).

The proof is in docs/accounting.md. That floating-point numbers lie on a grid is not covered here.
"""

from __future__ import annotations

from decimal import Decimal

from dpftrl_fast.accounting._checks import positive, positive_int
from dpftrl_fast.accounting._rounding import float_down, float_up, precision

__all__ = ["MAX_COORDINATES", "support_floor", "truncated_delta", "untruncated_delta"]

#: The most coordinates of a node for which the floor holds: 2^35 pairs.
MAX_COORDINATES = 2**36

_PAIRS = Decimal(MAX_COORDINATES // 2)
_OUTSIDE = Decimal("5.42101086242752217003726400434970855712890625e-20")  # 2^-64, exactly
_MAX_SHIFT = 9
# s -> (e^(R s - s^2/2) - 1 - R s)/s^2 increases; below this it is replaced by its value here, where
# the difference is still computed without losing digits.
_MIN_SHIFT = Decimal("1e-6")
_WIDEN = Decimal("1.000000000001")


def support_floor(noise_multiplier: float, nodes: int, *, l2_sensitivity: float = 1.0) -> float:
    """Upper bound of the probability that neighbours' outputs fail to overlap, rounded up.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    nodes : int
        Nodes that one record touches, >= 1.
    l2_sensitivity : float
        How far the record shifts each of them, in clip norms: 1 for one contribution replaced by
        zero, 2 for one replaced by another.

    Returns
    -------
    float
        At most 1; exactly 1 where the shift is 9 standard deviations or more.

    Examples
    --------
    >>> f"{support_floor(1.13, 11):.1e}"
    '9.2e-13'
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    shift = positive("l2_sensitivity", l2_sensitivity)
    count = positive_int("nodes", nodes)
    with precision(60):
        s = Decimal(shift) / Decimal(sigma)
        if s >= _MAX_SHIFT:
            return 1.0
        radius = (128 * Decimal(2).ln()).sqrt()
        at = max(s, _MIN_SHIFT)
        curved = (s / at) ** 2 * ((radius * at - at * at / 2).exp() - 1 - radius * at)
        per_node = _OUTSIDE * (radius * _PAIRS.sqrt() * s + curved)
        return min(1.0, float_up(count * per_node * _WIDEN / _inside(count)))


def truncated_delta(delta: float, nodes: int, floor: float) -> float:
    """Return the delta that holds for the truncated noise, from the exact one; rounded up.

    Examples
    --------
    >>> truncated_delta(1e-6, 11, 1e-12)
    1.0000010204890972e-06
    """
    with precision(60):
        return min(1.0, float_up(Decimal(delta) / _inside(nodes) + Decimal(floor)))


def untruncated_delta(delta: float, nodes: int, floor: float) -> float:
    """Return the exact delta that leaves ``delta`` for the truncated noise; rounded down.

    It is 0 or negative where ``delta`` is not above ``floor``.

    Examples
    --------
    >>> untruncated_delta(1e-6, 11, 1e-6)
    0.0
    """
    with precision(60):
        return float_down((Decimal(delta) - Decimal(floor)) * _inside(nodes))


def _inside(nodes: int) -> Decimal:
    """Return 1 - Q, a lower bound of the probability that every pair lies in its disc."""
    inside = 1 - nodes * _PAIRS * _OUTSIDE
    if not inside > 0:
        raise ValueError(f"nodes must be an integer < 2^29, got {nodes}")
    return inside
