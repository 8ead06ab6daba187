# SPDX-License-Identifier: Apache-2.0
"""`TreeLayout`: the steps of a run, laid out over trees."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from dpftrl_fast.mechanisms.blocks import BlockLayout

Variant: TypeAlias = Literal["vanilla", "honaker"]
"""Estimator of a prefix from the noisy nodes of the tree: each node's own noise, or all below it.

Examples
--------
>>> from dpftrl_fast import accounting, mechanisms
>>> for variant in ("honaker", "vanilla"):
...     tree = mechanisms.Tree(variant)
...     print(variant, accounting.noise_std(1023, tree).prefix.max().round(2))
honaker 2.41
vanilla 3.16
"""

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

    def part(self, first: int, last: int) -> TreeRun:
        """Return steps first..last of one tree, completed only if it ends where that one does.

        The tree starts with step `first` at leaf 1.
        """
        return TreeRun(last - first + 1, self.completed and last == self.steps, 1)


@dataclass(frozen=True)
class TreeLayout(BlockLayout[TreeRun]):
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

    def begins(self, longer: TreeLayout) -> bool:
        """Return whether the first steps of a longer layout are these trees, with this noise.

        The last tree may be completed in the longer layout only: that comes after its last step.
        """
        if super().begins(longer):
            return True
        if self.steps > longer.steps:
            return False
        *runs, last = longer.between(1, self.steps).runs
        whole, cut = replace(last, count=last.count - 1), replace(last, completed=False, count=1)
        return self._of([*runs, whole, cut]) == self

    @property
    def tallest(self) -> int:
        """Largest number of leaves of a tree, completion included."""
        return max(run.end for run in self.runs)

    @property
    def triples(self) -> list[tuple[int, int, bool]]:
        """(steps, count, completed) of each run, as the compiled core takes them."""
        return [(run.steps, run.count, run.completed) for run in self.runs]

    @property
    def least_std(self) -> float:
        """Lower bound of the standard deviation of a running sum's noise, for nodes of 1."""
        return math.sqrt(0.5)

    @property
    def largest_std(self) -> float:
        """Upper bound of the standard deviation of a running sum's noise, for nodes of 1."""
        return math.sqrt(self.noise_limits[0])

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
