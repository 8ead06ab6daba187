# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity (zeta) of the tree under each pattern of participation.

One record adds, to the sum under a node, its clipped gradient once for each of its participations
under that node. In units of the clip norm, the vector of all node sums therefore moves by at most
sqrt(zeta),

    zeta = max over who-takes-part-when of  sum over nodes of (contributions under the node)^2

over the nodes that can be read: those whose last leaf is at most the end of their tree (its last
step, or the next power of two where it is completed). Every prefix, vanilla or Honaker, is a
function of those node sums plus noise.

``bound="released"`` counts less, since only prefixes are released. Vanilla prefixes read the
nodes of even index alone. What a Honaker prefix at such a node (level l) adds to those before it is
the weighted count W, with noise of variance v, where

    W(node) = contributions under it + W(right child)/2,   v = 1 + 1/4 + ... + 4^-l,

so that zeta is the maximum of the sum of W^2/v. Both are derived in docs/plan/accounting.md, with
the root of a completed tree counted as read, and with the program for minimum separation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
)
from dpftrl_fast.accounting.sensitivity.splits import starts_alike
from dpftrl_fast.accounting.sensitivity.squared import (
    Bound,
    PlanBound,
    Values,
    rule_of,
    squared_by_id_of,
    squared_of,
)
from dpftrl_fast.mechanisms import TreeLayout
from dpftrl_fast.mechanisms.tree_layout import TreeRun

_Counted = Literal["all_nodes", "even_nodes"]

# Comparisons of the min-separation program for prefixes, half a second's worth, before it continues
# with coarser places of participations (and, for Honaker, weights): bits of each, 0 for exact.
_WORK = 800_000_000
_PLACE_BITS = (0, 6, 5, 4, 3, 2)
_PLACE_AND_WEIGHT_BITS = ((0, 0), (6, 10), (4, 10), (3, 10), (2, 10), (2, 8), (2, 6))
_NO_LIMIT = 2**63 - 1
# Steps of one tree up to which the places of an epoch are tried one by one.
_MOST_TRIED = 2**27


@squared_of.register
def _(layout: TreeLayout, participation: Participation, bound: Bound) -> int | float:
    try:
        if isinstance(participation, FixedOrder):
            if bound == "level":
                return _core.order_level_bound(layout.triples, *_dense(participation)[1:])
            return _maximum(_by_id(participation, layout, *_counting(layout, bound))[1])
        if isinstance(participation, FixedEpochs):
            return _fixed_epochs(participation, layout, *_counting(layout, bound))
        most_uses, separation = 1, 1
        if isinstance(participation, MinSeparation):
            most_uses = participation.max_participations
            separation = participation.min_separation
        if bound == "level":
            return _level_bound(layout, most_uses, separation)
        if bound == "exact":
            return _separated_nodes(layout, most_uses, separation)
        return _separated_prefixes(layout, most_uses, separation)
    except OverflowError as error:
        raise ValueError(str(error)) from None


@squared_by_id_of.register
def _(layout: TreeLayout, order: FixedOrder, bound: PlanBound) -> tuple[NDArray[np.int64], Values]:
    try:
        return _by_id(order, layout, *_counting(layout, bound))
    except OverflowError as error:
        raise ValueError(str(error)) from None


@rule_of.register
def _(layout: TreeLayout, participation: Participation, bound: Bound) -> str:
    if bound == "level":
        return "level by level, upper bound"
    separated = isinstance(participation, MinSeparation) and participation.most_uses() > 1
    if bound == "released" and separated:
        return "prefixes of the tree, exact or an upper bound of it"
    return "nodes of the tree, exact" if bound == "exact" else "prefixes of the tree, exact"


def _counting(layout: TreeLayout, bound: Bound) -> tuple[_Counted, bool]:
    """Return the nodes that count under a bound, and whether they count with weights."""
    if bound == "released":
        return "even_nodes", layout.variant == "honaker"
    return "all_nodes", False


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
    order: FixedOrder, trees: TreeLayout, counted: _Counted, weighted: bool
) -> tuple[NDArray[np.int64], Values]:
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
    trees: TreeLayout,
    counted: _Counted,
    weighted: bool,
) -> Values:
    if weighted:
        weights = np.empty(size)
        _core.order_weights(trees.triples, places, offsets, weights)
        # All that is released is a function of the nodes: rounding up ends at their value.
        nodes = _of_order(places, offsets, size, trees, "all_nodes", weighted=False)
        return np.minimum(weights, nodes)
    counts = np.empty(size, np.int64)
    _core.order_counts(trees.triples, places, offsets, counted, counts)
    return counts


def _maximum(values: Values) -> int | float:
    largest: int | float = values.max().item()
    return largest


# ---- Epochs of fixed batches ----


def _fixed_epochs(
    epochs: FixedEpochs, trees: TreeLayout, counted: _Counted, weighted: bool
) -> int | float:
    period = epochs.steps_per_epoch
    if counted == "all_nodes" and (epochs.reshuffle or starts_alike(trees.runs, period)):
        # The batch at a tree's first step participates most often in the first m steps, for every
        # m, and so most often under the nodes of each level.
        return sum(run.count * _first_place(run, period) for run in trees.runs)
    if epochs.reshuffle:
        return sum(
            count * _maximum(_places(tree, period, counted, weighted))
            for tree, count in trees.blocks()
        )
    return _maximum(_places(trees, period, counted, weighted))


def _first_place(run: TreeRun, period: int) -> int:
    """Return zeta of participations at steps 1, 1 + period, ... of one tree, level by level."""
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


def _places(trees: TreeLayout, period: int, counted: _Counted, weighted: bool) -> Values:
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


def _separated_nodes(trees: TreeLayout, most_uses: int, separation: int) -> int:
    if most_uses == 1:  # the first leaf has a node of every level
        return max(run.end.bit_length() for run in trees.runs)
    value = _core.min_separation_counts(
        trees.triples, most_uses, separation, "all_nodes", 0, _NO_LIMIT
    )
    assert value is not None  # there was no limit
    return value


def _separated_prefixes(trees: TreeLayout, most_uses: int, separation: int) -> int | float:
    runs = trees.triples
    if most_uses == 1:
        separation = 1
    # All that is released is a function of the nodes, so that their value bounds it too.
    nodes = _separated_nodes(trees, most_uses, separation)
    if trees.variant == "vanilla":
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


def _level_bound(trees: TreeLayout, most_uses: int, separation: int) -> int:
    """Fill the nodes of each level with as many participations as each can hold.

    The paper's Algorithm 2 (its appendix on sensitivity), for several trees.
    """
    uses_left = min(most_uses, -(-trees.steps // separation))
    tallest = max(run.end for run in trees.runs)
    return sum(
        _filled(_capacities(trees, level, separation), uses_left)
        for level in range(tallest.bit_length())
    )


def _capacities(trees: TreeLayout, level: int, separation: int) -> Iterator[tuple[int, int]]:
    """Yield (participations that a node of this level can hold, number of such nodes)."""
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
