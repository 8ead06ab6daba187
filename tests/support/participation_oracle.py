# SPDX-License-Identifier: Apache-2.0
"""The accountant's definitions in plain Python: every pattern, every node, one after the other.

A run is a list of trees ``(steps, completed)``. One id's *uses* are the steps of the run, counted
from 0 over all trees, in which it takes part; a step listed twice is two contributions. Everything
is written from the definitions and shares nothing with the accountant; only the covariance of the
Honaker prefixes is taken from the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.reference import covariance

TreeSpecs = Sequence[tuple[int, bool]]
Completion = bool | Literal["all"] | Sequence[bool]
Node = tuple[int, int]


# ---- Runs and patterns ----


def tree_specs(
    steps: int, restart_every: int | None = None, complete: Completion = False
) -> list[tuple[int, bool]]:
    """The trees of a run that restarts after every so many steps, as long as steps are left."""
    lengths = [0]
    for _ in range(steps):
        if restart_every is not None and lengths[-1] == restart_every:
            lengths.append(0)
        lengths[-1] += 1
    if complete is True:
        completed = [tree < len(lengths) - 1 for tree in range(len(lengths))]
    elif complete == "all":
        completed = [True for _ in lengths]
    elif complete is False:
        completed = [False for _ in lengths]
    else:
        completed = [bool(x) for x in complete]
    assert len(completed) == len(lengths)
    return list(zip(lengths, completed, strict=True))


def all_patterns(steps: int, most: int, separation: int) -> Iterator[tuple[int, ...]]:
    """All sets of at most ``most`` steps, two of which are at least ``separation`` apart."""

    def longer(uses: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield uses
        if len(uses) < most:
            for step in range(uses[-1] + separation if uses else 0, steps):
                yield from longer((*uses, step))

    yield from longer(())


def maximal_patterns(steps: int, most: int, separation: int) -> list[tuple[int, ...]]:
    """Those of `all_patterns` to which no step can be added: zeta never falls with a use."""
    patterns = set(all_patterns(steps, most, separation))
    return sorted(
        uses
        for uses in patterns
        if not any(
            tuple(sorted((*uses, step))) in patterns for step in range(steps) if step not in uses
        )
    )


# ---- One tree ----


def last_leaf(steps: int, completed: bool) -> int:
    """Where a tree ends: at its last step or, completed, at the next power of two."""
    end = steps
    while completed and end & (end - 1):
        end += 1
    return end


def readable_nodes(steps: int, completed: bool) -> list[Node]:
    """All nodes (level, index) whose last leaf is at most the end of the tree."""
    end = last_leaf(steps, completed)
    return [
        (level, index)
        for level in range(end.bit_length())
        for index in range(end)
        if (index + 1) * 2**level <= end
    ]


def nodes_of_prefix(t: int) -> list[Node]:
    """The nodes that make up leaves 1..t: one for each set bit of t, the largest first."""
    nodes, done = [], 0
    for level in reversed(range(t.bit_length())):
        if t & 2**level:
            nodes.append((level, done // 2**level))
            done += 2**level
    return nodes


def released_steps(steps: int, completed: bool) -> list[int]:
    """The t whose prefix leaves the tree: each step's, and the one carried by a completion."""
    return sorted({*range(1, steps + 1), last_leaf(steps, completed)})


def under(node: Node, leaves: Sequence[int]) -> int:
    """How many of the leaves (from 0) lie under a node."""
    level, index = node
    return sum(index * 2**level <= leaf < (index + 1) * 2**level for leaf in leaves)


@cache
def _released_form(steps: int, completed: bool, variant: str) -> NDArray[np.float64]:
    """A^T Cov^-1 A: row t of A adds up the steps up to t, Cov is that of the prefixes' noise."""
    released = released_steps(steps, completed)
    exact = covariance(released[-1], variant)
    noise = np.array([[float(exact[s - 1][t - 1]) for t in released] for s in released])
    sums = np.array([[float(leaf < t) for leaf in range(steps)] for t in released])
    form: NDArray[np.float64] = sums.T @ np.linalg.solve(noise, sums)
    return form


