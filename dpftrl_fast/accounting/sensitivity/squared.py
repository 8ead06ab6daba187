# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity (zeta) of a mechanism under a participation pattern.

The computation itself is registered for the type of the mechanism's layout; for trees it is in
`accounting.sensitivity.tree`, for Toeplitz mechanisms in `accounting.sensitivity.toeplitz`.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice
from dpftrl_fast.accounting.participation import FixedOrder, Participation, check_participation
from dpftrl_fast.mechanisms import Mechanism, Tree
from dpftrl_fast.mechanisms.mechanism import Layout, check_mechanism

#: The bounds of a squared sensitivity: all nodes, the looser bound level by level, prefixes only.
Bound: TypeAlias = Literal["exact", "level", "released"]
#: The bounds that a plan can have.
PlanBound: TypeAlias = Literal["exact", "released"]
Values: TypeAlias = NDArray[np.int64] | NDArray[np.float64]


def check_plan_bound(bound: Any) -> PlanBound:
    """Return `bound` if a plan can have it."""
    allowed: tuple[PlanBound, ...] = ("exact", "released")
    return choice("bound", bound, allowed)


def sensitivity_squared(
    participation: Participation, mechanism: Mechanism = Tree(), *, bound: Bound = "exact"
) -> int | float:
    """Squared L2 sensitivity (zeta) of a mechanism, in units of the clip norm squared.

    Parameters
    ----------
    participation : SinglePass, FixedEpochs, FixedOrder or MinSeparation
        Who takes part when.
    mechanism : Tree or Toeplitz mechanism
        The mechanism: a tree with its variant, restarts and completion, or a matrix mechanism with
        its coefficients as they are. Round these to the dtype of the noise first.
    bound : {"exact", "level", "released"}
        ``"exact"`` is the maximum over all nodes that can be read. ``"level"`` is the paper's
        looser bound, each level of the tree by itself (the exact value where that is not larger,
        and for epochs). ``"released"`` is smaller than both, and
        holds if only prefixes are released: never together with single nodes
        (:meth:`dpftrl_fast.TreeNoise.node`). For Toeplitz mechanisms the two are one number, and
        ``"level"`` is refused.

    Returns
    -------
    int or float
        zeta. A float, rounded up, for Toeplitz mechanisms and for Honaker prefixes with
        ``"released"``, else an exact integer.
        Neighbours differ in one record's (or one user's) gradients, replaced by zero; where they
        are replaced by other gradients the sensitivity doubles and zeta counts four times.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described; if zeta could pass 2^63; for a separation that allows
        more than 2^20 participations (not for ``"level"``); for epochs whose places have to be
        tried one by one in more than 2^27 steps; for blocks of Toeplitz noise of more than 2^24
        steps (but buffers in a single pass), coefficients outside of [1e-100, 1e100], or taps of
        both signs whose rounding errors have no bound.

    Notes
    -----
    With :class:`FixedEpochs` whose order may be reshuffled at restarts, zeta is the sum over the
    trees of the maximum over the places of an epoch. [1]_ [2]_

    For Toeplitz mechanisms zeta is exact, up to rounding, where the coefficients c of the strategy
    are >= 0 and, under a minimum separation b, fall from c_b on; else it is an upper bound.

    All values of trees are exact but one: under a minimum separation, ``"released"`` is the exact
    maximum up to a fixed amount of work (about T = 2000 with 20 participations, more with vanilla),
    beyond that an upper bound of it, mostly within 4 %, and never above ``"exact"``.

    References
    ----------
    .. [1] Kairouz et al., "Practical and Private (Deep) Learning Without Sampling or Shuffling",
       2021, Theorem 4.1 and Appendix D.
    .. [2] Denisov et al., "Improved Differential Privacy for SGD via Optimal Private Linear
       Operators on Adaptive Streams", 2022.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
    >>> sensitivity_squared(SinglePass(1600))
    11
    >>> sensitivity_squared(SinglePass(1600), Tree(restart_every=100, complete=True))
    8
    >>> sensitivity_squared(FixedOrder([1, 2, 3, 1, 4]))
    8
    >>> sensitivity_squared(FixedEpochs(100, 100), Tree(restart_every=500))
    1000
    >>> sensitivity_squared(MinSeparation(2000, max_participations=20, min_separation=100))
    425
    >>> round(sensitivity_squared(FixedEpochs(100, 20), bound="released"), 1)
    393.9
    >>> from dpftrl_fast.mechanisms import BandedInverse
    >>> taps = BandedInverse.square_root(4)
    >>> round(sensitivity_squared(MinSeparation(1000, 10, 100), taps), 6)
    16.224024
    """
    pattern = check_participation(participation)
    allowed: tuple[Bound, ...] = ("exact", "level", "released")
    choice("bound", bound, allowed)
    return squared_of(check_mechanism(mechanism).layout(pattern.steps), pattern, bound)


@singledispatch
def squared_of(layout: Layout, participation: Participation, bound: Bound) -> int | float:
    """Return :func:`sensitivity_squared` of a layout; registered for the type of each layout."""
    raise TypeError(f"no sensitivity is registered for layouts of type {type(layout).__name__}")


def sensitivity_squared_by_id(
    order: FixedOrder, mechanism: Mechanism = Tree(), *, bound: PlanBound = "exact"
) -> tuple[NDArray[np.int64], Values]:
    """Squared sensitivity of every id of an order by itself: individual accounting.

    The guarantee of a run is that of the largest value. Single values reveal how often each id took
    part: do not publish them or decide about the run by them. Time O(participations log T), memory
    O(ids).

    Parameters
    ----------
    order : FixedOrder
        Who takes part when.
    mechanism, bound
        As for :func:`sensitivity_squared`; ``"level"`` has no value of one id.

    Returns
    -------
    ids : ndarray of int64, shape (n,)
        The ids, in increasing order.
    values : ndarray of shape (n,)
        zeta of each: int64, or float64 rounded up for Toeplitz mechanisms and for Honaker prefixes
        with ``"released"``.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedOrder
    >>> ids, values = sensitivity_squared_by_id(FixedOrder([1, 2, 3, 1, 4]))
    >>> ids.tolist(), values.tolist()
    ([1, 2, 3, 4], [8, 3, 3, 1])
    """
    if not isinstance(order, FixedOrder):
        raise TypeError(f"order must be a FixedOrder, got {type(order).__name__}")
    layout = check_mechanism(mechanism).layout(order.steps)
    return squared_by_id_of(layout, order, check_plan_bound(bound))


@singledispatch
def squared_by_id_of(
    layout: Layout, order: FixedOrder, bound: PlanBound
) -> tuple[NDArray[np.int64], Values]:
    """Return :func:`sensitivity_squared_by_id` of a layout; registered for each type of layout."""
    raise TypeError(f"no sensitivity is registered for layouts of type {type(layout).__name__}")


@singledispatch
def rule_of(layout: Layout, participation: Participation, bound: Bound) -> str:
    """Return the rule by which `squared_of` counts, in words that end "exact" or "upper bound".

    Exact is up to a rounding of less than 1e-7 of the value, which is to the safe side.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedEpochs
    >>> from dpftrl_fast.mechanisms import BandedInverse
    >>> rule_of(BandedInverse.square_root(4).layout(100), FixedEpochs(10, 10), "exact")
    'first place of the epoch, exact'
    """
    raise TypeError(f"no sensitivity is registered for layouts of type {type(layout).__name__}")
