# SPDX-License-Identifier: Apache-2.0
"""From participation to the squared sensitivity zeta of what the tree releases.

One record adds, to the sum under a node, its clipped gradient once for each of its uses under that
node. In units of the clip norm, the vector of all node sums therefore moves by at most sqrt(zeta),

    zeta = max over who-takes-part-when of  sum over nodes of (contributions under the node)^2

over the nodes that can be read: those whose last leaf is at most the end of their tree (its last
step, or the next power of two where it is completed). Every prefix, vanilla or Honaker, is a
function of those node sums plus noise.

``bound="released"`` counts less, since only prefixes leave the tree. Vanilla prefixes read the
nodes of even index alone. What a Honaker prefix at such a node (level l) adds to those before it is
the weighted count W, with noise of variance v, where

    W(node) = contributions under it + W(right child)/2,   v = 1 + 1/4 + ... + 4^-l,

so that zeta is the maximum of the sum of W^2/v. Both are derived in docs/accounting.md, with the
root of a completed tree counted as read, and with the program for minimum separation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast import _core
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.mechanisms.choices import PlanBound, Variant, check_plan_bound
from dpftrl_fast.mechanisms.tree_layout import Complete, TreeRun, Trees, resolve_trees

Bound = Literal["exact", "level", "released"]
_Counted = Literal["all_nodes", "even_nodes"]

# Comparisons of the min-separation program for prefixes, half a second's worth, before it goes on
# with coarser places of uses (and, for Honaker, weights): bits of each, 0 for exact.
_WORK = 800_000_000
_PLACE_BITS = (0, 6, 5, 4, 3, 2)
_PLACE_AND_WEIGHT_BITS = ((0, 0), (6, 10), (4, 10), (3, 10), (2, 10), (2, 8), (2, 6))
_NO_LIMIT = 2**63 - 1
# Steps of one tree up to which the places of an epoch are tried one by one.
_MOST_TRIED = 2**27


def check_bound(bound: Bound, variant: Variant) -> None:
    """Raise if these are not names of a bound and of a variant."""
    if bound not in ("exact", "level", "released"):
        raise ValueError(f'bound must be "exact", "level" or "released", got {bound!r}')
    if variant not in ("honaker", "vanilla"):
        raise ValueError(f'variant must be "honaker" or "vanilla", got {variant!r}')


def sensitivity_squared(
    participation: Participation,
    *,
    restart_every: int | None = None,
    tree_lengths: Sequence[int] | None = None,
    complete: Complete = False,
    bound: Bound = "exact",
    variant: Variant = "honaker",
) -> int | float:
    """Squared L2 sensitivity (zeta) of what the trees release, in units of the clip norm squared.

    Parameters
    ----------
    participation : SinglePass, FixedEpochs, FixedOrder or MinSeparation
        Who takes part when.
    restart_every : int, optional
        A new tree starts after every ``restart_every`` steps, as long as steps are left: the last
        tree may be shorter. None means one tree.
    tree_lengths : sequence of int, optional
        The steps of each tree, instead of ``restart_every``.
    complete : bool, "all" or sequence of bool
        Trees that are advanced, by steps with zero gradients, to the next power of two: none
        (False), each tree that a restart follows (True), the last tree too ("all"), or one bool a
        tree.
    bound : {"exact", "level", "released"}
        ``"exact"`` is the maximum over all nodes that can be read. ``"level"`` is the paper's
        looser bound, each level of the tree by itself (where that is no looser, or for epochs,
        the exact value). ``"released"`` is smaller than both, and
        holds where nothing but prefixes leaves the tree: never together with single nodes
        (:meth:`dpftrl_fast.TreeNoise.node`).
    variant : {"honaker", "vanilla"}
        How prefixes are put together. It matters to ``"released"`` only.

    Returns
    -------
    int or float
        zeta. A float, rounded up, for Honaker prefixes with ``"released"``, else an exact integer.
        Neighbours differ in one record's (or one user's) gradients, replaced by zero; where they
        are replaced by other gradients the sensitivity doubles and zeta counts four times.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above; if zeta could pass 2^63; for a separation that
        allows more than 2^20 uses (not for ``"level"``); for epochs whose places have to be tried
        one by one in more than 2^27 steps.

    Notes
    -----
    With :class:`FixedEpochs` whose order may be reshuffled at restarts, zeta is the sum over the
    trees of the maximum over the places of an epoch. [1]_ [2]_

    All values are exact but one: under a minimum separation, ``"released"`` is the exact maximum up
    to a fixed amount of work (about T = 2000 with 20 uses, more with vanilla), beyond that an upper
    bound of it, mostly within 4 %, and never above ``"exact"``.

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
    >>> sensitivity_squared(SinglePass(1600), restart_every=100, complete=True)
    8
    >>> sensitivity_squared(FixedOrder([1, 2, 3, 1, 4]))
    8
    >>> sensitivity_squared(FixedEpochs(100, 100), restart_every=500)
    1000
    >>> sensitivity_squared(MinSeparation(2000, max_participations=20, min_separation=100))
    425
    >>> round(sensitivity_squared(FixedEpochs(100, 20), bound="released"), 1)
    393.9
    """
    if not isinstance(participation, (SinglePass, FixedEpochs, FixedOrder, MinSeparation)):
        raise TypeError(
            "participation must be a SinglePass, FixedEpochs, FixedOrder or MinSeparation, "
            f"got {type(participation).__name__}"
        )
    trees = resolve_trees(
        participation.steps,
        restart_every=restart_every,
        tree_lengths=tree_lengths,
        complete=complete,
    )
    return sensitivity_squared_of(participation, trees, bound=bound, variant=variant)


def sensitivity_squared_of(
    participation: Participation, trees: Trees, *, bound: Bound, variant: Variant
) -> int | float:
    """Return :func:`sensitivity_squared` for trees that are laid out already.

    Examples
    --------
    >>> from dpftrl_fast.accounting.participation import SinglePass
    >>> from dpftrl_fast.mechanisms.tree_layout import resolve_trees
    >>> trees = resolve_trees(1600, restart_every=100)
    >>> sensitivity_squared_of(SinglePass(1600), trees, bound="exact", variant="honaker")
    7
    """
    check_bound(bound, variant)
    weighted = bound == "released" and variant == "honaker"
    counted: _Counted = "even_nodes" if bound == "released" else "all_nodes"
    try:
        if isinstance(participation, FixedOrder):
            if bound == "level":
                return _core.order_level_bound(_triples(trees), *_dense(participation)[1:])
            return _maximum(_by_id(participation, trees, counted, weighted)[1])
        if isinstance(participation, FixedEpochs):
            return _fixed_epochs(participation, trees, counted, weighted)
        if isinstance(participation, SinglePass):
            most_uses, separation = 1, 1
        else:
            most_uses = participation.max_participations
            separation = participation.min_separation
        if bound == "level":
            return _level_bound(trees, most_uses, separation)
        if bound == "exact":
            return _separated_nodes(trees, most_uses, separation)
        return _separated_prefixes(trees, most_uses, separation, variant)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def sensitivity_squared_by_id(
    order: FixedOrder,
    *,
    restart_every: int | None = None,
    tree_lengths: Sequence[int] | None = None,
    complete: Complete = False,
    bound: PlanBound = "exact",
    variant: Variant = "honaker",
) -> tuple[NDArray[np.int64], NDArray[np.int64] | NDArray[np.float64]]:
    """Squared sensitivity of every id of an order by itself: individual accounting.

    The guarantee of a run is that of the largest; single values tell who took part how often, and
    belong neither into a public result nor into a decision about the run. O(uses log T) time and
    O(ids) memory.

    Parameters
    ----------
    order : FixedOrder
        Who takes part when.
    restart_every, tree_lengths, complete, bound, variant
        As for :func:`sensitivity_squared`; ``"level"`` has no value of one id.

    Returns
    -------
    ids : ndarray of int64, shape (n,)
        The ids, in increasing order.
    values : ndarray of shape (n,)
        zeta of each: int64, or float64 rounded up for Honaker prefixes with ``"released"``.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedOrder
    >>> ids, values = sensitivity_squared_by_id(FixedOrder([1, 2, 3, 1, 4]))
    >>> ids.tolist(), values.tolist()
    ([1, 2, 3, 4], [8, 3, 3, 1])
    """
    if not isinstance(order, FixedOrder):
        raise TypeError(f"order must be a FixedOrder, got {type(order).__name__}")
    check_plan_bound(bound)
    check_bound(bound, variant)
    trees = resolve_trees(
        order.steps, restart_every=restart_every, tree_lengths=tree_lengths, complete=complete
    )
    counted: _Counted = "even_nodes" if bound == "released" else "all_nodes"
    weighted = bound == "released" and variant == "honaker"
    try:
        return _by_id(order, trees, counted, weighted)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _triples(trees: Trees) -> list[tuple[int, int, bool]]:
    return [(run.steps, run.count, run.completed) for run in trees.runs]


# ---- A known order ----


def _dense(
    order: FixedOrder,
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64], NDArray[np.int64], int]:
    """Return ids as places in a table of ids (None: ids are places), offsets, table size."""
    size = int(order.ids.max()) + 1
    if size <= 4 * order.ids.size + 1024:
        return None, order.ids, order.offsets, size
    known, places = np.unique(order.ids, return_inverse=True)
    return known, places.astype(np.int64, copy=False).reshape(-1), order.offsets, known.size


def _by_id(
    order: FixedOrder, trees: Trees, counted: _Counted, weighted: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64] | NDArray[np.float64]]:
    known, places, offsets, size = _dense(order)
    values = _of_order(places, offsets, size, trees, counted, weighted)
    if known is not None:
        return known, values
    present = np.zeros(size, bool)
    present[places] = True
    ids = np.flatnonzero(present)
    return ids, values[ids]


def _of_order(
    places: NDArray[np.int64],
    offsets: NDArray[np.int64],
    size: int,
    trees: Trees,
    counted: _Counted,
    weighted: bool,
) -> NDArray[np.int64] | NDArray[np.float64]:
    if weighted:
        weights = np.empty(size)
        _core.order_weights(_triples(trees), places, offsets, weights)
        # All that is released is a function of the nodes: rounding up ends at their value.
        nodes = _of_order(places, offsets, size, trees, "all_nodes", weighted=False)
        return np.minimum(weights, nodes)
    counts = np.empty(size, np.int64)
    _core.order_counts(_triples(trees), places, offsets, counted, counts)
    return counts


def _maximum(values: NDArray[np.int64] | NDArray[np.float64]) -> int | float:
    largest: int | float = values.max().item()
    return largest


# ---- Epochs of fixed batches ----


def _fixed_epochs(
    epochs: FixedEpochs, trees: Trees, counted: _Counted, weighted: bool
) -> int | float:
    period = epochs.steps_per_epoch
    if counted == "all_nodes" and (epochs.reshuffle or _all_start_alike(trees, period)):
        # The batch at a tree's first step has the most uses in the first m steps, for every m, and
        # so the most under the nodes of each level.
        return sum(run.count * _first_place(run, period) for run in trees.runs)
    if epochs.reshuffle:
        return sum(
            run.count * _maximum(_places(Trees((_once(run),)), period, counted, weighted))
            for run in trees.runs
        )
    return _maximum(_places(trees, period, counted, weighted))


def _all_start_alike(trees: Trees, period: int) -> bool:
    last = trees.runs[-1]
    return all(run.steps % period == 0 for run in trees.runs[:-1]) and (
        last.count == 1 or last.steps % period == 0
    )


def _once(run: TreeRun) -> TreeRun:
    return TreeRun(run.steps, run.completed, 1)


def _first_place(run: TreeRun, period: int) -> int:
    """Return zeta of the uses at steps 1, 1 + period, ... of one tree, level by level."""
    total = 0
    for level in range(run.end.bit_length()):
        size = 1 << level
        full, rest = divmod(run.steps, size)
        uses, low = -(-full * size // period), size // period
        high = uses - full * low  # nodes with one use more
        total += full * low * low + high * (2 * low + 1)
        if rest and run.completed:
            total += (-(-run.steps // period) - uses) ** 2
    return total


def _places(
    trees: Trees, period: int, counted: _Counted, weighted: bool
) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return zeta of the batch at each place of an epoch, by walking over the steps."""
    steps = trees.steps
    if steps > _MOST_TRIED:
        raise ValueError(
            f"this sensitivity is computed for at most {_MOST_TRIED} steps (of one tree, where "
            f'batches may be reshuffled at restarts), got {steps}; bound="exact" has no such limit'
            " where trees hold whole epochs"
        )
    places = np.arange(steps, dtype=np.int64) % period
    offsets = np.arange(steps + 1, dtype=np.int64)
    return _of_order(places, offsets, min(period, steps), trees, counted, weighted)


