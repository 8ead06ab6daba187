# SPDX-License-Identifier: Apache-2.0
"""`TreeLayout`: the steps of a run, laid out over trees."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: How prefixes are computed from the nodes of the tree.
Variant: TypeAlias = Literal["vanilla", "honaker"]

_LISTED = 6


@dataclass(frozen=True)
class TreeRun:
    """Equal trees in a row.

    Parameters
    ----------
    steps : int
        Steps of each tree (n >= 1).
    completed : bool
        Whether each is advanced, with zero gradients, to the next power of two.
    count : int
        How many there are, >= 1.

    Examples
    --------
    >>> TreeRun(steps=500, completed=True, count=19).end
    512
    """

    steps: int
    completed: bool
    count: int

    @property
    def end(self) -> int:
        """Last leaf of each tree: its last step, or the next power of two if it is completed."""
        return 1 << (self.steps - 1).bit_length() if self.completed else self.steps


@dataclass(frozen=True)
class TreeLayout:
    """The trees of a run in their order, equal neighbours counted together.

    Made by `Tree.layout`. A restart period has at most three `runs`, however many trees that makes;
    methods search them by bisection.

    Attributes
    ----------
    runs : tuple of TreeRun
        No two neighbours are equal but for their count.
    variant : {"honaker", "vanilla"}
        How prefixes are computed from the nodes.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import Tree
    >>> trees = Tree(restart_every=500, complete=True).layout(1600)
    >>> trees.runs[0], trees.count, trees.steps
    (TreeRun(steps=500, completed=True, count=3), 4, 1600)
    >>> trees.locate(501)
    (1, 1)
    """

    runs: tuple[TreeRun, ...]
    variant: Variant = "honaker"

    @cached_property
    def _starts(self) -> tuple[list[int], list[int]]:
        """Trees and steps before each run, and at the end those of all runs."""
        trees = accumulate((run.count for run in self.runs), initial=0)
        steps = accumulate((run.count * run.steps for run in self.runs), initial=0)
        return list(trees), list(steps)

    @property
    def steps(self) -> int:
        """Real steps of all trees together."""
        return self._starts[1][-1]

    @property
    def count(self) -> int:
        """Number of trees."""
        return self._starts[0][-1]

    @property
    def tallest(self) -> int:
        """Largest number of leaves of a tree, completion included."""
        return max(run.end for run in self.runs)

    @property
    def longest(self) -> int:
        """Largest number of real steps of a tree."""
        return max(run.steps for run in self.runs)

    @property
    def triples(self) -> list[tuple[int, int, bool]]:
        """(steps, count, completed) of each run, as the compiled core takes them."""
        return [(run.steps, run.count, run.completed) for run in self.runs]

    @property
    def noise_limits(self) -> tuple[int, int]:
        """Bounds of the variance and of the largest value of a running sum's noise.

        The noise of a step, carried noise included, is made of at most one node a level of each
        tree. In the worst case Honaker's estimate at level l is l + 1 of the largest values of the
        stream.
        """
        levels = [(run.end.bit_length(), run.count) for run in self.runs]
        return (
            sum(n * count for n, count in levels),
            sum(n * (n + 1) // 2 * count for n, count in levels),
        )

    @property
    def released_spreads(self) -> bool:
        """True for Honaker: "released" spreads a shift over more nodes than "exact" counts."""
        return self.variant == "honaker"

    def locate(self, step: int) -> tuple[int, int]:
        """Return the tree (from 0) of a step, and its number in there (from 1), or IndexError."""
        if not 1 <= step <= self.steps:
            raise IndexError(f"step must be an integer in [1, {self.steps}], got {step}")
        trees, steps = self._starts
        i = bisect_right(steps, step - 1) - 1
        more, t = divmod(step - 1 - steps[i], self.runs[i].steps)
        return trees[i] + more, t + 1

    def run_of(self, tree: int) -> TreeRun:
        """Return the run that a tree (from 0) belongs to, or IndexError."""
        if not 0 <= tree < self.count:
            raise IndexError(f"tree must be an integer in [0, {self.count}), got {tree}")
        return self.runs[bisect_right(self._starts[0], tree) - 1]

    def steps_before(self, tree: int) -> int:
        """Return the real steps of the trees before a tree (from 0), or of all if it is `count`."""
        if not 0 <= tree <= self.count:
            raise IndexError(f"tree must be an integer in [0, {self.count}], got {tree}")
        trees, steps = self._starts
        i = bisect_right(trees, tree) - 1
        return steps[i] + (tree - trees[i]) * self.runs[i].steps if tree < self.count else steps[i]

    def blocks_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tree (from 0) of each of an array of steps, which count from 0 here.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> Tree(restart_every=2).layout(5).blocks_of(np.arange(5)).tolist()
        [0, 0, 1, 1, 2]
        """
        if steps.size and not 0 <= steps.min() <= steps.max() < self.steps:
            raise IndexError(
                f"steps must be integers in [0, {self.steps}), got {steps.min()} to {steps.max()}"
            )
        trees_before, steps_before = (np.array(starts, np.int64) for starts in self._starts)
        lengths = np.array([run.steps for run in self.runs], np.int64)
        run = np.searchsorted(steps_before, steps, side="right") - 1
        return np.asarray(trees_before[run] + (steps - steps_before[run]) // lengths[run])

    def blocks(self) -> Iterator[tuple[TreeLayout, int]]:
        """Yield each kind of tree as a layout of one tree, with the number of such trees."""
        for run in self.runs:
            yield TreeLayout((replace(run, count=1),), self.variant), run.count

    def between(self, first: int, last: int) -> TreeLayout:
        """Return the trees of steps first..last as a separate run.

        The tree of step `first` starts with it at leaf 1. The tree of step `last` ends there, and
        is completed only if that is its last step. Steps count from 1.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> trees = Tree(restart_every=100, complete=True).layout(1000)
        >>> [(run.steps, run.completed, run.count) for run in trees.between(150, 420).runs]
        [(51, True, 1), (100, True, 2), (20, False, 1)]
        """
        (begin, leaf), (end, last_leaf) = self.locate(first), self.locate(last)
        if last < first:
            raise IndexError(f"expected first <= last, got {first} and {last}")
        pieces: list[TreeRun] = []
        before = 0  # trees of the runs gone through
        for run in self.runs:
            whole = range(max(before, begin), min(before + run.count, end + 1))
            before += run.count
            # The trees at the ends may be cut, those between are whole.
            cut = sorted({begin, end} & {*whole[:1], *whole[-1:]})
            between = len(whole) - len(cut)
            for tree in cut:
                start = leaf if tree == begin else 1
                stop = last_leaf if tree == end else run.steps
                if between and tree == end:
                    pieces.append(replace(run, count=between))
                    between = 0
                pieces.append(TreeRun(stop - start + 1, run.completed and stop == run.steps, 1))
            if between:
                pieces.append(replace(run, count=between))
        return TreeLayout(merged_runs(pieces), self.variant)

    def describe(self) -> str:
        """Return in words when the tree restarts, which trees are completed, and the variant.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import Tree
        >>> Tree(restart_every=500, complete=True).layout(1600).describe()
        'a new tree every 500 steps, completed before it, honaker'
        >>> tree = Tree("vanilla", tree_lengths=[5, 3, 2], complete=[True, False, True])
        >>> tree.layout(10).describe()
        '3 trees of 5, 3, 2 steps, 2 of them completed, vanilla'
        """
        return f"{self._restarts()}, {self.variant}"

    def _restarts(self) -> str:
        first, last = self.runs[0], self.runs[-1]
        if self.count == 1:
            return "one tree" + (", completed" if first.completed else "")
        before = self.run_of(self.count - 2)  # of the last tree but one
        completed = sum(run.count for run in self.runs if run.completed)
        lengths = {run.steps for run in self.runs[:-1]} | {before.steps}
        if len(lengths) == 1 and last.steps <= first.steps:
            words = f"a new tree every {first.steps} steps"
            if completed == self.count - 1 and not last.completed:
                return f"{words}, completed before it"
            if completed == self.count:
                return f"{words}, each completed"
        else:
            shown = [str(self.run_of(i).steps) for i in range(min(self.count, _LISTED))]
            more = ", .." if self.count > _LISTED else ""
            words = f"{self.count} trees of {', '.join(shown)}{more} steps"
        return words + (f", {completed} of them completed" if completed else "")

    def declaration(self) -> dict[str, Any]:
        """Return the trees as JSON-able data, for the declaration of a guard."""
        return {"trees": [[run.steps, run.completed, run.count] for run in self.runs]}

    def noise_declaration(self) -> dict[str, Any]:
        """Return the variant, for the declaration of a ledger."""
        return {"variant": self.variant}


def merged_runs(runs: Iterable[TreeRun]) -> tuple[TreeRun, ...]:
    """Count equal neighbours together; runs without trees are dropped."""
    filled = (run for run in runs if run.count)
    alike = groupby(filled, key=lambda run: (run.steps, run.completed))
    return tuple(TreeRun(*kind, sum(run.count for run in same)) for kind, same in alike)
