# SPDX-License-Identifier: Apache-2.0
"""What the finite tail of a noise stream adds to delta: the floor.

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

The proof, and that of the numbers N, A and S/s of :func:`touched`, is in docs/accounting.md. That
floating-point numbers lie on a grid is not covered here.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from dpftrl_fast._validate import non_negative, positive, positive_integer, probability
from dpftrl_fast.accounting.curve.gaussian import delta as gaussian_delta
from dpftrl_fast.accounting.curve.gaussian import noise_multiplier as gaussian_noise_multiplier
from dpftrl_fast.accounting.curve.rounding import float_down, float_up, precision, smallest_double
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    check_participation,
)
from dpftrl_fast.mechanisms.choices import PlanBound, Variant, check_plan_bound, check_variant
from dpftrl_fast.mechanisms.tree_layout import Trees

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
    """Upper bounds of what one id (of a record or a user) does to the nodes of the tree.

    Parameters
    ----------
    nodes : int
        Nodes that it shifts (N), >= 1.
    total : int
        Sum of the shifts (A), >= 1, where one contribution shifts a node by 1.
    largest : int
        Largest shift of one node (S/s), >= 1.

    Examples
    --------
    >>> Touched(nodes=11, total=11, largest=1)
    Touched(nodes=11, total=11, largest=1)
    """

    nodes: int
    total: int
    largest: int

    def __post_init__(self) -> None:
        for name in ("nodes", "total", "largest"):
            object.__setattr__(self, name, positive_integer(name, getattr(self, name)))


def touched(
    participation: Participation,
    trees: Trees,
    bound: PlanBound = "exact",
    variant: Variant = "honaker",
) -> Touched:
    """Bound what one id does to the nodes.

    Parameters
    ----------
    participation : Participation
        Who takes part when.
    trees : Trees
        Of `participation.steps` steps.
    bound, variant
        As for :func:`dpftrl_fast.accounting.sensitivity_squared`. Under ``"exact"`` a use shifts
        the nodes above its leaf, one a level. Under ``"released"`` with ``"honaker"`` the shift is
        the shortest one that moves the prefixes as the uses do, which is spread over more nodes.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Examples
    --------
    >>> from dpftrl_fast.accounting.participation import SinglePass
    >>> from dpftrl_fast.mechanisms.tree_layout import resolve_trees
    >>> touched(SinglePass(1600), resolve_trees(1600))
    Touched(nodes=11, total=11, largest=1)
    >>> touched(FixedEpochs(100, 10), resolve_trees(1000, restart_every=500))
    Touched(nodes=90, total=90, largest=5)
    """
    pattern = check_participation(participation)
    if trees.steps != pattern.steps:
        raise ValueError(f"trees must have the {pattern.steps} steps of the run, got {trees.steps}")
    check_plan_bound(bound)
    check_variant(variant)
    uses, under_a_node = _uses(pattern, trees)
    levels = trees.tallest.bit_length()
    existing = sum((2 * run.end - run.end.bit_count()) * run.count for run in trees.runs)
    if bound == "exact" or variant == "vanilla":
        return Touched(min(uses * levels, existing), uses * levels, under_a_node)
    # The nodes right of the last step of a completed tree take up part of the shift, too. (A tree
    # that is complete as it is has none, and is counted all the same: more steps then never touch
    # less.)
    completed = [run for run in trees.runs if run.completed]
    longer = min(uses, sum(run.count for run in completed))
    widest = max((run.end for run in completed), default=0)
    return Touched(
        min(uses * levels**2 + longer * 2 * widest, existing),
        3 * uses * levels + longer * 4 * under_a_node * levels,
        2 * under_a_node,
    )


def _uses(pattern: Participation, trees: Trees) -> tuple[int, int]:
    """Return the most uses of one id in the run, and in one tree."""
    uses = pattern.most_uses()
    if isinstance(pattern, FixedEpochs):
        each = [-(-run.steps // pattern.steps_per_epoch) for run in trees.runs]
        if pattern.reshuffle:  # restarts inside of an epoch can bring an id more than once in it
            uses = sum(n * run.count for n, run in zip(each, trees.runs, strict=True))
        return uses, max(each)
    if isinstance(pattern, MinSeparation):
        return uses, min(uses, -(-trees.longest // pattern.min_separation))
    if isinstance(pattern, FixedOrder) and trees.count > 1:
        # One number for each pair of an id and a tree; both are at most the length of an array.
        places = np.unique(pattern.ids, return_inverse=True)[1].reshape(-1)
        pairs = places * trees.count + trees.trees_of(pattern.step_of_uses())
        return uses, int(np.unique(pairs, return_counts=True)[1].max())
    return uses, uses


def support_floor(
    noise_multiplier: float, sensitivity_squared: float, touched: Touched, *, scale: float = 1.0
) -> float:
    """Upper bound of the probability that neighbours' outputs fail to overlap, rounded up.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    sensitivity_squared : float
        zeta > 0, the sum of the squared shifts.
    touched : Touched
        The nodes that one id shifts.
    scale : float
        How far one contribution shifts a node, in clip norms: 1 for one replaced by zero, 2 for one
        replaced by another.

    Returns
    -------
    float
        At most 1; exactly 1 where a node is shifted by 9 standard deviations or more, or where
        there are so many of them that some pair leaves its disc (2^29).

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above, NaN included.

    Examples
    --------
    >>> f"{support_floor(1.13, 11, Touched(11, 11, 1)):.1e}"
    '9.2e-13'
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    zeta = positive("sensitivity_squared", sensitivity_squared)
    step = positive("scale", scale)
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
    """Return the delta that holds for the truncated noise, from the exact one; rounded up.

    Examples
    --------
    >>> truncated_delta(1e-6, Touched(11, 11, 1), 1e-12)
    1.0000010204890972e-06
    """
    with precision(60):
        inside = _inside(touched.nodes)
        if not inside > 0:
            return 1.0
        return min(1.0, float_up(Decimal(delta) / inside + Decimal(floor)))


def untruncated_delta(delta: float, touched: Touched, floor: float) -> float:
    """Return the exact delta that leaves ``delta`` for the truncated noise; rounded down.

    It is 0 or negative where ``delta`` is not above ``floor``.

    Examples
    --------
    >>> untruncated_delta(1e-6, Touched(11, 11, 1), 1e-6)
    0.0
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

    Parameters
    ----------
    epsilon : float
        Finite, >= 0, for zero-out neighbours.
    delta : float
        0 < delta < 1.
    sensitivity_squared : float
        zeta > 0, in units of the clip norm squared.
    touched : Touched
        The nodes that one id shifts.

    Returns
    -------
    float
        Infinity where no double is large enough.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above, NaN included.

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