# ---- A minimum separation ----


def _separated_nodes(trees: Trees, most_uses: int, separation: int) -> int:
    if most_uses == 1:  # the first leaf has a node of every level
        return max(run.end.bit_length() for run in trees.runs)
    value = _core.min_separation_counts(
        _triples(trees), most_uses, separation, "all_nodes", 0, _NO_LIMIT
    )
    assert value is not None  # there was no limit
    return value


def _separated_prefixes(
    trees: Trees, most_uses: int, separation: int, variant: Variant
) -> int | float:
    runs = _triples(trees)
    if most_uses == 1:
        separation = 1
    # All that is released is a function of the nodes, so that their value bounds it too.
    nodes = _separated_nodes(trees, most_uses, separation)
    if variant == "vanilla":
        for place in _PLACE_BITS:
            count = _core.min_separation_counts(
                runs, most_uses, separation, "even_nodes", place, _WORK
            )
            if count is not None:
                return min(count, nodes)
        return nodes
    for place, weight in _PLACE_AND_WEIGHT_BITS:
        value = _core.min_separation_weights(runs, most_uses, separation, place, weight, _WORK)
        if value is not None:
            return min(value, float(nodes))
    return float(nodes)


def _level_bound(trees: Trees, most_uses: int, separation: int) -> int:
    """Each level's nodes filled with as many uses as each can hold, while uses are left.

    The paper's Algorithm 2 (its appendix on sensitivity), for several trees.
    """
    uses_left = min(most_uses, -(-trees.steps // separation))
    tallest = max(run.end for run in trees.runs)
    return sum(
        _filled(_capacities(trees, level, separation), uses_left)
        for level in range(tallest.bit_length())
    )


def _capacities(trees: Trees, level: int, separation: int) -> Iterator[tuple[int, int]]:
    """How many uses a node of this level can hold, and how many such nodes there are."""
    size = 1 << level
    for run in trees.runs:
        full, rest = divmod(run.steps, size)
        yield -(-size // separation), full * run.count
        if rest and run.completed and run.end >= size:
            yield -(-rest // separation), run.count


def _filled(capacities: Iterator[tuple[int, int]], uses: int) -> int:
    total = 0
    for capacity, nodes in sorted(capacities, reverse=True):
        filled = min(nodes, uses // capacity)
        total += filled * capacity**2
        uses -= filled * capacity
        if filled < nodes:
            return total + uses**2  # fewer are left than this node can hold
    return total
