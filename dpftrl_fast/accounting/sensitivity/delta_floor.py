# SPDX-License-Identifier: Apache-2.0
"""Floor of delta: the probability mass lost to the finite tail of the noise stream.

A normal number made from random bits has a largest value, and beyond it a neighbour's output can
be told apart for certain. The streams accounted for here make a node's coordinates in pairs, as a
point of the plane whose radius comes from a uniform word of 64 bits, and every radius up to
R = sqrt(128 ln 2) = 9.419 occurs. So the noise is read as this law: each pair is a standard normal
point of the plane, given that it lies in the disc of radius R.

Let a record (or user) shift N nodes of at most m = 2^35 pairs, node v by s_v (L2, in units of the
noise), all below S < 9. With A s >= sum of s_v, zeta s^2 >= sum of s_v^2, where s is the shift of a
node by one contribution, and delta(eps) the exact value for untruncated normals,

    truncated delta(eps) <= delta(eps)/(1 - Q) + floor,    Q = N m 2^-64,
    floor = 2^-64/(1 - Q) (R sqrt(m) A s + zeta s^2 k(S)),  k(x) = (e^(R x - x^2/2) - 1 - R x)/x^2.

The proof, and that of the numbers N, A and S/s of :func:`touched`, is in docs/plan/accounting.md;
the distance of computed from real normals is in docs/guarantees/floating_point.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, singledispatch

from dpftrl_fast._validate import non_negative, positive, positive_integer, probability
from dpftrl_fast.accounting.curve.gaussian import delta as gaussian_delta
from dpftrl_fast.accounting.curve.gaussian import noise_multiplier as gaussian_noise_multiplier
from dpftrl_fast.accounting.curve.rounding import float_down, float_up, precision, smallest_double
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.mechanisms.mechanism import Layout

#: The most coordinates of a node for which the floor holds: 2^35 pairs.
MAX_COORDINATES = 2**36

_PAIRS = Decimal(MAX_COORDINATES // 2)
_OUTSIDE = Decimal("5.42101086242752217003726400434970855712890625e-20")  # 2^-64, exactly
_MAX_SHIFT = 9
# k increases; below this it is replaced by its value here, where the difference is still computed
# without losing digits.
_MIN_SHIFT = Decimal("1e-6")
_WIDEN = Decimal("1.000000000001")
with precision(60):
    _RADIUS = (128 * Decimal(2).ln()).sqrt()
    _ROOT_PAIRS = _PAIRS.sqrt()


@dataclass(frozen=True)
class Touched:
    """Upper bounds of the shifts of the noise vectors by one id (of a record or a user).

    Nodes whose radii are cut at a probability below 2^-64 may count for less than one.

    Parameters
    ----------
    nodes : int
        Nodes that it shifts (N), >= 1.
    total : int
        Sum of the shifts (A), >= 1, where one contribution shifts a node by 1.
    largest : int
        Largest shift of one node (S/s), >= 1.
    """

    nodes: int
    total: int
    largest: int

    def __post_init__(self) -> None:
        for name in ("nodes", "total", "largest"):
            object.__setattr__(self, name, positive_integer(name, getattr(self, name)))


@singledispatch
def touched(layout: Layout, participation: Participation, bound: PlanBound = "exact") -> Touched:
    """Bound the shifts of the noise vectors by one id; registered for the type of each layout."""
    raise TypeError(f"no floor is registered for layouts of type {type(layout).__name__}")


def support_floor(
    noise_multiplier: float, sensitivity_squared: float, touched: Touched, *, scale: float = 1.0
) -> float:
    """Upper bound of the probability that neighbours' outputs fail to overlap, rounded up.

    `scale` is the shift of a node by one contribution, in clip norms: 1 where it is replaced by
    zero, 2 where it is replaced by another. The result is at most 1, and exactly 1 where a node is
    shifted by 9 standard deviations or more, or where 2^29 nodes or more are shifted.

    Examples
    --------
    >>> f"{support_floor(1.13, 11, Touched(11, 11, 1)):.1e}"
    '9.2e-13'
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    zeta = positive("sensitivity_squared", sensitivity_squared)
    step = positive("scale", scale)
    return _support_floor(sigma, zeta, touched, step)


@lru_cache(maxsize=1024)  # several runs with one plan are composed one by one
def _support_floor(sigma: float, zeta: float, touched: Touched, step: float) -> float:
    with precision(60):
        s = Decimal(step) / Decimal(sigma)
        inside = _inside(touched.nodes)
        if s * touched.largest >= _MAX_SHIFT or not inside > 0:
            return 1.0
        at = max(s * touched.largest, _MIN_SHIFT)
        curve = ((_RADIUS * at - at * at / 2).exp() - 1 - _RADIUS * at) / (at * at)
        lost = _RADIUS * _ROOT_PAIRS * touched.total * s + Decimal(zeta) * s * s * curve
        return min(1.0, float_up(_OUTSIDE * lost * _WIDEN / inside))


def truncated_delta(delta: float, touched: Touched, floor: float) -> float:
    """Return the delta that holds for the truncated noise, from the exact one; rounded up."""
    with precision(60):
        inside = _inside(touched.nodes)
        if not inside > 0:
            return 1.0
        return min(1.0, float_up(Decimal(delta) / inside + Decimal(floor)))


def untruncated_delta(delta: float, touched: Touched, floor: float) -> float:
    """Return the exact delta for a ``delta`` of the truncated noise; rounded down.

    It is 0 or negative where ``delta`` is not above ``floor``.
    """
    with precision(60):
        inside = max(_inside(touched.nodes), Decimal(0))
        return float_down((Decimal(delta) - Decimal(floor)) * inside)


def _inside(nodes: int) -> Decimal:
    """Return 1 - Q, a lower bound of the probability that every pair lies in its disc."""
    return 1 - nodes * _PAIRS * _OUTSIDE


def calibrated_noise_multiplier(
    epsilon: float, delta: float, sensitivity_squared: float, touched: Touched
) -> float:
    """Smallest noise multiplier whose epsilon at ``delta``, floor included, is within budget.

    For zero-out neighbours; infinity where no double is large enough.

    Examples
    --------
    >>> round(calibrated_noise_multiplier(1.0, 1e-6, 11, Touched(11, 11, 1)), 3)
    14.012
    """
    budget = non_negative("epsilon", epsilon)
    total = probability("delta", delta)

    def left(sigma: float) -> float:
        floor = support_floor(sigma, sensitivity_squared, touched)
        return untruncated_delta(total, touched, floor)

    def holds(sigma: float) -> bool:
        exact = left(sigma)
        return exact > 0 and gaussian_delta(sigma, sensitivity_squared, budget) <= exact

    guess = gaussian_noise_multiplier(budget, total, sensitivity_squared)
    for _ in range(3):  # each pass brings the guess closer, by a factor of about floor/delta
        exact = left(guess) if guess < float("inf") else 0.0
        if not exact > 0:
            break
        guess = gaussian_noise_multiplier(budget, exact, sensitivity_squared)
    return smallest_double(holds, guess)