# ---- zeta of one id's uses ----


def leaves_by_tree(uses: Iterable[int], trees: TreeSpecs) -> list[list[int]]:
    """The leaves (from 0) of each tree that the uses fall on."""
    uses, start, found = list(uses), 0, []
    for steps, _ in trees:
        found.append([use - start for use in uses if start <= use < start + steps])
        start += steps
    assert sum(map(len, found)) == len(uses)
    return found


def zeta_exact(uses: Iterable[int], trees: TreeSpecs) -> int:
    """Sum over all nodes that can be read of (contributions under the node)^2."""
    return sum(
        under(node, leaves) ** 2
        for leaves, tree in zip(leaves_by_tree(uses, trees), trees, strict=True)
        for node in readable_nodes(*tree)
    )


def zeta_by_level(uses: Iterable[int], trees: TreeSpecs) -> list[list[int]]:
    """`zeta_exact` split over trees and, within each, over levels from the leaves up."""
    return [
        [
            sum(under(node, leaves) ** 2 for node in readable_nodes(*tree) if node[0] == level)
            for level in range(last_leaf(*tree).bit_length())
        ]
        for leaves, tree in zip(leaves_by_tree(uses, trees), trees, strict=True)
    ]


def zeta_released_vanilla(uses: Iterable[int], trees: TreeSpecs) -> int:
    """The same sum over the nodes that some released prefix reads."""
    return sum(
        under(node, leaves) ** 2
        for leaves, tree in zip(leaves_by_tree(uses, trees), trees, strict=True)
        for node in {node for t in released_steps(*tree) for node in nodes_of_prefix(t)}
    )


def zeta_released_honaker(uses: Iterable[int], trees: TreeSpecs) -> float:
    """u^T A^T Cov^-1 A u, the squared length of the move of the released prefixes."""
    return _zeta_released(uses, trees, "honaker")


def zeta_released_vanilla_dense(uses: Iterable[int], trees: TreeSpecs) -> float:
    """`zeta_released_vanilla` by the covariance of the prefixes, which must agree."""
    return _zeta_released(uses, trees, "vanilla")


def _zeta_released(uses: Iterable[int], trees: TreeSpecs, variant: str) -> float:
    total = 0.0
    for leaves, tree in zip(leaves_by_tree(uses, trees), trees, strict=True):
        u = np.zeros(tree[0])
        for leaf in leaves:
            u[leaf] += 1
        total += float(u @ _released_form(*tree, variant) @ u)
    return total


# ---- zeta of a declared pattern ----

Zeta = Callable[[Iterable[int], TreeSpecs], float]


def max_min_separation(
    zeta: Zeta, steps: int, most: int, separation: int, trees: TreeSpecs
) -> float:
    """The largest zeta of any set of uses that keeps the separation and the count."""
    return max(zeta(uses, trees) for uses in all_patterns(steps, most, separation))


def max_level_wise(steps: int, most: int, separation: int, trees: TreeSpecs) -> int:
    """The maximum on each level, summed: levels of all trees with one number go together."""
    levels = max(last_leaf(*tree).bit_length() for tree in trees)
    by_level = [
        [sum(tree[level] for tree in split if level < len(tree)) for level in range(levels)]
        for split in (zeta_by_level(uses, trees) for uses in all_patterns(steps, most, separation))
    ]
    return sum(max(values[level] for values in by_level) for level in range(levels))


def max_fixed_epochs(
    zeta: Zeta, steps_per_epoch: int, epochs: int, trees: TreeSpecs, reshuffle: bool
) -> float:
    """Over the places of an epoch: one order for the run, or a fresh one in each tree."""
    places = range(steps_per_epoch)
    steps = range(steps_per_epoch * epochs)
    if not reshuffle:
        return max(
            zeta([t for t in steps if t % steps_per_epoch == place], trees) for place in places
        )
    total, start = 0.0, 0
    for n, _ in trees:
        inside = [t for t in steps if start <= t < start + n]
        total += max(
            zeta([t for t in inside if t % steps_per_epoch == place], trees) for place in places
        )
        start += n
    return total
